//! Where a container's way out begins: sockets in its network, held by us.

use std::{fs, io, os::fd::OwnedFd, process::Stdio, time::Duration};

use platform_core::run_blocking;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::{
    backend::SandboxError,
    process::{Order, Report, Setup, receive, send},
};

/// Longest opening.
const OPENING: Duration = Duration::from_secs(10);

/// Listens in the network of a container, whose first process this is on the host: streams in order, then the socket
/// for names.
pub(super) async fn open(
    argument: &str,
    container: &str,
    process: i64,
    setup: Setup,
) -> Result<Vec<OwnedFd>, SandboxError> {
    let (argument, container) = (argument.to_owned(), container.to_owned());
    let opening =
        run_blocking(move || listen(&argument, &container, process, setup).map_err(platform_core::Error::internal));
    opening.await.map_err(|error| {
        let reason = error.cause().map_or_else(String::new, ToString::to_string);
        SandboxError::Unavailable(format!(
            "The network of a container cannot be opened ({reason}). Run the platform as root on the host of the engine, \
             or as the user whose engine it is; without that only networkPolicy deny-all is to be had."
        ))
    })
}

fn listen(argument: &str, container: &str, process: i64, setup: Setup) -> io::Result<Vec<OwnedFd>> {
    // Of an engine on another host, or seen from inside a container, the number is somebody else's.
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    if process == 0 || !groups.contains(container) {
        return Err(io::Error::other("its first process is not on this host"));
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(OPENING))?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args([argument, "doors"]).env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let opened = send(&ours, &Order::Setup(setup), &[]).and_then(|()| match receive::<Report>(&ours)? {
        Some((Report::Listening, doors)) => Ok(doors),
        Some((Report::Failed(reason), _)) => Err(io::Error::other(reason)),
        _ => Err(io::Error::other("it ended before it listened")),
    });
    if opened.is_err() {
        let _ = child.kill();
    }
    child.wait()?;
    opened
}
