//! The first process of a machine: starts commands, and says how they ended.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    param::page_size,
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait},
    stdio::stdin,
};

use super::{
    USER,
    launch::connect,
    packet::{Instruction, Program, Report, Setup, Watched, receive, send},
};

/// How often memory is looked at, where no control group bounds it.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked who else a command has started.
const ROUNDS: usize = 32;
/// Where programs of the host are.
const SYSTEM_DIRS: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/run/current-system/sw/bin"];
/// How soon a process ends when memory is short.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Commands that run, by process.
#[derive(Default)]
struct Commands {
    running: Mutex<HashMap<i32, u64>>,
    started: Condvar,
}

impl Commands {
    fn running(&self) -> MutexGuard<'_, HashMap<i32, u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works until the platform is gone; whatever was started dies with this process.
pub(super) fn serve(setup: &Setup) -> io::Result<()> {
    let commands = Arc::new(Commands::default());
    let ended = Arc::clone(&commands);
    thread::Builder::new().name("wait".to_owned()).spawn(move || reap(&ended))?;
    if let Some(Watched { memory, .. }) = setup.watched {
        thread::Builder::new().name("memory".to_owned()).spawn(move || watch_memory(memory))?;
    }
    while let Some((instruction, files)) = receive(stdin())? {
        match instruction {
            Instruction::Start(id) => {
                // Whoever waits for it must know it before it can end.
                let mut running = commands.running();
                match start(files, setup.single_user) {
                    Ok(process) => {
                        running.insert(process, id);
                        commands.started.notify_one();
                    }
                    Err(error) => send(stdin(), &Report::NotStarted { id, reason: error.to_string() }, &[])?,
                }
            }
            Instruction::Kill(id) => {
                let running = commands.running();
                let process =
                    running.iter().find(|(_, of)| **of == id).and_then(|(process, _)| Pid::from_raw(*process));
                if let Some(process) = process {
                    kill_tree(process);
                }
            }
            Instruction::Connect { id, port } => {
                // A connection that cannot be handed on is none, and no reason to end.
                let connected = connect(port).and_then(|of| send(stdin(), &Report::Connected(id), &[of.as_fd()]));
                if let Err(error) = connected {
                    send(stdin(), &Report::NotConnected { id, reason: error.to_string() }, &[])?;
                }
            }
            Instruction::Setup(_) | Instruction::Join { .. } | Instruction::Mapped => {}
        }
    }
    Ok(())
}

fn start(files: Vec<std::os::fd::OwnedFd>, single_user: bool) -> io::Result<i32> {
    let [program, input, output, errors] =
        <[_; 4]>::try_from(files).map_err(|_| io::Error::other("a command needs four files"))?;
    let mut text = Vec::new();
    File::from(program).read_to_end(&mut text)?;
    let program: Program = serde_json::from_slice(&text)?;
    let (name, arguments) = program.argv.split_first().ok_or_else(|| io::Error::other("there is no program"))?;
    // Variables of a command do not say where the shell is.
    let found = SYSTEM_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|program| program.is_file());
    let mut command = Command::new(found.filter(|_| !name.contains('/')).unwrap_or_else(|| name.into()));
    command.args(arguments).env_clear().envs(program.variables).current_dir("/workspace").process_group(0);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
    if !program.is_root && !single_user {
        command.uid(USER).gid(USER);
    }
    // When memory is short one of what was started ends, and not all with this process; children begin as it is.
    let own = std::fs::read_to_string(OOM_SCORE).unwrap_or_default();
    let _ = std::fs::write(OOM_SCORE, "500");
    let spawned = command.spawn();
    let _ = std::fs::write(OOM_SCORE, own.trim());
    let process = spawned?.id();
    i32::try_from(process).map_err(io::Error::other)
}

/// Takes note of every process that ended; those that nobody waits for are gone, too.
fn reap(commands: &Commands) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((process, status))) => {
                let id = commands.running().remove(&process.as_raw_nonzero().get());
                if let Some(id) = id {
                    let _ = send(stdin(), &Report::Ended { id, code: code(status) }, &[]);
                }
            }
            Err(Errno::CHILD) => {
                let running = commands.running();
                if running.is_empty() {
                    drop(commands.started.wait(running));
                }
            }
            Ok(None) | Err(_) => {}
        }
    }
}

fn code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Kills a command, its group, and all that it started whose parents are there still.
fn kill_tree(command: Pid) {
    let mut found = BTreeSet::from([command.as_raw_nonzero().get()]);
    let signal = |found: &BTreeSet<i32>, signal| {
        for process in found.iter().filter_map(|id| Pid::from_raw(*id)) {
            let _ = kill_process(process, signal);
        }
    };
    // Somebody else may let them go on.
    for _ in 0..ROUNDS {
        // What is stopped starts nothing more.
        signal(&found, Signal::STOP);
        let before = found.len();
        for id in ids() {
            if parent(id).is_some_and(|parent| found.contains(&parent)) {
                found.insert(id);
            }
        }
        if found.len() == before {
            break;
        }
    }
    let _ = kill_process_group(command, Signal::KILL);
    signal(&found, Signal::KILL);
}

/// The parent of a process: the second field after its name, which may hold anything.
fn parent(id: i32) -> Option<i32> {
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    let after = stat.rsplit(|byte| *byte == b')').next()?;
    std::str::from_utf8(after).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Kills what takes most when all together take too much.
fn watch_memory(most: u64) {
    loop {
        thread::sleep(LOOK);
        let processes: Vec<(u64, i32)> = processes();
        if processes.iter().map(|(bytes, _)| bytes).sum::<u64>() > most
            && let Some((_, largest)) = processes.iter().max()
            && let Some(process) = Pid::from_raw(*largest)
        {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// Resident bytes and id of each process but this.
fn processes() -> Vec<(u64, i32)> {
    let resident = |id: i32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        Some((pages * page_size() as u64, id))
    };
    ids().filter_map(resident).collect()
}

/// Ids of all processes but this.
fn ids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|id| *id != 1)
}
