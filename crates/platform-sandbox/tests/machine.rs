//! Machines of this host, what runs on them, and what does not get out.
//!
//! Without a harness: this program itself becomes the machines.

mod attempts;
mod machines;

use std::{
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use platform_sandbox::{Command, Disk, Machine, MachineSpec, Network, ProcessBackend, Running, SandboxBackend};
use tokio::{io::AsyncReadExt, time::timeout};

use machines::{COMMAND, egress};

fn main() -> ExitCode {
    machines::run(async || {
        let backend = backend();
        if let Err(error) = backend.runtimes().await {
            println!("not tried: {error}");
            return;
        }
        nothing_gets_out(&backend).await;
        what_is_started_dies_with_the_machine_and_takes_no_more_than_its_share(&backend).await;
        a_machine_is_made_and_runs_commands_quickly(&backend).await;
        println!("3 passed");
        if rustix::process::geteuid().is_root() {
            all_of_it_holds_for_whoever_is_not_root();
        }
    })
}

/// Where the disks of machines are, when another user tries them.
const DIR: &str = "PLATFORM_TEST_MACHINES";

fn dir() -> PathBuf {
    std::env::var_os(DIR).map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("machines"), PathBuf::from)
}

/// Runs this program once more as a user who has no rights, from a directory of theirs.
fn all_of_it_holds_for_whoever_is_not_root() {
    const NOBODY: u32 = 65_534;
    let home = std::env::temp_dir().join(format!("platform-machines-{}", std::process::id()));
    std::fs::create_dir(&home).expect("a directory");
    let program = home.join("machine");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("theirs");
    let mut again = std::process::Command::new(program);
    again.uid(NOBODY).gid(NOBODY).current_dir(&home).env(DIR, home.join("machines"));
    println!("as a user without rights:");
    let outcome = again.status();
    std::fs::remove_dir_all(home).expect("removed");
    assert!(outcome.expect("it starts").success());
}

fn backend() -> ProcessBackend {
    ProcessBackend::new(COMMAND, &dir(), egress())
}

async fn machine(backend: &ProcessBackend, id: &str, network: Network) -> Arc<dyn Machine> {
    let (id, runtime) = (id.to_owned(), "default".to_owned());
    let spec = MachineSpec { id, runtime, memory_mib: 256, cpus: 1, disk_mib: 512, network };
    backend.create(spec, Disk::Empty).await.expect("a machine")
}

/// Exit code and output of a line; a line that takes too long is killed.
async fn run(machine: &Arc<dyn Machine>, line: &str, is_root: bool) -> (i32, String) {
    let command = Command { is_root, ..Command::shell(line, []) };
    let started = match machine.start(command).await {
        // Of a machine that has one user alone.
        Err(_) if is_root => return (1, String::new()),
        started => started.expect("it starts"),
    };
    let Running { mut stdout, mut stderr, exit, kill } = started;
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let done = async {
        let reading = async {
            let _ = tokio::join!(stdout.read_to_end(&mut said), stderr.read_to_end(&mut complained));
        };
        let mut reading = std::pin::pin!(reading);
        tokio::select! {
            code = exit => {
                let _ = timeout(Duration::from_millis(200), reading).await;
                code.unwrap_or(1)
            }
            () = &mut reading => 0,
        }
    };
    let code = timeout(Duration::from_secs(20), done).await.unwrap_or_else(|_| {
        kill();
        124
    });
    said.extend(complained);
    (code, String::from_utf8_lossy(&said).into_owned())
}

/// Every attempt says `GOT` when it succeeds.
async fn nothing_gets_out(backend: &ProcessBackend) {
    let secret = dir().join("host-secret");
    std::fs::write(&secret, "canary-of-the-host").expect("written");
    // As whoever starts a platform may leave files open.
    let left_open = std::fs::File::open(&secret).expect("the secret");
    rustix::io::fcntl_setfd(&left_open, rustix::io::FdFlags::empty()).expect("left open");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (victim, attacker) =
        tokio::join!(machine(backend, "victim", Network::Nobody), machine(backend, "attacker", Network::Public));
    run(&victim, "echo canary-of-another > /workspace/secret; sleep 600 >/dev/null 2>&1 &", false).await;
    let fill = |line: &str| {
        let line = line.replace("SECRET_FILE", &secret.display().to_string());
        line.replace("HOST_PORT", &port.to_string()).replace("HOST_PID", &std::process::id().to_string())
    };
    // Of a machine that is not root's there is one user alone.
    let users: &[bool] = if rustix::process::geteuid().is_root() { &[false, true] } else { &[false] };
    let (mut kinds, mut got) = (0, Vec::new());
    // An attempt whose program is not here shows nothing.
    let mut missing = Vec::new();
    for program in attempts::PROGRAMS {
        if run(&attacker, &format!("command -v {program}"), false).await.0 != 0 {
            missing.push(*program);
        }
    }
    let is_hollow = |line: &str| line.split(|c: char| !c.is_alphanumeric()).any(|word| missing.contains(&word));
    for (what, line) in attempts::ATTEMPTS {
        if is_hollow(line) {
            println!("not tried, for want of {missing:?}: {what}");
            continue;
        }
        kinds += 1;
        for is_root in users.iter().copied() {
            let (_, said) = run(&attacker, &fill(line), is_root).await;
            if said.contains("GOT") || said.contains("canary-of") {
                got.push(format!("{what} (root: {is_root}): {said}"));
            }
        }
        let (code, said) = run(&attacker, "echo alive", false).await;
        assert_eq!((code, said.as_str()), (0, "alive\n"), "the machine after: {what}");
    }
    let tried = kinds * users.len();
    assert!(got.is_empty(), "{} of {tried} attempts got out:\n{}", got.len(), got.join("\n"));
    let listed = machine(backend, "listed", Network::Only(vec!["example.com".to_owned()])).await;
    for line in attempts::AROUND_A_LIST {
        let (_, said) = run(&listed, &fill(line), false).await;
        assert!(!said.contains("GOT"), "around the list: {line}: {said}");
    }
    listed.end().await;
    let (code, said) = run(&victim, "cat /workspace/secret; pgrep -x sleep", false).await;
    assert!(code == 0 && said.starts_with("canary-of-another\n"), "the other machine is untouched: {said}");
    assert!(listener.set_nonblocking(true).is_ok() && listener.accept().is_err(), "nobody reached the host");
    assert!(kinds >= 80 || !missing.is_empty(), "there are {kinds} kinds");
    println!("{tried} attempts of {kinds} kinds: nothing got out");
    tokio::join!(victim.end(), attacker.end());
}

async fn what_is_started_dies_with_the_machine_and_takes_no_more_than_its_share(backend: &ProcessBackend) {
    let machine = machine(backend, "greedy", Network::Nobody).await;
    let mark = format!("86400.{}", std::process::id());
    run(&machine, &format!("setsid nohup sleep {mark} >/dev/null 2>&1 & (sleep {mark} &) ; disown -a"), false).await;
    assert!(is_running(&mark), "it runs in the background");
    // On a machine of one user alone, processes without number leave none for anybody else.
    let most = if rustix::process::geteuid().is_root() { 0 } else { attempts::PROCESSES };
    for (what, line) in &attempts::GREED[most..] {
        let begun = Instant::now();
        let (_, said) = run(&machine, line, false).await;
        assert!(!said.contains("GOT"), "{what}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(40), "{what} took {:?}", begun.elapsed());
        let again = async {
            // What was killed for its greed takes a moment to go.
            while run(&machine, "true", false).await.0 != 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), again).await.unwrap_or_else(|_| panic!("the machine is lost after: {what}"));
        run(&machine, "kill -9 -1; rm -rf /workspace/* /tmp/*", false).await;
    }
    run(&machine, &format!("setsid nohup sleep {mark} >/dev/null 2>&1 &"), false).await;
    let begun = Instant::now();
    machine.end().await;
    assert!(!is_running(&mark) && begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(machine.start(Command::shell("true", [])).await.is_err(), "it has ended");
}

/// Whether a process of this host sleeps for so long.
fn is_running(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("it lists");
    processes.flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("sleep\0{mark}"))
    })
}

/// Printed, not judged: machines differ (docs/PERFORMANCE.md).
async fn a_machine_is_made_and_runs_commands_quickly(backend: &ProcessBackend) {
    let (mut made, mut ran) = (Vec::new(), Vec::new());
    for round in 0..20 {
        let begun = Instant::now();
        let machine = machine(backend, &format!("round-{round}"), Network::Public).await;
        run(&machine, "true", false).await;
        made.push(begun.elapsed());
        let begun = Instant::now();
        run(&machine, "true", false).await;
        ran.push(begun.elapsed());
        machine.end().await;
    }
    made.sort();
    ran.sort();
    println!("start to first command {:?}, a command {:?} (median of 20)", made[10], ran[10]);
}
