//! Machines that a container engine makes, what runs on them, and what does not get out.
//!
//! Without a harness: this program itself listens in their network. Where no engine is named (`PLATFORM_TEST_ENGINE`: its
//! socket, `PLATFORM_TEST_IMAGE`: an image with bash in it) a fake of its API takes its place, and what only a real one
//! shows is left out.

#[expect(dead_code, reason = "greed is tried on machines of this host")]
mod attempts;
mod fake_engine;
mod machines;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use platform_sandbox::{
    Command, ContainerBackend, Disk, Machine, MachineSpec, Network, ProcessBackend, Running, SandboxBackend,
    SandboxError,
};
use serde_json::json;
use tokio::{io::AsyncReadExt, time::timeout};

use fake_engine::{Captured, FakeEngine};
use machines::{COMMAND, egress};

fn main() -> ExitCode {
    machines::run(async || {
        #[expect(clippy::disallowed_methods, reason = "a setting of this test alone")]
        let setting = |name: &str| std::env::var(name).ok();
        if let Some((socket, image)) = setting("PLATFORM_TEST_ENGINE").zip(setting("PLATFORM_TEST_IMAGE")) {
            let (backend, crashing) = (backend(Path::new(&socket), &image), backend(Path::new(&socket), &image));
            commands_run_write_and_are_killed(&backend, true).await;
            a_disk_that_was_saved_is_there_on_another_machine(&backend).await;
            a_disk_that_a_process_left_is_saved_by_another_and_what_nobody_wants_goes(&backend, crashing).await;
            nobody_is_reached_who_must_not_be(&backend).await;
            nothing_gets_out(&backend).await;
            println!("5 passed");
            return;
        }
        let host = ProcessBackend::new(COMMAND, &dir(), egress());
        if let Err(error) = host.runtimes().await {
            println!("not tried: {error}");
            return;
        }
        let socket = dir().join("engine.sock");
        let engine = FakeEngine::start(host, &socket);
        let (backend, crashing) = (backend(&socket, "image"), backend(&socket, "image"));
        commands_run_write_and_are_killed(&backend, false).await;
        a_disk_that_was_saved_is_there_on_another_machine(&backend).await;
        a_disk_that_a_process_left_is_saved_by_another_and_what_nobody_wants_goes(&backend, crashing).await;
        containers_are_made_with_few_rights_and_bounds(&backend, &engine).await;
        println!("4 passed, with a fake of a container engine");
    })
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("containers")
}

fn backend(socket: &Path, image: &str) -> ContainerBackend {
    let images = [("default", image), ("absent", fake_engine::ABSENT)];
    let images = images.map(|(name, image)| (name.to_owned(), image.to_owned())).into();
    ContainerBackend::new(COMMAND, &dir(), socket, images, egress())
}

fn spec(id: &str, network: Network) -> MachineSpec {
    let id = format!("{id}-{}", std::process::id());
    MachineSpec { id, runtime: "default".to_owned(), memory_mib: 256, cpus: 1, disk_mib: 512, network }
}

async fn machine(backend: &ContainerBackend, id: &str, network: Network, disk: Disk) -> Arc<dyn Machine> {
    backend.create(spec(id, network), disk).await.expect("a machine")
}

/// Exit code and output of a command; one that takes too long is killed.
async fn run(machine: &Arc<dyn Machine>, command: Command, longest: Duration) -> (i32, String) {
    let Running { mut stdout, mut stderr, exit, kill } = machine.start(command).await.expect("it starts");
    let mut all = Box::pin(async move {
        let (mut said, mut complained) = (Vec::new(), Vec::new());
        let (_, _, code) = tokio::join!(stdout.read_to_end(&mut said), stderr.read_to_end(&mut complained), exit);
        said.extend(complained);
        (code.expect("a code"), String::from_utf8_lossy(&said).into_owned())
    });
    if let Ok(done) = timeout(longest, &mut all).await {
        return done;
    }
    kill();
    timeout(Duration::from_secs(10), all).await.expect("it dies")
}

async fn line(machine: &Arc<dyn Machine>, line: &str) -> (i32, String) {
    run(machine, Command::shell(line, []), Duration::from_secs(20)).await
}

async fn commands_run_write_and_are_killed(backend: &ContainerBackend, has_root: bool) {
    let begun = Instant::now();
    let machine = machine(backend, "runs", Network::Nobody, Disk::Empty).await;
    println!("a machine after {:?}", begun.elapsed());
    let (code, said) = line(&machine, "echo out; echo err >&2; id -u; pwd; echo $HOME; exit 3").await;
    assert_eq!((code, said.as_str()), (3, "out\n1000\n/workspace\n/workspace\nerr\n"));
    let begun = Instant::now();
    assert_eq!(line(&machine, "true").await.0, 0);
    println!("a command after {:?}", begun.elapsed());
    let first = if has_root { 0 } else { 1000 };
    let secret = Command {
        variables: vec![("TOKEN".to_owned(), "a b\"c".to_owned())],
        input: "what it reads".into(),
        is_root: true,
        ..Command::shell("id -u; echo \"$TOKEN\"; cat", [])
    };
    assert_eq!(run(&machine, secret, Duration::from_secs(20)).await, (0, format!("{first}\na b\"c\nwhat it reads")));
    assert_eq!(line(&machine, "nothing-of-this-name").await.0, 127);
    let begun = Instant::now();
    let (code, _) = run(&machine, Command::shell("sleep 600 & sleep 600", []), Duration::from_secs(1)).await;
    assert!(code == 137 && begun.elapsed() < Duration::from_secs(8), "{code} {:?}", begun.elapsed());
    let left = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c '^sleep'";
    assert_eq!(line(&machine, left).await.1, "0\n", "what it started is dead, too");
    assert!(line(&machine, "head -c 2000000 /dev/zero | tr '\\0' x").await.1.len() == 2_000_000);
    line(&machine, "head -c 20000000 /dev/urandom > /workspace/big").await;
    assert!(machine.disk_bytes().await.expect("a number") >= 20_000_000);
    let sleeping = machine.start(Command::shell("sleep 600", [])).await.expect("it starts");
    let begun = Instant::now();
    machine.end().await;
    assert!(!matches!(sleeping.exit.await, Ok(0)) && begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(machine.start(Command::shell("true", [])).await.is_err(), "it has ended");
}

async fn saved(machine: &Arc<dyn Machine>) -> Vec<u8> {
    let kept = Captured::default();
    machine.end().await;
    machine.save(Box::new(kept.clone())).await.expect("it is saved");
    kept.0.lock().expect("lock").clone()
}

async fn a_disk_that_was_saved_is_there_on_another_machine(backend: &ContainerBackend) {
    let first = machine(backend, "first", Network::Nobody, Disk::Empty).await;
    let write =
        "mkdir -p a/b && echo hello > a/b/file && ln -s b/file a/link && ln a/b/file a/twin && chmod 700 a/b/file
        mkfifo a/pipe; echo tmp > /tmp/kept";
    assert_eq!(line(&first, write).await, (0, String::new()));
    let root = Command { is_root: true, ..Command::shell("echo root > /workspace/of-root", []) };
    run(&first, root, Duration::from_secs(20)).await;
    let archive = saved(&first).await;
    let second =
        machine(backend, "second", Network::Nobody, Disk::Archive(Box::new(std::io::Cursor::new(archive.clone()))))
            .await;
    let read = "cat a/link a/twin /tmp/kept of-root; stat -c '%a %u' a/b/file of-root; ls a; echo more >> a/b/file && cat a/twin";
    let (code, said) = line(&second, read).await;
    assert_eq!((code, said.as_str()), (0, "hello\nhello\ntmp\nroot\n700 1000\n664 1000\nb\nlink\ntwin\nhello\nmore\n"));
    line(&second, "echo hello > a/b/file").await;
    let third =
        machine(backend, "third", Network::Nobody, Disk::Archive(Box::new(std::io::Cursor::new(archive.clone()))))
            .await;
    assert!(saved(&third).await == archive, "the same disk gives the same bytes");
}

async fn a_disk_that_a_process_left_is_saved_by_another_and_what_nobody_wants_goes(
    backend: &ContainerBackend,
    crashing: ContainerBackend,
) {
    let [wanted, unwanted] = ["wanted", "unwanted"].map(|id| spec(id, Network::Nobody).id);
    for id in ["wanted", "unwanted"] {
        let machine = machine(&crashing, id, Network::Nobody, Disk::Empty).await;
        assert_eq!(line(&machine, "echo kept > file").await.0, 0);
        std::mem::forget(machine);
    }
    backend.clear(&HashSet::new()).await;
    assert!(backend.adopt(&wanted).await.is_none(), "its process lives");
    drop(crashing);
    backend.clear(&HashSet::from([wanted.clone()])).await;
    assert!(backend.adopt(&unwanted).await.is_none(), "it is removed");
    let archive = saved(&backend.adopt(&wanted).await.expect("it is there")).await;
    let next = machine(backend, "next", Network::Nobody, Disk::Archive(Box::new(std::io::Cursor::new(archive)))).await;
    assert_eq!(line(&next, "cat file").await, (0, "kept\n".to_owned()));
}

async fn containers_are_made_with_few_rights_and_bounds(backend: &ContainerBackend, engine: &FakeEngine) {
    let machine = machine(backend, "bounded", Network::Nobody, Disk::Empty).await;
    let mut created = engine.created().into_iter();
    let created = created.find(|of| of["Name"].to_string().contains("bounded"));
    let host = created.expect("it was made")["HostConfig"].clone();
    assert_eq!(
        (&host["CapDrop"], &host["NetworkMode"], &host["PidsLimit"]),
        (&json!(["ALL"]), &json!("none"), &json!(512))
    );
    assert_eq!(
        (&host["Memory"], &host["MemorySwap"], &host["CpuQuota"]),
        (&json!(256 << 20), &json!(256 << 20), &json!(100_000))
    );
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    engine.refuse_to_kill();
    let ended = timeout(Duration::from_secs(3), machine.end()).await;
    ended.expect("what its first process reads has ended, whatever the engine does");
    drop(machine);
    let removed = timeout(Duration::from_secs(10), engine.removed("bounded")).await;
    removed.expect("it goes with whoever had it");
    // The numbers of processes of an engine elsewhere are not those of this host.
    let refused = backend.create(spec("open", Network::Public), Disk::Empty).await.err().expect("refused");
    assert!(matches!(&refused, SandboxError::Unavailable(reason) if reason.contains("deny-all")), "{refused}");
    let absent = MachineSpec { runtime: "absent".to_owned(), ..spec("absent", Network::Nobody) };
    let refused = backend.create(absent, Disk::Empty).await.err().expect("refused");
    assert!(matches!(&refused, SandboxError::Unavailable(reason) if reason.contains("who are you?")), "{refused}");
    let unknown = MachineSpec { runtime: "cobol".to_owned(), ..spec("unknown", Network::Nobody) };
    let refused = backend.create(unknown, Disk::Empty).await.err().expect("refused");
    assert_eq!(refused.to_string(), "cobol is not on this machine; there are default, absent");
    let nobody = ContainerBackend::new(COMMAND, &dir(), Path::new("/nowhere"), Vec::new(), egress());
    assert!(nobody.runtimes().await.expect_err("none").to_string().contains("PLATFORM_SANDBOX_SOCKET"));
}

/// What is a container's own, so that it may: its root, its users, and what its engine lets everybody do.
const OWN: [&str; 13] = [
    "climbing",
    "the host's users",
    "the host's home",
    "the host's data",
    "writing to programs",
    "writing to the root",
    "replacing resolv.conf",
    "a hard link to a program with rights",
    "programs with rights: su",
    "capabilities",
    "kernel symbols",
    "a user namespace",
    "sockets to other machines' hosts",
];

/// Every attempt says `GOT` when it succeeds.
async fn nothing_gets_out(backend: &ContainerBackend) {
    let secret = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-secret");
    std::fs::write(&secret, "canary-of-the-host").expect("written");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let machine = machine(backend, "attacker", Network::Public, Disk::Empty).await;
    let (mut tried, mut got) = (0, Vec::new());
    for (what, line) in attempts::ATTEMPTS.iter().filter(|(what, _)| OWN.iter().all(|own| !what.starts_with(own))) {
        let line = line.replace("SECRET_FILE", &secret.display().to_string());
        let line = line.replace("HOST_PORT", &port.to_string()).replace("HOST_PID", &std::process::id().to_string());
        for is_root in [false, true] {
            let command = Command { is_root, ..Command::shell(&line, []) };
            let (_, said) = run(&machine, command, Duration::from_secs(20)).await;
            if said.contains("GOT") || said.contains("canary-of") {
                got.push(format!("{what} (root: {is_root}): {said}"));
            }
            tried += 1;
        }
    }
    assert!(got.is_empty(), "{} of {tried} attempts got out:\n{}", got.len(), got.join("\n"));
    assert!(listener.set_nonblocking(true).is_ok() && listener.accept().is_err(), "nobody reached the host");
    println!("{tried} attempts: nothing got out");
    machine.end().await;
}

async fn nobody_is_reached_who_must_not_be(backend: &ContainerBackend) {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let alone = machine(backend, "alone", Network::Nobody, Disk::Empty).await;
    let public = machine(backend, "public", Network::Public, Disk::Empty).await;
    for (machine, name) in [(&alone, "alone"), (&public, "public")] {
        for host in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "172.17.0.1", "10.88.0.1"] {
            for port in [port, 80] {
                // Whoever is let in gets an answer, or no end at once.
                let dial = format!(
                    "exec 3<>/dev/tcp/{host}/{port} && echo 'GET / HTTP/1.0' >&3 && echo >&3 && timeout 3 head -c 20 <&3 | grep -q 'HTTP/1.[01] 200' && echo GOT"
                );
                assert!(!line(machine, &dial).await.1.contains("GOT"), "{name} reached {host}:{port}");
            }
        }
        let (_, said) = line(machine, "ls /sys/class/net; cat /proc/self/status | grep CapEff").await;
        assert!(said.starts_with("lo\n") && said.contains("0000000000000000"), "{said}");
        let (code, _) = line(machine, "mount -t tmpfs none /mnt || unshare -n true").await;
        assert_ne!(code, 0);
    }
    assert!(listener.set_nonblocking(true).is_ok() && listener.accept().is_err(), "nobody reached the host");
    // A question for `a.example` of type A, and the number of its answer.
    let asked = "\\x2a\\x2b\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x01a\\x07example\\0\\0\\x01\\0\\x01";
    let named = format!(
        "grep -c 'nameserver 198.18.0.1' /etc/resolv.conf; echo $https_proxy
        exec 3<>/dev/udp/198.18.0.1/53 && printf '{asked}' >&3 && timeout 10 head -c 2 <&3"
    );
    let (_, said) = line(&public, &named).await;
    assert_eq!(said, "1\nhttp://198.18.0.1:3128\n*+", "its way out is the gate");
    let proxied =
        "exec 3<>/dev/tcp/198.18.0.1/3128 && printf 'CONNECT 10.0.0.1:80 HTTP/1.1\\r\\n\\r\\n' >&3 && head -1 <&3";
    let (_, said) = line(&public, proxied).await;
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    tokio::join!(alone.end(), public.end());
}
