use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use diesel::sql_types::Text;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use futures_util::StreamExt;
use platform_core::{Code, Error, Id, Result, spawn};
use tokio::{sync::broadcast, time::Instant};

use crate::Db;

/// A word to every process; a hint, never the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Something under `topic` changed.
    Changed {
        /// What kind of thing, for example `api-key`.
        topic: String,
        /// Which one.
        id: String,
    },
    /// The line was cut for a while: whatever was cached may be stale.
    Missed,
}

/// Tells all processes that share the database what to forget or to look at.
///
/// In process over a channel; between processes over one PostgreSQL LISTEN connection.
#[derive(Clone)]
pub struct Bus {
    local: Arc<Local>,
    shared: Option<Arc<Db>>,
}

/// Whoever hears in this process.
struct Local {
    channel: broadcast::Sender<Notice>,
    caches: RwLock<Vec<Forget>>,
}

type Forget = Box<dyn Fn(&Notice) + Send + Sync>;

impl Local {
    /// Has the caches forget, and then tells everybody: whoever hears reads what is true now.
    fn tell(&self, notice: Notice) {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches.iter().for_each(|forget| forget(&notice));
        drop(caches);
        let _ = self.channel.send(notice);
    }
}

const CHANNEL: &str = "platform";
const RETRY: Duration = Duration::from_millis(500);
/// Topic of what a process says only to hear it itself, and how often it does.
const BEAT: &str = "beat";
const BETWEEN_BEATS: Duration = Duration::from_millis(500);
/// A line on which nothing is heard for so long is dead.
const MAX_SILENCE: Duration = Duration::from_secs(2);

enum Process {}

impl Bus {
    /// A bus within this process alone.
    pub fn local() -> Self {
        let local = Local { channel: broadcast::channel(1024).0, caches: RwLock::default() };
        Self { local: Arc::new(local), shared: None }
    }

    /// A bus over all processes on this database.
    pub fn shared(db: &Db) -> Self {
        let bus = Self { shared: Some(Arc::new(db.clone())), ..Self::local() };
        spawn("bus", listen(db.clone(), Arc::clone(&bus.local)));
        bus
    }

    /// Tells everybody, this process at once. What is told was committed: where the others cannot be told now, they are
    /// as soon as they can.
    pub async fn tell(&self, topic: &str, id: &str) -> Result<()> {
        self.local.tell(Notice::Changed { topic: topic.to_owned(), id: id.to_owned() });
        let Some(db) = &self.shared else { return Ok(()) };
        let notice = format!("{topic}:{id}");
        match notify(db, &notice).await {
            Err(error) if error.code() == Code::SERVICE_UNAVAILABLE => {
                tracing::warn!(%error, "The other processes could not be told of a change; trying again.");
                let db = Arc::clone(db);
                spawn("bus", async move {
                    let is_away = |told: Result<()>| told.is_err_and(|error| error.code() == Code::SERVICE_UNAVAILABLE);
                    while is_away(notify(&db, &notice).await) {
                        tokio::time::sleep(RETRY).await;
                    }
                });
                Ok(())
            }
            told => told,
        }
    }

    /// Everything that is told from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.local.channel.subscribe()
    }

    /// What forgets at every notice, before anybody else hears of it, as long as there is the bus.
    pub(crate) fn forgets(&self, forget: impl Fn(&Notice) + Send + Sync + 'static) {
        self.local.caches.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(forget));
    }
}

async fn notify(db: &Db, notice: &str) -> Result<()> {
    let notify = diesel::sql_query("SELECT pg_notify($1, $2)").bind::<Text, _>(CHANNEL).bind::<Text, _>(notice);
    notify.execute(&mut db.conn().await?).await?;
    Ok(())
}

async fn listen(db: Db, local: Arc<Local>) {
    loop {
        if let Err(error) = listen_once(&db, &local).await {
            tracing::debug!(%error, "The line to the other processes was cut; trying again.");
        }
        local.tell(Notice::Missed);
        tokio::time::sleep(RETRY).await;
    }
}

async fn listen_once(db: &Db, local: &Local) -> Result<()> {
    let mut conn = db.listener().await?;
    conn.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
    local.tell(Notice::Missed);
    let mut notices = std::pin::pin!(conn.notifications_stream());
    // A line may be silent because it is dead: what this process says itself has to be heard on it.
    let own = format!("{BEAT}:{}.", Id::<Process>::generate());
    let beat = async |number: u64| {
        tokio::time::sleep(BETWEEN_BEATS).await;
        notify(db, &format!("{own}{number}")).await
    };
    let (mut number, mut heard, mut said) = (1, 0, None);
    let mut beating = Box::pin(beat(number));
    loop {
        let silence = async {
            match said {
                Some(said) => tokio::time::sleep_until(said + MAX_SILENCE).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            notice = notices.next() => match notice.transpose()?.as_ref().map(|notice| notice.payload.as_str()) {
                None => return Ok(()),
                Some(payload) if payload.starts_with(&own) => {
                    heard = payload[own.len()..].parse().unwrap_or(heard);
                    said = None;
                }
                Some(payload) => if let Some((topic, id)) = payload.split_once(':').filter(|(topic, _)| *topic != BEAT) {
                    local.tell(Notice::Changed { topic: topic.to_owned(), id: id.to_owned() });
                },
            },
            told = &mut beating => {
                // It may have been heard before this process knew that it was said.
                if told.is_ok() && heard < number && said.is_none() {
                    said = Some(Instant::now());
                }
                number += 1;
                beating = Box::pin(beat(number));
            }
            () = silence => return Err(Error::unavailable("nothing is heard on it")),
        }
    }
}
