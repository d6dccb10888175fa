//! A machine of another process: what is asked of it goes through the database, sealed.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{AccountId, Code, Error, Id, Result, spawn};
use platform_db::{Bus, Db, Notice};
use platform_vault::SecretLocation;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    runtime::Handle,
    sync::{broadcast, mpsc},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    exec::{channel, whole},
    live::{Live, gone},
    model::{CommandOutput, NewCommand, OutputMode, OutputPiece, StopSandbox},
    proxy::ProxiedRequest,
    repository::{self, SessionRow},
    service::Worker,
};
use crate::{code, environment::PgEnvironments};

/// Under which processes tell each other of calls.
pub(super) const TOPIC: &str = "sandbox";
/// In which a process that has a machine takes a call.
const TAKING: Duration = Duration::from_secs(5);
/// How often whoever waits for a call says so, and whoever carries it out looks whether somebody does.
const BETWEEN_SIGNS: Duration = Duration::from_secs(5);
/// How often an answer is looked for that nobody told of.
const LOOK: Duration = Duration::from_millis(500);
/// Longest answer to a call, beside what a command may take.
const ANSWERING: Duration = Duration::from_mins(1);
/// What a command says within this is told together.
const BATCH_WINDOW: Duration = Duration::from_millis(100);
/// Pieces that are told together.
const MAX_PIECES: usize = 64;

enum CallKind {}

/// What is asked of a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Run a command.
    Exec {
        /// What is to be run.
        command: NewCommand,
        /// For whom.
        worker: Option<Worker>,
        /// How what it says is told.
        mode: OutputMode,
    },
    /// Stop.
    Stop(StopSandbox),
    /// List a directory.
    List(String),
    /// Read a file.
    Read(String),
    /// Write a file, in base64.
    Write {
        /// Where.
        path: String,
        /// What the file is to hold.
        content: String,
    },
    /// Hand a request on to what a program of it serves.
    Proxy(ProxiedRequest),
    /// Be gone: another machine took its place.
    TakenOver,
}

#[derive(Serialize, Deserialize)]
struct Asked {
    sandbox: String,
    user: Option<String>,
    call: Call,
}

/// A piece of what is said on the way, told to another process.
pub(super) trait Piece: Serialize + DeserializeOwned {
    /// What comes of it all.
    type End;

    /// The piece; or the end, which is told by itself.
    fn told(self) -> std::result::Result<Self, Result<Self::End>>;
}

impl Piece for OutputPiece {
    type End = CommandOutput;

    fn told(self) -> std::result::Result<Self, Result<CommandOutput>> {
        match self {
            Self::Exit(output) => Err(Ok(output)),
            Self::Failed(error) => Err(Err(error)),
            piece => Ok(piece),
        }
    }
}

/// A call that is waited for; forgotten when it is dropped.
struct Waited {
    db: Db,
    bus: Bus,
    account: AccountId,
    id: String,
}

impl Drop for Waited {
    fn drop(&mut self) {
        if Handle::try_current().is_err() {
            return;
        }
        let (db, bus, account, id) = (self.db.clone(), self.bus.clone(), self.account.clone(), self.id.clone());
        spawn("forget sandbox call", async move {
            let forgetting = async {
                repository::forget(&mut *db.conn().await?, &account, &id).await?;
                bus.tell(TOPIC, &id).await
            };
            if let Err(error) = forgetting.await {
                debug!(%error, "A call of a sandbox could not be forgotten; it is in two hours.");
            }
        });
    }
}

/// Hears when somebody tells of a call, or may have.
async fn told_of(told: &mut broadcast::Receiver<Notice>, id: &str) {
    while let Ok(Notice::Changed { topic, id: of }) = told.recv().await
        && !(topic == TOPIC && of == id)
    {}
}

type Answer = std::result::Result<Value, (String, String)>;

/// An error that another process said.
fn error(code: &str, message: String) -> Error {
    let known = [
        code::SANDBOX_NOT_FOUND,
        code::SANDBOX_UNAVAILABLE,
        code::SNAPSHOT_CHANGED,
        code::SNAPSHOTS_DISABLED,
        code::SNAPSHOT_SAVE_IN_PROGRESS,
        platform_files::code::FILE_NOT_FOUND,
        Code::PAYLOAD_TOO_LARGE,
        Code::UPSTREAM_ERROR,
        Code::UPSTREAM_TIMEOUT,
        Code::VALIDATION_ERROR,
    ];
    let code = known.into_iter().find(|known| known.as_str() == code).unwrap_or(Code::SERVICE_UNAVAILABLE);
    Error::new(code, message)
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "sandbox_calls", column: "request", row: id }
}

impl PgEnvironments {
    /// Does something on a machine, whichever process has it; `user`: the chat or thread that it is for.
    pub(crate) async fn on_machine<T: DeserializeOwned>(
        self: &Arc<Self>,
        session: &SessionRow,
        user: Option<&str>,
        call: Call,
    ) -> Result<T> {
        let value = if session.owner == self.machines.owner {
            self.carry_out(&session.account(), &session.sandbox_id, user, call).await?
        } else {
            self.ask(session, user, call).await?
        };
        serde_json::from_value(value).map_err(Error::internal)
    }

    /// Asks the process that has a machine. 503 when it does not answer.
    pub(super) async fn ask(&self, row: &SessionRow, user: Option<&str>, call: Call) -> Result<Value> {
        self.ask_in_pieces::<OutputPiece>(row, user, call, None).await
    }

    /// The same, and hands on what is said on the way.
    pub(super) async fn ask_in_pieces<P: Piece>(
        &self,
        row: &SessionRow,
        user: Option<&str>,
        call: Call,
        says: Option<&mpsc::Sender<P>>,
    ) -> Result<Value> {
        let longest = match &call {
            Call::Proxy(_) => Duration::from_hours(2),
            Call::Exec { command, .. } => match command.timeout_seconds.unwrap_or(300) {
                0 => Duration::from_hours(2),
                seconds => Duration::from_secs(seconds.unsigned_abs()),
            },
            _ => Duration::ZERO,
        };
        let is_long = !longest.is_zero();
        let (account, id) = (row.account(), String::from(Id::<CallKind>::generate()));
        let mut told = self.bus.subscribe();
        let asked = Asked { sandbox: row.sandbox_id.clone(), user: user.map(str::to_owned), call };
        let asked = serde_json::to_string(&asked).map_err(Error::internal)?;
        let sealed = self.vault.seal(&place(&account, &id), &asked);
        let _waited = Waited { db: self.db.clone(), bus: self.bus.clone(), account: account.clone(), id: id.clone() };
        repository::ask(&mut *self.db.conn().await?, &account, &id, &row.owner, &sealed).await?;
        self.bus.tell(TOPIC, &row.owner).await?;
        let (begun, mut looked, mut over) = (Instant::now(), Instant::now(), None);
        let mut heard = 0;
        let answer = loop {
            let call = repository::hear(&mut *self.db.conn().await?, &account, &id).await?.unwrap_or_default();
            for piece in &call.said {
                self.hand_on(&account, &id, (piece, &mut heard), says).await?;
            }
            if let Some(answer) = call.answer {
                break answer;
            }
            let silent = || Error::unavailable("the process that has this sandbox does not answer");
            let waited = begun.elapsed();
            if (!call.taken && waited > TAKING) || waited > longest + ANSWERING {
                return Err(silent());
            }
            if looked.elapsed() > BETWEEN_SIGNS {
                looked = Instant::now();
                let mut conn = self.db.conn().await?;
                repository::wait_for(&mut conn, &account, &id).await?;
                let session = repository::find(&mut conn, &account, &row.environment_id, Some(&row.id)).await?;
                // Whoever had the machine may still say how it ended.
                let is_over = is_long && session.is_none_or(|session| session.finished_ms.is_some());
                over = over.or(is_over.then_some(looked));
                if over.is_some_and(|over| over.elapsed() > BETWEEN_SIGNS) {
                    return Err(silent());
                }
            }
            let _ = timeout(LOOK, told_of(&mut told, &id)).await;
        };
        let opened = self.vault.open(&place(&account, &id), &answer)?;
        let answer: Answer = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        answer.map_err(|(code, message)| error(&code, message))
    }

    /// What was said there, to whoever listens here.
    async fn hand_on<P: Piece>(
        &self,
        account: &AccountId,
        id: &str,
        (sealed, heard): (&str, &mut u64),
        says: Option<&mpsc::Sender<P>>,
    ) -> Result<()> {
        let Some(says) = says else { return Ok(()) };
        let opened = self.vault.open(&place(account, id), sealed)?;
        let (number, pieces): (u64, Vec<P>) = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        // What could have been stored or not was told again.
        if number < *heard {
            return Ok(());
        }
        *heard = number + 1;
        for piece in pieces {
            while let Err(_slow) = timeout(BETWEEN_SIGNS, says.reserve()).await {
                // Whoever reads slowly still waits.
                repository::wait_for(&mut *self.db.conn().await?, account, id).await?;
            }
            // Whoever asked may be gone; the command goes on.
            let _ = says.send(piece).await;
        }
        Ok(())
    }

    /// Runs a command there, to its end also when nobody listens any more.
    pub(crate) fn exec_there(
        self: &Arc<Self>,
        session: SessionRow,
        command: NewCommand,
        mode: OutputMode,
    ) -> mpsc::Receiver<OutputPiece> {
        let (says, said) = channel();
        let environments = Arc::clone(self);
        spawn("sandbox command", async move {
            let call = Call::Exec { command, worker: None, mode };
            let output = environments.ask_in_pieces(&session, None, call, Some(&says)).await;
            let output = output.and_then(|output| serde_json::from_value(output).map_err(Error::internal));
            let _ = says.send(output.map_or_else(OutputPiece::Failed, OutputPiece::Exit)).await;
        });
        said
    }

    /// Does what other processes ask of machines that are here.
    pub(super) async fn take_calls(self: &Arc<Self>) -> Result<()> {
        let calls = repository::asked(&mut *self.db.conn().await?, &self.machines.owner).await?;
        for (account, id, request) in calls {
            let account = AccountId::named(&account);
            let environments = Arc::clone(self);
            spawn("sandbox call", async move {
                if let Err(error) = environments.take_call(&account, &id, &request).await {
                    warn!(%error, "What another process asked of a sandbox could not be answered.");
                }
            });
        }
        Ok(())
    }

    async fn take_call(self: &Arc<Self>, account: &AccountId, id: &str, request: &str) -> Result<()> {
        let opened = self.vault.open(&place(account, id), request)?;
        let Asked { sandbox, user, call } = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        // A turn that is stopped wants nothing of it any more, and neither does a reader who has gone; others want it done.
        let ends_with_asker = matches!(&call, Call::Exec { worker: Some(_), .. } | Call::Proxy(_));
        let mut told = self.bus.subscribe();
        let carried_out = async {
            match call {
                Call::Exec { command, worker, mode } if mode.streams => {
                    let live = self.here(account, &sandbox)?;
                    let said = self.exec_here(&live, command, worker.as_ref(), mode.raw).await?;
                    let (output, is_heard) = self.tell(account, id, said).await?;
                    // What nobody heard is left out.
                    let output = CommandOutput { truncated: output.truncated || !is_heard, ..output };
                    serde_json::to_value(output).map_err(Error::internal)
                }
                Call::Proxy(request) => {
                    let said = self.proxy_here(&self.here(account, &sandbox)?, request, ());
                    match self.tell(account, id, said).await? {
                        ((), true) => Ok(Value::Null),
                        ((), false) => Err(Error::unavailable("what a sandbox answered was not heard to its end")),
                    }
                }
                call => self.carry_out(account, &sandbox, user.as_deref(), call).await,
            }
        };
        let carried_out = tokio::select! {
            carried_out = carried_out => carried_out,
            () = self.forgotten(account, id, &mut told), if ends_with_asker => return Ok(()),
        };
        let answer: Answer =
            carried_out.map_err(|error| (error.code().as_str().to_owned(), error.message().to_owned()));
        let answer = serde_json::to_string(&answer).map_err(Error::internal)?;
        let sealed = self.vault.seal(&place(account, id), &answer);
        repository::answer(&mut *self.db.conn().await?, account, id, &sealed).await?;
        self.bus.tell(TOPIC, id).await
    }

    /// Tells whoever asked what is said, until that has ended; what came of it, and whether all was heard.
    async fn tell<P: Piece>(
        &self,
        account: &AccountId,
        id: &str,
        mut said: mpsc::Receiver<P>,
    ) -> Result<(P::End, bool)> {
        let (mut number, mut is_heard) = (0_u64, true);
        loop {
            let (mut pieces, mut told) = (Vec::new(), Vec::new());
            said.recv_many(&mut pieces, MAX_PIECES).await;
            let mut ended = pieces.is_empty().then(|| Err(Error::unavailable("the sandbox has ended")));
            for piece in pieces {
                match P::told(piece) {
                    Ok(piece) => told.push(piece),
                    Err(end) => ended = Some(end),
                }
            }
            if is_heard && !told.is_empty() {
                let told = serde_json::to_string(&(number, told)).map_err(Error::internal)?;
                is_heard = self.is_heard(account, id, &self.vault.seal(&place(account, id), &told)).await;
                number += 1;
            }
            match ended {
                Some(ended) => return ended.map(|end| (end, is_heard)),
                None if is_heard => sleep(BATCH_WINDOW).await,
                None => {}
            }
        }
    }

    /// Tells it once there is room for it; `false` when nobody listens any more, or could not be told for long.
    async fn is_heard(&self, account: &AccountId, id: &str, piece: &str) -> bool {
        let begun = Instant::now();
        loop {
            let saying = async { repository::say(&mut *self.db.conn().await?, account, id, piece).await };
            if matches!(saying.await, Ok(true)) {
                // A hint: it is looked for all the same.
                let _ = self.bus.tell(TOPIC, id).await;
                return true;
            }
            if begun.elapsed() > ANSWERING || self.is_forgotten(account, id).await {
                return false;
            }
            sleep(BATCH_WINDOW).await;
        }
    }

    /// Waits until nobody waits for a call any more.
    async fn forgotten(&self, account: &AccountId, id: &str, told: &mut broadcast::Receiver<Notice>) {
        while !self.is_forgotten(account, id).await {
            let _ = timeout(BETWEEN_SIGNS, told_of(told, id)).await;
        }
    }

    /// Whether it is known that nobody waits for a call any more.
    async fn is_forgotten(&self, account: &AccountId, id: &str) -> bool {
        let asking = async { repository::is_waited_for(&mut *self.db.conn().await?, account, id).await };
        matches!(asking.await, Ok(false))
    }

    fn here(&self, account: &AccountId, sandbox: &str) -> Result<Arc<Live>> {
        self.machines.get(sandbox).filter(|live| live.account == *account).ok_or_else(gone)
    }

    /// Does what is asked of a machine that is here.
    async fn carry_out(
        self: &Arc<Self>,
        account: &AccountId,
        sandbox: &str,
        user: Option<&str>,
        call: Call,
    ) -> Result<Value> {
        let live = self.here(account, sandbox)?;
        if let Some(user) = user {
            live.state().users.insert(user.to_owned(), self.clock.now());
        }
        let value = match call {
            Call::Exec { command, worker, mode } => {
                let said = self.exec_here(&live, command, worker.as_ref(), mode.raw).await?;
                serde_json::to_value(whole(said).await?)
            }
            Call::Stop(request) => serde_json::to_value(self.stop_here(&live, &request).await?),
            Call::List(path) => serde_json::to_value(self.list_here(&live, &path).await?),
            Call::Read(path) => serde_json::to_value(STANDARD.encode(self.read_here(&live, &path).await?)),
            Call::Write { path, content } => {
                let content = STANDARD.decode(content).map_err(Error::internal)?;
                serde_json::to_value(self.write_here(&live, &path, content.into()).await?)
            }
            Call::Proxy(_) => return Err(Error::internal("what a sandbox serves is told in pieces")),
            Call::TakenOver => {
                self.drop_machine(&live).await;
                Ok(Value::Null)
            }
        };
        value.map_err(Error::internal)
    }
}
