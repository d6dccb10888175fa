//! Machines of this host, and what runs on them.
//!
//! Without a harness: this program itself becomes the machines.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use platform_egress::{Egress, EgressRules};
use platform_sandbox::{Command, Disk, Machine, MachineSpec, Network, ProcessBackend, SandboxBackend, serve_machine};
use tokio::{io::AsyncReadExt, time::timeout};

const COMMAND: &str = "become-a-machine";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(COMMAND) {
        let stage = arguments.next().unwrap_or_default();
        return if serve_machine(&stage).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machines");
        let egress = Egress::new(EgressRules::default()).expect("a way out");
        let backend = ProcessBackend::new(COMMAND, &dir, egress);
        let runtimes = backend.runtimes().await;
        println!("{runtimes:?}");
        let begun = std::time::Instant::now();
        let machine = backend.create(spec("one", Network::Public), Disk::Empty).await.expect("a machine");
        println!("made after {:?}", begun.elapsed());
        for line in std::env::args().skip(1) {
            let begun = std::time::Instant::now();
            let (code, out, err) = run(&machine, &line).await;
            println!("{line}\n=> {code} {:?}\n{out}{err}", begun.elapsed());
        }
        let begun = std::time::Instant::now();
        machine.end().await;
        println!("ended after {:?}", begun.elapsed());
    });
    ExitCode::SUCCESS
}

fn spec(id: &str, network: Network) -> MachineSpec {
    let (id, runtime) = (id.to_owned(), "default".to_owned());
    MachineSpec { id, runtime, memory_mib: 256, cpus: 1, disk_mib: 512, network }
}

async fn run(machine: &Arc<dyn Machine>, line: &str) -> (i32, String, String) {
    let mut running = machine.start(Command::shell(line, [])).await.expect("it starts");
    let (mut out, mut err) = (String::new(), String::new());
    let done = async {
        let (_, _) = tokio::join!(running.stdout.read_to_string(&mut out), running.stderr.read_to_string(&mut err));
        running.exit.await.expect("it ends")
    };
    let code = timeout(Duration::from_secs(20), done).await.expect("in time");
    (code, out, err)
}
