use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use platform_core::{Code, Error, Result, spawn};
use tokio::{
    runtime::{self, Handle},
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use crate::{Conn, Db, db::HereConn};

/// A connection that nobody writes on for so long is given back.
const IDLE: Duration = Duration::from_mins(1);
/// Items of a group that does not wait for its turn.
const SMALL: usize = 6;
/// About what a commit takes: a group that waits for a lock keeps up nobody else.
const TURN: Duration = Duration::from_millis(2);

type Waiting<T, R> = (T, oneshot::Sender<Result<R>>);
/// Held by whoever writes a group, where they write in turn.
type Turn = Option<Arc<Mutex<()>>>;
type Write<T, R> = dyn for<'a> Fn(&'a mut Conn, &'a [T]) -> BoxFuture<'a, Result<Vec<R>>> + Send + Sync;

/// Group write: items that wait at the same moment share one statement and one commit.
///
/// An item is acknowledged after the commit of its group. A group that fails is retried one
/// by one, so that a bad item harms nobody else. The write goes on when its caller leaves.
///
/// Each runtime has a queue and a connection of its own, so that a write crosses no thread: while the group of one
/// waits for the disk, another is planned.
pub struct GroupWriter<T, R> {
    db: Db,
    most: usize,
    write: Arc<Write<T, R>>,
    queues: RwLock<HashMap<runtime::Id, mpsc::Sender<Waiting<T, R>>>>,
    turn: Turn,
}

impl<T: Send + Sync + 'static, R: Send + 'static> GroupWriter<T, R> {
    /// At most `most` items share a statement.
    pub fn new<W>(db: &Db, most: usize, write: W) -> Self
    where
        W: for<'a> Fn(&'a mut Conn, &'a [T]) -> BoxFuture<'a, Result<Vec<R>>> + Send + Sync + 'static,
    {
        Self { db: db.clone(), most, write: Arc::new(write), queues: RwLock::default(), turn: None }
    }

    /// The same where a statement takes more by itself than its items add: a small group waits for the one that another
    /// runtime writes, and grows meanwhile.
    #[must_use]
    pub fn in_turn(self) -> Self {
        Self { turn: Some(Arc::default()), ..self }
    }

    /// Writes one item; returns when it is committed.
    pub async fn write(&self, item: T) -> Result<R> {
        let stopped = || Error::unavailable("the writer has stopped");
        let (answer, outcome) = oneshot::channel();
        self.queue().send((item, answer)).await.map_err(|_| stopped())?;
        outcome.await.map_err(|_| stopped())?
    }

    /// The queue of this runtime.
    fn queue(&self) -> mpsc::Sender<Waiting<T, R>> {
        let here = Handle::current().id();
        if let Some(queue) = self.queues.read().expect("lock").get(&here).filter(|queue| !queue.is_closed()) {
            return queue.clone();
        }
        let mut queues = self.queues.write().expect("lock");
        // Those whose runtime or writer has ended are forgotten.
        queues.retain(|_, queue| !queue.is_closed());
        let begin = || {
            let (queue, waiting) = mpsc::channel(4 * self.most);
            let (write, turn) = (Arc::clone(&self.write), self.turn.clone());
            let writer = Writer { db: self.db.clone(), conn: None, write, turn };
            spawn("group write", writer.run(waiting, self.most));
            queue
        };
        queues.entry(here).or_insert_with(begin).clone()
    }
}

struct Writer<T, R> {
    db: Db,
    conn: Option<HereConn>,
    write: Arc<Write<T, R>>,
    turn: Turn,
}

impl<T, R> Writer<T, R> {
    async fn run(mut self, mut queue: mpsc::Receiver<Waiting<T, R>>, most: usize) {
        let mut waiting = Vec::with_capacity(most);
        loop {
            match timeout(IDLE, queue.recv_many(&mut waiting, most)).await {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    self.conn = None;
                    continue;
                }
            }
            let turn = match self.turn.clone() {
                Some(turn) if waiting.len() < SMALL => timeout(TURN, turn.lock_owned()).await.ok(),
                Some(turn) => turn.try_lock_owned().ok(),
                None => None,
            };
            while waiting.len() < most
                && let Ok(next) = queue.try_recv()
            {
                waiting.push(next);
            }
            let (items, answers): (Vec<T>, Vec<_>) = waiting.drain(..).unzip();
            let written = self.group(&items).await;
            drop(turn);
            match written {
                Ok(outcomes) => {
                    for (answer, outcome) in answers.into_iter().zip(outcomes) {
                        let _ = answer.send(Ok(outcome));
                    }
                }
                Err(error) => self.one_by_one(items, answers, error).await,
            }
        }
    }

    async fn group(&mut self, items: &[T]) -> Result<Vec<R>> {
        let mut conn = match self.conn.take().filter(|conn| !conn.is_closed()) {
            Some(conn) => conn,
            None => self.db.connect_here().await?,
        };
        let outcomes = (self.write)(conn.get_mut(), items).await?;
        // Only a connection that has just worked is used again.
        self.conn = Some(conn);
        if outcomes.len() == items.len() {
            Ok(outcomes)
        } else {
            Err(Error::internal(format!("a group of {} gave {} outcomes", items.len(), outcomes.len())))
        }
    }

    /// A bad item harms nobody else, nor does a deadlock; a database that is away harms all the same.
    async fn one_by_one(&mut self, items: Vec<T>, answers: Vec<oneshot::Sender<Result<R>>>, error: Error) {
        let is_away = error.code() == Code::SERVICE_UNAVAILABLE;
        let hopeless = (items.len() == 1 || is_away) && !error.is_deadlock();
        let reason = error.to_string();
        let mut first = Some(error);
        for (item, answer) in items.into_iter().zip(answers) {
            let outcome = if hopeless {
                Err(first.take().unwrap_or_else(|| Error::unavailable(reason.clone())))
            } else {
                self.group(std::slice::from_ref(&item)).await.map(|mut one| one.remove(0))
            };
            let _ = answer.send(outcome);
        }
    }
}
