//! Children that are stuck, that grow and that die, against the program of these tests itself.

use std::time::{Duration, Instant};

use platform_child::{ChildError, Children, Work, serve};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const MEMORY: u64 = 48 << 20;

/// What a child of these tests can do.
static WORKS: [Work; 7] = [
    Work { name: "echo", run: <[u8]>::to_vec, cpu: Duration::from_secs(5), memory: MEMORY },
    Work { name: "spin", run: spin, cpu: Duration::from_millis(50), memory: MEMORY },
    Work { name: "grow", run: grow, cpu: Duration::from_secs(5), memory: MEMORY },
    Work {
        name: "wait",
        run: |_| loop {
            std::thread::park();
        },
        cpu: Duration::from_secs(5),
        memory: MEMORY,
    },
    Work { name: "flood", run: |_| vec![7; (64 << 20) + 1], cpu: Duration::from_secs(5), memory: 512 << 20 },
    Work { name: "open", run: open, cpu: Duration::from_secs(5), memory: MEMORY },
    Work { name: "panic", run: |_| panic!("asked to"), cpu: Duration::from_secs(5), memory: MEMORY },
];

fn spin(_: &[u8]) -> Vec<u8> {
    loop {
        std::hint::spin_loop();
    }
}

fn grow(_: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        all.push(vec![1_u8; 1 << 20]);
    }
}

/// Says what of the machine it reaches.
fn open(_: &[u8]) -> Vec<u8> {
    let file = std::fs::File::open("/etc/passwd").is_ok();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").is_ok();
    let process = std::process::Command::new("/bin/true").stdout(std::process::Stdio::piped()).output().is_ok();
    let variables = std::env::vars().count();
    format!("{file} {socket} {process} {variables}").into_bytes()
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("child") {
        serve(&WORKS).expect("the work of a child");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let children = Children::of_this_program("child").expect("this program");
        a_warm_child_answers_again_and_again(&children).await;
        a_child_that_somebody_ended_while_it_waited_is_replaced(&children).await;
        work_that_is_stuck_or_grows_is_killed_and_the_next_goes_on(&children).await;
        a_child_reaches_nothing_of_the_machine(&children).await;
        drop(children);
        a_dropped_future_takes_its_child_with_it(&Children::of_this_program("child").expect("this program")).await;
    });
    println!("5 passed, 0 failed");
}

async fn a_warm_child_answers_again_and_again(children: &Children) {
    for size in [0, 1, 100_000, 8 << 20, 10] {
        let input = vec![7; size];
        assert_eq!(children.run("echo", &input).await.expect("an answer"), input);
    }
}

async fn a_child_that_somebody_ended_while_it_waited_is_replaced(children: &Children) {
    children.run("echo", b"warm").await.expect("an answer");
    let of_ours = format!("/proc/self/task/{}/children", std::process::id());
    let waiting = std::fs::read_to_string(of_ours).expect("the children of this process");
    for pid in waiting.split_whitespace() {
        let pid = pid.parse().ok().and_then(Pid::from_raw).expect("the id of a process");
        kill_process(pid, Signal::KILL).expect("it runs");
        // Awaits the end of all its threads, and leaves the news of it to the parent's own look.
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("a child of this process");
    }
    assert_eq!(children.run("echo", b"next").await.expect("another child answers"), b"next");
}

async fn work_that_is_stuck_or_grows_is_killed_and_the_next_goes_on(children: &Children) {
    for _ in 0..3 {
        let began = Instant::now();
        assert!(matches!(children.run("spin", b"").await, Err(ChildError::TooLong)));
        assert!(began.elapsed() < Duration::from_secs(10), "by CPU time, not by the clock");
        assert!(matches!(children.run("grow", b"").await, Err(ChildError::TooLarge)));
        assert!(matches!(children.run("flood", b"").await, Err(ChildError::Failed(_) | ChildError::TooLarge)));
        assert!(matches!(children.run("panic", b"").await, Err(ChildError::Failed(_))));
        assert!(matches!(children.run("no such work", b"").await, Err(ChildError::Failed(_))));
        assert_eq!(children.run("echo", b"next").await.expect("an answer"), b"next");
    }
    let nobody = Children::new("/nowhere", "child");
    assert!(matches!(nobody.run("echo", b"").await, Err(ChildError::NotStarted(_))));
}

async fn a_child_reaches_nothing_of_the_machine(children: &Children) {
    let said = children.run("open", b"").await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&said), "false false false 0");
}

async fn a_dropped_future_takes_its_child_with_it(children: &Children) {
    let waits = children.run("wait", b"");
    tokio::select! {
        _ = waits => panic!("it never ends"),
        () = async { while running() == 0 { tokio::task::yield_now().await } } => {}
    }
    while running() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(children.run("echo", b"the next").await.expect("an answer"), b"the next");
}

/// Children of this process that run.
fn running() -> usize {
    let of_this = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
        (fields[0] != "Z" && fields[1] == std::process::id().to_string()).then_some(())
    };
    std::fs::read_dir("/proc").expect("processes").filter_map(|entry| of_this(entry.ok()?)).count()
}
