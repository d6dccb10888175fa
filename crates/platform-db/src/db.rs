use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use deadpool::managed::QueueMode;
use diesel::{ConnectionError, ConnectionResult};
use diesel_async::{
    AsyncPgConnection, SimpleAsyncConnection,
    pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod, deadpool::Pool},
};
use futures_util::{FutureExt, future::BoxFuture};
use platform_core::{AccountId, Error, FairPermit, FairSemaphore, Result, spawn};
use tokio::{
    runtime::Handle,
    sync::{RwLock, watch},
    task::AbortHandle,
};
use tokio_postgres::config::{Host, SslMode};

/// A connection, as repositories take it.
pub type Conn = AsyncPgConnection;
/// A connection lent from the pool; it goes back when dropped.
pub type PooledConn = diesel_async::pooled_connection::deadpool::Object<AsyncPgConnection>;

/// Of the pool, what work that may take long has at once; of that, what one account has.
const LONG: usize = 2;
const LONG_OF_ACCOUNT: usize = 8;

/// How long a caller waits for a connection before it is told 503.
const WAIT: Duration = Duration::from_secs(2);
/// A transaction whose process says nothing for so long is ended, so that one that was stopped holds up nobody.
const STANDSTILL: Duration = Duration::from_secs(10);
/// How often a database that is in use is asked whether it is there.
const WATCH: Duration = Duration::from_millis(500);
/// The wait for its answer has so many parts.
const PARTS: u32 = 4;
/// Shared connections for pipelined reads: each thread that reads keeps to one of them, whose
/// driver runs on that thread's runtime, so that a read crosses no thread.
const READERS: usize = 8;

thread_local! {
    static READER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % READERS
    };
}

/// Where the database is and how many connections to keep.
#[derive(Debug, Clone)]
pub struct DbConfig {
    /// `postgres://…` or a key-value string.
    pub url: String,
    /// Connections of this process, besides the few shared ones for reads.
    pub pool: usize,
}

/// How the connections of a pool are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Lent.
    pub used: usize,
    /// Open and free.
    pub idle: usize,
    /// Callers that wait for one.
    pub waiting: usize,
}

/// Handle to the database; cheap to clone.
#[derive(Clone)]
pub struct Db {
    pool: Pool<AsyncPgConnection>,
    long: FairSemaphore,
    readers: Arc<[RwLock<Option<ReadConn>>]>,
    url: Arc<str>,
    runtime: Handle,
    drivers: Arc<Drivers>,
}

/// What carries the connections of this process.
#[derive(Default)]
struct Drivers {
    running: Mutex<Vec<AbortHandle>>,
    /// Nothing comes from the database, on whatever connection.
    silent: watch::Sender<bool>,
}

impl Drivers {
    fn add(&self, driver: AbortHandle) {
        let mut running = self.running.lock().expect("lock");
        running.retain(|driver| !driver.is_finished());
        running.push(driver);
    }

    /// Cuts all connections: who waits for an answer on one is told that it is closed.
    fn cut(&self) {
        self.running.lock().expect("lock").drain(..).for_each(|driver| driver.abort());
    }

    /// Gives up what waits for the database as soon as that is silent.
    async fn unless_silent<T>(&self, waiting: BoxFuture<'_, Result<T>>) -> Result<T> {
        let mut silent = self.silent.subscribe();
        tokio::select! {
            biased;
            outcome = waiting => outcome,
            _ = silent.wait_for(|is_silent| *is_silent) => Err(Error::unavailable("The database does not answer.")),
        }
    }
}

/// Has a transaction find rows by their keys alone: a plan that was made while tables were small would read them whole
/// when they are large.
pub const BY_KEY: &str = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/// Commits a row on a page that the disk has to give anew; an error when the database takes no writes.
pub async fn can_write(conn: &mut Conn) -> Result<()> {
    let write =
        "BEGIN; SET LOCAL lock_timeout = '1s'; TRUNCATE write_probe; INSERT INTO write_probe VALUES (now()); COMMIT";
    Ok(conn.batch_execute(write).await?)
}

/// A connection of one's own within the share of an account.
pub struct FairConn {
    conn: PooledConn,
    _place: FairPermit,
}

impl Deref for FairConn {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.conn
    }
}

impl DerefMut for FairConn {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }
}

/// A share of a connection on which independent statements are pipelined.
#[derive(Clone)]
pub struct ReadConn {
    conn: Arc<AsyncPgConnection>,
    closed: Arc<AtomicBool>,
}

impl ReadConn {
    /// The connection as Diesel's load methods take it: `&mut conn.get()`.
    pub fn get(&self) -> &AsyncPgConnection {
        &self.conn
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }
}

/// A connection of one's own on the runtime of its owner.
pub(crate) struct HereConn {
    conn: AsyncPgConnection,
    closed: Arc<AtomicBool>,
}

impl HereConn {
    pub fn get_mut(&mut self) -> &mut AsyncPgConnection {
        &mut self.conn
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Db {
    /// Prepares the pool. No connection is opened before one is needed.
    pub fn new(config: &DbConfig) -> Result<Self> {
        let runtime = Handle::current();
        let mut manager = ManagerConfig::default();
        manager.recycling_method = RecyclingMethod::Fast;
        let (home, drivers) = (runtime.clone(), Arc::<Drivers>::default());
        let carriers = Arc::clone(&drivers);
        manager.custom_setup = Box::new(move |url| {
            let (home, url, drivers) = (home.clone(), url.to_owned(), Arc::clone(&carriers));
            async move { Ok(establish(&home, url, drivers).await?.0) }.boxed()
        });
        spawn("watch the database", watch_over(config.url.clone(), Arc::downgrade(&drivers)));
        let pool = Pool::builder(AsyncDieselConnectionManager::new_with_config(&config.url, manager))
            .max_size(config.pool)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            // What was used last has its statements prepared, and its part of the database in mind.
            .queue_mode(QueueMode::Lifo)
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(Error::internal)?;
        Ok(Self {
            pool,
            long: FairSemaphore::new((config.pool / LONG).max(1), (config.pool / LONG_OF_ACCOUNT).max(1)),
            readers: (0..READERS).map(|_| RwLock::new(None)).collect(),
            url: config.url.as_str().into(),
            runtime,
            drivers,
        })
    }

    /// A connection of one's own, for writes and transactions.
    pub async fn conn(&self) -> Result<PooledConn> {
        self.drivers.unless_silent(async { self.pool.get().await.map_err(Error::unavailable) }.boxed()).await
    }

    /// A connection for what may take long: a read through many rows, a transaction that waits for others of its account.
    /// An account has an eighth of the pool for it, so that its worst minute is nobody else's.
    pub async fn fair_conn(&self, account: &AccountId) -> Result<FairConn> {
        let place = self.drivers.unless_silent(async { Ok(self.long.acquire(account).await) }.boxed()).await?;
        Ok(FairConn { conn: self.conn().await?, _place: place })
    }

    /// A shared connection for reads that stand alone. Never start a transaction on it.
    pub async fn read(&self) -> Result<ReadConn> {
        let slot = &self.readers[READER.with(|reader| *reader)];
        if let Some(conn) = slot.try_read().ok().and_then(|slot| slot.as_ref().filter(|conn| conn.is_open()).cloned()) {
            return Ok(conn);
        }
        // Whoever comes while it is opened waits no longer than who opens it.
        let opening = async {
            let mut slot = slot.write().await;
            if let Some(conn) = slot.as_ref().filter(|conn| conn.is_open()) {
                return Ok(conn.clone());
            }
            let (conn, closed) =
                connect(self.url.to_string(), Some(&self.drivers)).await.map_err(Error::unavailable)?;
            let conn = ReadConn { conn: Arc::new(conn), closed };
            *slot = Some(conn.clone());
            Ok(conn)
        };
        let opening = async { tokio::time::timeout(WAIT, opening).await.map_err(Error::unavailable)? };
        self.drivers.unless_silent(opening.boxed()).await
    }

    /// A connection outside the pool, for work that must not wait for one (heartbeat, LISTEN).
    pub async fn dedicated(&self) -> Result<AsyncPgConnection> {
        let opened =
            tokio::time::timeout(WAIT, establish(&self.runtime, self.url.to_string(), Arc::clone(&self.drivers))).await;
        Ok(opened.map_err(Error::unavailable)?.map_err(Error::unavailable)?.0)
    }

    /// A connection whose driver lives on the runtime of the caller, for statements that find rows by their keys.
    pub(crate) async fn connect_here(&self) -> Result<HereConn> {
        let opened = tokio::time::timeout(WAIT, connect(self.url.to_string(), Some(&self.drivers))).await;
        let (mut conn, closed) = opened.map_err(Error::unavailable)?.map_err(Error::unavailable)?;
        // What `BY_KEY` is to a transaction.
        conn.batch_execute("SET enable_seqscan = off; SET jit = off").await?;
        Ok(HereConn { conn, closed })
    }

    /// A connection that hears notifications.
    pub(crate) async fn listener(&self) -> Result<AsyncPgConnection> {
        let opened = tokio::time::timeout(WAIT, connect(self.url.to_string(), None)).await;
        Ok(opened.map_err(Error::unavailable)?.map_err(Error::unavailable)?.0)
    }

    /// How the pool is used now.
    pub fn pool(&self) -> PoolUse {
        let status = self.pool.status();
        PoolUse { used: status.size - status.available, idle: status.available, waiting: status.waiting }
    }
}

/// Opens a connection whose driver lives on the main runtime, whichever thread asked for it.
/// The flag rises when the connection is closed.
async fn establish(
    runtime: &Handle,
    url: String,
    drivers: Arc<Drivers>,
) -> ConnectionResult<(AsyncPgConnection, Arc<AtomicBool>)> {
    runtime.spawn(async move { connect(url, Some(&drivers)).await }).await.map_err(|e| bad_connection(&e))?
}

/// Asks whether the database is there; when it does not answer at all, nobody waits for it any longer.
async fn watch_over(url: String, drivers: Weak<Drivers>) {
    let mut conn: Option<AsyncPgConnection> = None;
    loop {
        tokio::time::sleep(WATCH).await;
        let Some(drivers) = drivers.upgrade() else { return };
        let mut asking = std::pin::pin!(ask(&url, conn.take()));
        let mut answer = None;
        // In parts: a process that was stopped for a while hears the answer before it judges.
        for _ in 0..PARTS {
            answer = tokio::time::timeout(WAIT / PARTS, &mut asking).await.ok();
            if answer.is_some() {
                break;
            }
        }
        drivers.silent.send_replace(answer.is_none());
        match answer {
            Some(Ok(open)) => conn = Some(open),
            // Whoever has a connection is told the same.
            Some(Err(_)) => {}
            None => {
                tracing::warn!("The database does not answer; its connections are closed.");
                drivers.cut();
            }
        }
    }
}

/// Asks over a connection of its own, which is given back when there is an answer.
async fn ask(url: &str, conn: Option<AsyncPgConnection>) -> Result<AsyncPgConnection> {
    let mut conn = match conn {
        Some(conn) => conn,
        None => connect(url.to_owned(), Some(&Drivers::default())).await.map_err(Error::unavailable)?.0,
    };
    conn.batch_execute("SELECT 1").await?;
    Ok(conn)
}

/// Without `drivers` it is a connection that hears notifications.
async fn connect(url: String, drivers: Option<&Drivers>) -> ConnectionResult<(AsyncPgConnection, Arc<AtomicBool>)> {
    let mut config: tokio_postgres::Config = url.parse().map_err(|e| bad_connection(&e))?;
    config.application_name("platform").connect_timeout(WAIT);
    // What the address says counts.
    let given = config.get_options().unwrap_or_default();
    let options = format!("-c idle_in_transaction_session_timeout={} {given}", STANDSTILL.as_millis());
    config.options(options);
    let local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
    if local || config.get_ssl_mode() == SslMode::Disable {
        let (client, driver) = config.connect(tokio_postgres::NoTls).await.map_err(|e| bad_connection(&e))?;
        return drive(client, driver, drivers).await;
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls);
    let (client, driver) = config.connect(tls).await.map_err(|e| bad_connection(&e))?;
    drive(client, driver, drivers).await
}

async fn drive<T>(
    client: tokio_postgres::Client,
    driver: tokio_postgres::Connection<tokio_postgres::Socket, T>,
    drivers: Option<&Drivers>,
) -> ConnectionResult<(AsyncPgConnection, Arc<AtomicBool>)>
where
    T: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    let closed = Arc::new(AtomicBool::new(false));
    let Some(drivers) = drivers else {
        return Ok((AsyncPgConnection::try_from_client_and_connection(client, driver).await?, closed));
    };
    let flag = Closes(Arc::clone(&closed));
    let carrying = spawn("database connection", async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "A database connection was lost.");
        }
        drop(flag);
    });
    drivers.add(carrying.abort_handle());
    Ok((AsyncPgConnection::try_from(client).await?, closed))
}

/// Raises the flag of a connection when what carries it ends, in whatever way.
struct Closes(Arc<AtomicBool>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn bad_connection(error: &impl std::error::Error) -> ConnectionError {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    ConnectionError::BadConnection(message)
}
