//! The machines of this process.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use platform_core::{AccountId, Code, Error, Id, Result, Timestamp, run_blocking};
use platform_sandbox::{Machine, SandboxError};
use platform_vault::Secret;
use tokio::sync::Semaphore;

use super::repository::SessionRow;
use crate::{
    code,
    environment::{SandboxConfig, Variables},
    redact::Redactor,
};

/// Commands of one machine at once.
const MAX_COMMANDS: usize = 32;
/// Bytes of values that the output of one machine must not show.
const MAX_SECRETS: usize = 16 << 20;
/// Where commands begin.
pub(crate) const HOME: &str = "/workspace";

enum ProcessKind {}

/// The machines of this process, and room for more.
pub(crate) struct Machines {
    /// Name of this process among those that share the database.
    pub owner: String,
    most: usize,
    live: Mutex<HashMap<String, Arc<Live>>>,
    /// The machines that there are or will be.
    slots: Arc<Mutex<Slots>>,
    /// The process ends: what others left is for others.
    pub closing: AtomicBool,
}

#[derive(Default)]
struct Slots {
    /// How many each account has.
    of: HashMap<AccountId, usize>,
    /// Sessions of this process: what is none of these has no machine.
    sessions: HashSet<String>,
}

/// Room for the machine of a session.
pub(crate) struct MachineSlot {
    of: Arc<Mutex<Slots>>,
    account: AccountId,
    session: String,
}

impl Drop for MachineSlot {
    fn drop(&mut self) {
        let mut slots = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        slots.sessions.remove(&self.session);
        if let Some(count) = slots.of.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                slots.of.remove(&self.account);
            }
        }
    }
}

impl Machines {
    /// Room for so many at once.
    pub fn new(most: usize) -> Self {
        let (owner, closing) = (Id::<ProcessKind>::generate().into(), AtomicBool::new(false));
        Self { owner, most, live: Mutex::default(), slots: Arc::default(), closing }
    }

    /// Room for one more; an account leaves a quarter of it to others.
    pub fn reserve(&self, account: &AccountId, session: &str) -> Option<MachineSlot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (slots.of.values().sum::<usize>(), slots.of.get(account).copied().unwrap_or(0));
        let share = (self.most * 3).div_ceil(4);
        let is_full = self.most > 0 && (all >= self.most || own >= share);
        (!is_full).then(|| self.take(&mut slots, account, session))
    }

    /// A slot for one that is there already, however many there are: its disk, of which nothing runs any more.
    pub fn slot(&self, account: &AccountId, session: &str) -> MachineSlot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        self.take(&mut slots, account, session)
    }

    fn take(&self, slots: &mut Slots, account: &AccountId, session: &str) -> MachineSlot {
        *slots.of.entry(account.clone()).or_default() += 1;
        slots.sessions.insert(session.to_owned());
        MachineSlot { of: Arc::clone(&self.slots), account: account.clone(), session: session.to_owned() }
    }

    /// Sessions whose machine is here, or is being made or ended here.
    pub fn sessions(&self) -> Vec<String> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).sessions.iter().cloned().collect()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, live: &Arc<Live>) {
        self.live().insert(live.session.sandbox_id.clone(), Arc::clone(live));
    }

    pub fn remove(&self, sandbox: &str) {
        self.live().remove(sandbox);
    }

    pub fn get(&self, sandbox: &str) -> Option<Arc<Live>> {
        self.live().get(sandbox).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Live>> {
        self.live().values().cloned().collect()
    }
}

/// A machine that runs here.
pub(crate) struct Live {
    pub account: AccountId,
    /// As it was when it was started.
    pub session: SessionRow,
    pub config: SandboxConfig,
    pub machine: Arc<dyn Machine>,
    /// How long it is given at a time.
    pub term_ms: i64,
    pub commands: Semaphore,
    pub state: Mutex<LiveState>,
    /// All values that were ever given to it, by name.
    secrets: tokio::sync::Mutex<BTreeSet<(String, String)>>,
    /// It is being ended.
    pub ending: AtomicBool,
    /// Its disk is being measured.
    pub measuring: AtomicBool,
    /// Bytes that were on it then.
    pub disk_bytes: AtomicU64,
    _slot: MachineSlot,
}

/// What changes of it.
pub(crate) struct LiveState {
    /// Where the last command ended.
    pub cwd: String,
    pub expires: Timestamp,
    /// Commands and file calls under way.
    pub running: usize,
    pub used: Timestamp,
    /// Since when there is too much on its disk.
    pub over_since: Option<Timestamp>,
    /// Variables of every command.
    pub variables: Variables,
    pub redactor: Redactor,
    /// Chats and threads that use it, and when each did last.
    pub users: HashMap<String, Timestamp>,
}

impl Live {
    pub fn new(
        account: AccountId,
        session: SessionRow,
        config: SandboxConfig,
        machine: Arc<dyn Machine>,
        variables: Variables,
        slot: MachineSlot,
    ) -> Arc<Self> {
        let started = Timestamp(session.started_ms);
        let state = LiveState {
            cwd: HOME.to_owned(),
            // Its time has not begun.
            expires: Timestamp(i64::MAX),
            running: 0,
            used: started,
            over_since: None,
            redactor: Redactor::default(),
            variables: Variables::new(),
            users: HashMap::new(),
        };
        let term_ms = session.expires_ms - session.started_ms;
        let commands = Semaphore::new(MAX_COMMANDS);
        let (state, secrets) = (Mutex::new(state), tokio::sync::Mutex::default());
        let (ending, measuring) = (AtomicBool::new(false), AtomicBool::new(false));
        let live = Self {
            account,
            session,
            config,
            machine,
            term_ms,
            commands,
            state,
            secrets,
            ending,
            measuring,
            disk_bytes: AtomicU64::new(0),
            _slot: slot,
        };
        live.state().variables = variables;
        Arc::new(live)
    }

    /// Its time begins; when it ends.
    pub fn begin_term(&self, now: Timestamp) -> Timestamp {
        let expires = Timestamp(now.0 + self.term_ms);
        self.state().expires = expires;
        expires
    }

    pub fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these values are masked, too, beside the variables of every command.
    pub async fn learn<'a>(&self, variables: impl IntoIterator<Item = (&'a String, &'a Secret)>) -> Result<Redactor> {
        // Whoever comes meanwhile masks what is being learnt.
        let mut known = self.secrets.lock().await;
        let mut secrets = known.clone();
        let of_all = self.state().variables.clone();
        let plain = |(name, value): (&String, &Secret)| (name.clone(), value.expose().to_owned());
        secrets.extend(of_all.iter().map(plain));
        secrets.extend(variables.into_iter().map(plain));
        if secrets.len() == known.len() {
            return Ok(self.state().redactor.clone());
        }
        if secrets.iter().map(|(_, value)| value.len()).sum::<usize>() > MAX_SECRETS {
            let message = format!(
                "This sandbox was given more than {MAX_SECRETS} bytes of values that its output must not show; \
                 start another one."
            );
            return Err(Error::new(Code::CONFLICT, message));
        }
        let (redactor, secrets) = run_blocking(move || {
            let redactor = Redactor::new(secrets.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            Ok((redactor, secrets))
        })
        .await?;
        *known = secrets;
        self.state().redactor = redactor.clone();
        Ok(redactor)
    }

    /// Somebody uses it until what is given is dropped.
    pub fn using(self: &Arc<Self>, now: Timestamp) -> Using {
        let mut state = self.state();
        state.running += 1;
        state.used = now;
        drop(state);
        Using(Arc::clone(self))
    }

    /// Whether whoever asks is the one who ends it.
    pub fn begin_end(&self) -> bool {
        !self.ending.swap(true, Ordering::AcqRel)
    }
}

/// A use of a machine that is under way.
pub(crate) struct Using(Arc<Live>);

impl Drop for Using {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

/// As an error of a request.
pub(crate) fn failed(error: SandboxError) -> Error {
    match error {
        SandboxError::Unavailable(reason) => Error::new(code::SANDBOX_UNAVAILABLE, reason),
        SandboxError::NoRuntime { runtime, available } => {
            let message = format!("{runtime} is not on this machine; there are {}.", available.join(", "));
            Error::new(code::SANDBOX_UNAVAILABLE, message).with("runtime", runtime).with("available", available)
        }
        SandboxError::NobodyListens(port) => {
            let message = format!("No program listens on port {port} of the sandbox.");
            Error::new(Code::UPSTREAM_ERROR, message)
        }
        SandboxError::Ended => gone(),
        SandboxError::Failed(reason) => Error::new(code::SANDBOX_UNAVAILABLE, format!("The sandbox failed: {reason}.")),
    }
}

pub(crate) fn gone() -> Error {
    let message = "There is no such sandbox in this environment, or it has ended; start one.";
    Error::new(code::SANDBOX_NOT_FOUND, message)
}
