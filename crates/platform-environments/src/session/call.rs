//! A machine of another process: what is asked of it goes through the database, sealed.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{AccountId, Code, Error, Id, Result, spawn};
use platform_db::Notice;
use platform_vault::SecretLocation;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::warn;

use super::{
    exec::{channel, whole},
    live::gone,
    model::{CommandOutput, NewCommand, OutputPiece, StopSandbox},
    repository::{self, SessionRow},
    service::Worker,
};
use crate::{code, environment::PgEnvironments};

/// Under which processes tell each other of calls.
pub(super) const TOPIC: &str = "sandbox";
/// In which a process that has a machine takes a call.
const TAKING: Duration = Duration::from_secs(5);
/// How often an answer is looked for that nobody told of.
const LOOK: Duration = Duration::from_millis(500);
/// Longest answer to a call, beside what a command may take.
const ANSWERING: Duration = Duration::from_mins(1);

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
        /// Masked or not.
        raw: bool,
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
    /// Be gone: another machine took its place.
    TakenOver,
}

#[derive(Serialize, Deserialize)]
struct Asked {
    sandbox: String,
    user: Option<String>,
    call: Call,
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
    pub(crate) async fn ask(&self, row: &SessionRow, user: Option<&str>, call: Call) -> Result<Value> {
        let longest = match &call {
            Call::Exec { command, .. } => match command.timeout_seconds.unwrap_or(300) {
                0 => Duration::from_hours(2),
                seconds => Duration::from_secs(seconds.unsigned_abs()),
            },
            _ => Duration::ZERO,
        };
        let (account, id) = (row.account(), String::from(Id::<CallKind>::generate()));
        let mut told = self.bus.subscribe();
        let asked = Asked { sandbox: row.sandbox_id.clone(), user: user.map(str::to_owned), call };
        let asked = serde_json::to_string(&asked).map_err(Error::internal)?;
        let sealed = self.vault.seal(&place(&account, &id), &asked);
        repository::ask(&mut *self.db.conn().await?, &account, &id, &row.owner, &sealed).await?;
        self.bus.tell(TOPIC, &row.owner).await?;
        let begun = Instant::now();
        let answered = loop {
            let (taken, answer) = repository::answered(&mut *self.db.conn().await?, &account, &id).await?;
            if let Some(answer) = answer {
                break Ok(answer);
            }
            let waited = begun.elapsed();
            if (!taken && waited > TAKING) || waited > longest + ANSWERING {
                break Err(Error::unavailable("the process that has this sandbox does not answer"));
            }
            let heard = async {
                while !matches!(told.recv().await, Ok(Notice::Changed { topic, id: of }) if topic == TOPIC && of == id)
                {
                }
            };
            let _ = timeout(LOOK, heard).await;
        };
        repository::forget(&mut *self.db.conn().await?, &account, &id).await?;
        let opened = self.vault.open(&place(&account, &id), &answered?)?;
        let answer: Answer = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        answer.map_err(|(code, message)| error(&code, message))
    }

    /// Runs a command there; what it says comes when it has ended.
    pub(crate) async fn exec_there(
        self: &Arc<Self>,
        row: &SessionRow,
        call: Call,
    ) -> Result<mpsc::Receiver<OutputPiece>> {
        let output: CommandOutput = self.on_machine(row, None, call).await?;
        let (says, said) = channel();
        let pieces = [
            Some(output.stdout.clone()).filter(|text| !text.is_empty()).map(OutputPiece::Stdout),
            Some(output.stderr.clone()).filter(|text| !text.is_empty()).map(OutputPiece::Stderr),
            Some(OutputPiece::Exit(output)),
        ];
        for piece in pieces.into_iter().flatten() {
            let _ = says.try_send(piece);
        }
        Ok(said)
    }

    /// Does what other processes ask of machines that are here.
    pub(super) async fn take_calls(self: &Arc<Self>) -> Result<()> {
        let calls = repository::asked(&mut *self.db.conn().await?, &self.machines.owner).await?;
        for (account, id, request) in calls {
            let account = AccountId::parse(&account).expect("only ids are stored");
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
        let answer: Answer = match self.carry_out(account, &sandbox, user.as_deref(), call).await {
            Ok(value) => Ok(value),
            Err(error) => Err((error.code().as_str().to_owned(), error.message().to_owned())),
        };
        let answer = serde_json::to_string(&answer).map_err(Error::internal)?;
        let sealed = self.vault.seal(&place(account, id), &answer);
        repository::answer(&mut *self.db.conn().await?, account, id, &sealed).await?;
        self.bus.tell(TOPIC, id).await
    }

    /// Does what is asked of a machine that is here.
    async fn carry_out(
        self: &Arc<Self>,
        account: &AccountId,
        sandbox: &str,
        user: Option<&str>,
        call: Call,
    ) -> Result<Value> {
        let live = self.machines.get(sandbox).filter(|live| live.account == *account).ok_or_else(gone)?;
        if let Some(user) = user {
            live.state().users.insert(user.to_owned(), self.clock.now());
        }
        let value = match call {
            Call::Exec { command, worker, raw } => {
                serde_json::to_value(whole(self.exec_here(&live, command, worker.as_ref(), raw).await?).await?)
            }
            Call::Stop(request) => serde_json::to_value(self.stop_here(&live, &request).await?),
            Call::List(path) => serde_json::to_value(self.list_here(&live, &path).await?),
            Call::Read(path) => serde_json::to_value(STANDARD.encode(self.read_here(&live, &path).await?)),
            Call::Write { path, content } => {
                let content = STANDARD.decode(content).map_err(Error::internal)?;
                serde_json::to_value(self.write_here(&live, &path, content.into()).await?)
            }
            Call::TakenOver => {
                self.drop_machine(&live).await;
                Ok(Value::Null)
            }
        };
        value.map_err(Error::internal)
    }
}
