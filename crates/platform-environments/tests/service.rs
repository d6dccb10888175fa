//! How long machines live, through the traits, on a real PostgreSQL, with a clock that is moved by hand and machines that
//! are processes of this host.

use std::{
    collections::HashMap,
    io,
    net::Ipv4Addr,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use platform_access::Referrers;
use platform_child::Children;
use platform_core::{AccountId, Caller, Clock, FieldLimits, Id, Object, Result, SystemClock, Timestamp, spawn};
use platform_db::Bus;
use platform_egress::{Egress, EgressRules};
use platform_environments::{
    Environment, EnvironmentNeeds, EnvironmentService, EnvironmentSettings, NewCommand, OutputMode, PgEnvironments,
    SandboxConfig, SandboxService, SandboxSession, SandboxSettings, SnapshotService, StartSandbox, sandbox_tools,
    whole,
};
use platform_files::Store;
use platform_runtime::{
    BuiltInTools, ChatStates, ChildPool, SANDBOX_TOOLS, ThreadStates, ToolSource, ToolTurn, TurnScope,
};
use platform_sandbox::{Command, Disk, Isolation, Machine, MachineSpec, Room, Running, SandboxBackend, SandboxError};
use platform_testing::{TestClock, TestDb, eventually, full_caller};
use platform_vault::{MasterKey, Vault};
use serde_json::Value;
use tokio::{net::TcpStream, sync::watch};

const MINUTE_MS: i64 = 60_000;
/// Longest call of a tool.
const LONGEST: Duration = Duration::from_mins(1);

/// The disks of all machines.
#[derive(Default)]
struct Disks {
    bytes: AtomicU64,
    /// Those of a machine that has others, by its id.
    of: Mutex<HashMap<String, u64>>,
    /// Bytes that there are for all; 0 = without end.
    capacity: AtomicU64,
    /// How often somebody wanted to know of that.
    looked: AtomicUsize,
    /// How often one was measured.
    measured: AtomicUsize,
}

#[derive(Default)]
struct Host(Arc<Disks>);

struct OnHost {
    id: String,
    disks: Arc<Disks>,
    ended: watch::Sender<bool>,
}

#[async_trait]
impl SandboxBackend for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn isolation(&self) -> Isolation {
        Isolation::None
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        Ok(vec!["default".to_owned()])
    }

    async fn room(&self) -> Option<Room> {
        self.0.looked.fetch_add(1, Ordering::Relaxed);
        let taken: u64 = self.0.of.lock().expect("lock").values().sum();
        let capacity = self.0.capacity.load(Ordering::Relaxed);
        (capacity > 0).then(|| Room { free: capacity.saturating_sub(taken), least: 1 << 30 })
    }

    async fn create(&self, spec: MachineSpec, _: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        Ok(Arc::new(OnHost { id: spec.id, disks: Arc::clone(&self.0), ended: watch::Sender::new(false) }))
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        self.disks.of.lock().expect("lock").remove(&self.id);
    }
}

#[async_trait]
impl Machine for OnHost {
    fn variables(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    async fn start(&self, command: Command) -> Result<Running, SandboxError> {
        let [program, arguments @ ..] = &command.argv[..] else { return Err(SandboxError::Ended) };
        let mut running = tokio::process::Command::new(program);
        running.args(arguments).envs(command.variables).kill_on_drop(true);
        running.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = running.spawn()?;
        let (stdout, stderr) = child.stdout.take().zip(child.stderr.take()).ok_or(SandboxError::Ended)?;
        let mut ended = self.ended.subscribe();
        let exit = async move {
            tokio::select! {
                status = child.wait() => Ok(status?.code().unwrap_or(137)),
                _ = ended.wait_for(|ended| *ended) => Err(SandboxError::Ended),
            }
        };
        Ok(Running { stdout: Box::new(stdout), stderr: Box::new(stderr), exit: exit.boxed(), kill: Arc::new(|| ()) })
    }

    async fn connect(&self, port: u16) -> Result<TcpStream, SandboxError> {
        Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?)
    }

    async fn disk_bytes(&self) -> Result<u64, SandboxError> {
        self.disks.measured.fetch_add(1, Ordering::Relaxed);
        let own = self.disks.of.lock().expect("lock").get(&self.id).copied();
        Ok(own.unwrap_or_else(|| self.disks.bytes.load(Ordering::Relaxed)))
    }

    async fn end(&self) {
        self.ended.send_replace(true);
    }

    async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    async fn save(&self, _: Box<dyn io::Write + Send>) -> Result<(), SandboxError> {
        Ok(())
    }
}

/// Chats and threads, as they are said to be.
#[derive(Default)]
struct Conversations {
    busy_chats: Mutex<Vec<String>>,
    /// Whether they are over.
    threads: Mutex<HashMap<String, bool>>,
    /// How often somebody wanted to know of chats.
    asked: AtomicUsize,
}

#[async_trait]
impl ChatStates for Conversations {
    async fn busy(&self, _: &AccountId, _: &[String]) -> Result<Vec<String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.busy_chats.lock().expect("lock").clone())
    }
}

#[async_trait]
impl ThreadStates for Conversations {
    async fn are_over(&self, _: &AccountId, _: &[String]) -> Result<HashMap<String, bool>> {
        Ok(self.threads.lock().expect("lock").clone())
    }
}

struct Fixture {
    clock: Arc<TestClock>,
    disks: Arc<Disks>,
    conversations: Arc<Conversations>,
    environments: Arc<PgEnvironments>,
    tools: BuiltInTools,
    caller: Caller,
    _db: TestDb,
}

impl Fixture {
    async fn new() -> Self {
        let test = TestDb::new().await;
        let clock = Arc::new(TestClock::at(SystemClock.now()));
        let (host, conversations) = (Host::default(), Arc::new(Conversations::default()));
        let disks = Arc::clone(&host.0);
        let environments = PgEnvironments::new(EnvironmentNeeds {
            db: test.connect(),
            bus: Bus::local(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            vault: Arc::new(Vault::new(MasterKey::generate(), Vec::new())),
            store: Store::in_memory(),
            egress: Egress::new(EgressRules::default()).expect("a client"),
            backend: Arc::new(host),
            threads: Arc::clone(&conversations) as Arc<dyn ThreadStates>,
            chats: Arc::clone(&conversations) as Arc<dyn ChatStates>,
            referrers: Referrers::new([]),
            limits: FieldLimits::default(),
            settings: SandboxSettings { most: 10, output_bytes: 1 << 20, runtimes: Vec::new(), public: None },
        });
        spawn("sandboxes", Arc::clone(&environments).keep());
        let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
        let tools = BuiltInTools::new(vec![sandbox_tools(&environments)], children);
        Self { clock, disks, conversations, environments, tools, caller: full_caller(), _db: test }
    }

    async fn environment(&self, config: SandboxConfig) -> Id<Environment> {
        let settings =
            EnvironmentSettings { name: "e".to_owned(), sandbox_config: config, ..EnvironmentSettings::default() };
        let made = self.environments.create(&self.caller.account, settings, None).await.expect("made");
        Id::named(&made.id)
    }

    async fn start(&self, environment: &Id<Environment>, timeout_minutes: i64) -> String {
        let request = StartSandbox { timeout_minutes: Some(timeout_minutes), ..StartSandbox::default() };
        let started = Arc::clone(&self.environments).start(&self.caller, environment, request).await;
        started.expect("started").sandbox_id
    }

    /// What a chat or thread is told that runs a command.
    async fn run(&self, environment: &Id<Environment>, conversation: &str) -> Value {
        let scope = Arc::new(TurnScope {
            conversation: conversation.to_owned(),
            environment: Some(environment.to_string()),
            worker: Some(("assistant", "a".to_owned())),
            ..TurnScope::default()
        });
        let turn = ToolTurn { scope: &scope, timeout: LONGEST, callbacks: None };
        let tools =
            self.tools.tools(&self.caller.account, SANDBOX_TOOLS, &turn).await.expect("tools").expect("a group");
        let tool = tools.iter().find(|tool| tool.tool.name == "run_command").expect("the tool");
        let arguments =
            Object::from_iter([("command".to_owned(), "echo hi".into()), ("cwd".to_owned(), "/tmp".into())]);
        let said = tool.action.call("call", arguments).await.text;
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"))
    }

    async fn session(&self, environment: &Id<Environment>) -> SandboxSession {
        Arc::clone(&self.environments).session(&self.caller.account, environment, None).await.expect("a session")
    }

    /// How the last session ended, once it has.
    async fn ended(&self, environment: &Id<Environment>) -> (String, String) {
        eventually("the session ends", async || {
            let session = self.session(environment).await;
            session.finished_timestamp_ms?;
            Some((session.status, session.stopped_reason.unwrap_or_default()))
        })
        .await
    }
}

/// Waits until something was done twice more.
async fn twice_more(times: &AtomicUsize) {
    let before = times.load(Ordering::Relaxed);
    eventually("it is done twice more", async || (times.load(Ordering::Relaxed) >= before + 2).then_some(())).await;
}

fn how(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_machine_of_a_chat_ends_ten_minutes_after_its_last_turn_and_that_of_a_thread_with_it() {
    let fixture = Fixture::new().await;
    let Conversations { busy_chats, threads, asked } = &*fixture.conversations;
    let of_chat = fixture.environment(SandboxConfig { auto_extend: true, ..SandboxConfig::default() }).await;
    let of_thread = fixture.environment(SandboxConfig { auto_restart: false, ..SandboxConfig::default() }).await;
    threads.lock().expect("lock").insert("thread".to_owned(), false);
    assert_eq!(fixture.run(&of_chat, "chat").await["stdout"], "hi\n");
    assert_eq!(fixture.run(&of_thread, "thread").await["stdout"], "hi\n");

    // A turn waits for somebody.
    busy_chats.lock().expect("lock").push("chat".to_owned());
    fixture.clock.advance_ms(11 * MINUTE_MS);
    twice_more(asked).await;
    busy_chats.lock().expect("lock").clear();
    fixture.clock.advance_ms(9 * MINUTE_MS);
    twice_more(asked).await;
    assert_eq!(fixture.session(&of_chat).await.status, "running");
    fixture.clock.advance_ms(2 * MINUTE_MS);
    assert_eq!(fixture.ended(&of_chat).await, how("stopped", "api"));

    assert_eq!(fixture.session(&of_thread).await.status, "running");
    threads.lock().expect("lock").insert("thread".to_owned(), true);
    assert_eq!(fixture.ended(&of_thread).await, how("stopped", "api"));
    // Whoever had one gets another, unless none is to be started again.
    assert_eq!(fixture.run(&of_chat, "chat").await["stdout"], "hi\n");
    assert_eq!(fixture.run(&of_thread, "thread").await["error"], "SANDBOX_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_in_use_gets_more_time_until_it_is_two_hours_old() {
    let fixture = Fixture::new().await;
    let environment = fixture.environment(SandboxConfig { auto_extend: true, ..SandboxConfig::default() }).await;
    let sandbox = fixture.start(&environment, 30).await;
    let command = NewCommand {
        sandbox_id: sandbox,
        command: "sleep 1000".to_owned(),
        cwd: Some("/tmp".to_owned()),
        timeout_seconds: Some(0),
        ..NewCommand::default()
    };
    let said =
        Arc::clone(&fixture.environments).exec(&fixture.caller, &environment, command, OutputMode::default()).await;
    let began = fixture.session(&environment).await.started_timestamp_ms.0;
    for half_hours in 1..4 {
        fixture.clock.advance_ms(began + half_hours * 30 * MINUTE_MS - 10_000 - fixture.clock.now().0);
        let wanted = Timestamp(began + (half_hours + 1) * 30 * MINUTE_MS);
        eventually("more time", async || (fixture.session(&environment).await.expires_at == wanted).then_some(()))
            .await;
    }
    fixture.clock.advance_ms(31 * MINUTE_MS);
    assert_eq!(fixture.ended(&environment).await, how("expired", "expired"));
    let output = whole(said.expect("it runs")).await.expect("it ends with its machine");
    assert_eq!(output.exit_code, 137);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_too_full_for_a_minute_ends_its_machine_and_what_is_on_it_is_saved() {
    let fixture = Fixture::new().await;
    let config = SandboxConfig {
        disk_mib: 512,
        snapshot_enabled: true,
        replace_snapshot_on_stop: Some(true),
        ..SandboxConfig::default()
    };
    let environment = fixture.environment(config).await;
    fixture.start(&environment, 10).await;
    for mib in [520, 500, 520] {
        fixture.disks.bytes.store(mib << 20, Ordering::Relaxed);
        twice_more(&fixture.disks.measured).await;
        fixture.clock.advance_ms(50_000);
        twice_more(&fixture.disks.measured).await;
        assert_eq!(fixture.session(&environment).await.status, "running", "not for a minute without a break");
    }
    fixture.clock.advance_ms(11_000);
    assert_eq!(fixture.ended(&environment).await, how("stopped", "disk-limit"));
    let snapshots = fixture.environments.snapshots(&fixture.caller.account, &environment).await.expect("a list");
    assert_eq!(snapshots.iter().map(|snapshot| &*snapshot.status).collect::<Vec<_>>(), ["ready"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_there_is_hardly_room_for_all_the_largest_machine_ends_alone_and_none_is_started() {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let fixture = Fixture::new().await;
    let kept =
        SandboxConfig { snapshot_enabled: true, replace_snapshot_on_stop: Some(true), ..SandboxConfig::default() };
    let (small, large) = (fixture.environment(kept.clone()).await, fixture.environment(kept).await);
    let disks = &fixture.disks;
    let (of_small, of_large) = (fixture.start(&small, 10).await, fixture.start(&large, 10).await);
    let has = |sandbox: &str, mib: u64| disks.of.lock().expect("lock").insert(sandbox.to_owned(), mib * MIB);
    has(&of_small, 100);
    disks.capacity.store(GIB + 800 * MIB, Ordering::Relaxed);
    has(&of_large, 750);
    assert_eq!(fixture.ended(&large).await, how("stopped", "disk-limit"));
    let saved = async |of| fixture.environments.snapshots(&fixture.caller.account, of).await.expect("a list").len();
    assert_eq!(saved(&large).await, 0, "what takes more than half of what is left is not saved beside itself");
    assert!(fixture.session(&large).await.error.expect("why").contains("nearly full"));
    twice_more(&disks.measured).await;
    assert_eq!(fixture.session(&small).await.status, "running");
    // Where others fill the disk, the end of what is small would help nobody.
    disks.capacity.store(MIB, Ordering::Relaxed);
    twice_more(&disks.looked).await;
    assert_eq!(fixture.session(&small).await.status, "running");
    let start = async |environment| {
        Arc::clone(&fixture.environments).start(&fixture.caller, environment, StartSandbox::default()).await
    };
    assert_eq!(start(&small).await.expect_err("one runs").code().as_str(), "SESSION_ACTIVE");
    assert_eq!(start(&large).await.expect_err("no room").code().as_str(), "SANDBOX_UNAVAILABLE");
    disks.capacity.store(GIB + 50 * MIB, Ordering::Relaxed);
    assert_eq!(fixture.ended(&small).await, how("stopped", "disk-limit"));
    assert_eq!(saved(&small).await, 1);
    disks.capacity.store(2 * GIB, Ordering::Relaxed);
    assert!(start(&large).await.is_ok(), "there is room again");
}
