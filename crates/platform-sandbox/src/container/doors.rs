//! Sockets in the network of a container, held by us: where its way out begins, and the way in.

use std::{
    fs::File,
    io::{self, Read},
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
    time::Duration,
};

use platform_core::run_blocking;
use rustix::{
    fs::{Mode, OFlags, openat},
    net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt},
};

use crate::{
    backend::SandboxError,
    process::{Instruction, Report, receive, send},
};

/// Longest opening.
const OPENING: Duration = Duration::from_secs(10);

/// Listens in the network of a container, whose first process this is on the host: streams in order, then the socket
/// for names.
pub(super) async fn open(
    argument: &str,
    container: &str,
    process: i64,
    listen: Vec<SocketAddrV4>,
    names: SocketAddrV4,
) -> Result<Vec<OwnedFd>, SandboxError> {
    joined(argument, container, process, Instruction::Join { listen, names }).await.map_err(|reason| {
        SandboxError::Unavailable(format!(
            "The network of a container cannot be opened ({reason}). Run the platform as root on the host of the engine, \
             or as the user whose engine it is; without that only networkPolicy deny-all is to be had."
        ))
    })
}

/// Connects to a port of a container, whose first process this is on the host.
pub(super) async fn connect(argument: &str, container: &str, process: i64, port: u16) -> Result<OwnedFd, SandboxError> {
    let connection = joined(argument, container, process, Instruction::Connect { id: 0, port }).await;
    let unreachable = |reason| SandboxError::Failed(format!("its network cannot be entered: {reason}"));
    connection.map_err(unreachable)?.into_iter().next().ok_or(SandboxError::NobodyListens(port))
}

/// What comes of an instruction in the network of a container, or the reason why nothing does.
async fn joined(
    argument: &str,
    container: &str,
    process: i64,
    instruction: Instruction,
) -> Result<Vec<OwnedFd>, String> {
    let (argument, container) = (argument.to_owned(), container.to_owned());
    let joining = run_blocking(move || {
        join(&argument, &container, process, &instruction).map_err(platform_core::Error::internal)
    });
    joining.await.map_err(|error| error.cause().map_or_else(String::new, ToString::to_string))
}

fn join(argument: &str, container: &str, process: i64, instruction: &Instruction) -> io::Result<Vec<OwnedFd>> {
    let elsewhere = || io::Error::other("its first process is not on this host");
    let dir = File::open(format!("/proc/{process}")).map_err(|_| elsewhere())?;
    // Beneath a directory that is open, nothing is ever of another process that has the number since.
    let beneath = |path: &str| Ok::<_, io::Error>(openat(&dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let mut groups = String::new();
    File::from(beneath("cgroup")?).read_to_string(&mut groups)?;
    // Of an engine on another host, or seen from inside a container, the number is somebody else's.
    if process == 0 || !groups.contains(container) {
        return Err(elsewhere());
    }
    let (users, network) = (beneath("ns/user")?, beneath("ns/net")?);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(OPENING))?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args([argument, "doors"]).env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let sent = send(&ours, instruction, &[users.as_fd(), network.as_fd()]);
    let opened = sent.and_then(|()| match receive::<Report>(&ours)? {
        Some((Report::Listening | Report::Connected(_) | Report::NotConnected { .. }, sockets)) => Ok(sockets),
        Some((Report::Failed(reason), _)) => Err(io::Error::other(reason)),
        _ => Err(io::Error::other("it ended before it listened")),
    });
    if opened.is_err() {
        let _ = child.kill();
    }
    child.wait()?;
    opened
}
