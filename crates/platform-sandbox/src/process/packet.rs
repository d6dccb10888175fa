//! What a machine and the process that made it tell each other: packets of JSON, with open files.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddrV4,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Largest packet; what may be longer goes in a file of memory.
const MAX_BYTES: usize = 65_536;
/// Open files of a packet.
const MAX_FILES: usize = 64;

/// How a machine is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The host lets it have one user alone.
    pub single_user: bool,
    /// Where it listens in place of those whom it reaches: streams.
    pub listen: Vec<SocketAddrV4>,
    /// The same for questions for names.
    pub names: Option<SocketAddrV4>,
    /// Longest file, in bytes.
    pub file_bytes: u64,
    /// Processes at once.
    pub processes: u64,
    /// What it may take, where no control group bounds that.
    pub watched: Option<Watched>,
}

/// What a machine may take where it has to be watched.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Watched {
    /// Memory in bytes.
    pub memory: u64,
    /// Processors, and where among those of the host they begin.
    pub cpus: u32,
    /// See there.
    pub first_cpu: u32,
}

/// To a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Instruction {
    /// Be made so.
    Setup(Setup),
    /// Listen in the network of a machine that somebody else has made: its users and its network are the two files.
    Join {
        /// Streams.
        listen: Vec<SocketAddrV4>,
        /// Questions for names.
        names: SocketAddrV4,
    },
    /// Go on: the users are mapped.
    Mapped,
    /// Start a command; its [`Program`] is in the first file, then standard input, output and error.
    Start(u64),
    /// Kill it.
    Kill(u64),
    /// Connect to what listens on this port of the machine; it may be one that somebody else has made, as for `Join`.
    Connect {
        /// Of whoever waits for it.
        id: u64,
        /// The port.
        port: u16,
    },
}

/// From a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It has namespaces of its own, and waits for its users.
    Unshared,
    /// It listens: streams in order, then the socket for names.
    Listening,
    /// It takes commands.
    Ready,
    /// It cannot be made.
    Failed(String),
    /// A command has ended.
    Ended {
        /// Which.
        id: u64,
        /// Its exit code.
        code: i32,
    },
    /// A command could not be started.
    NotStarted {
        /// Which.
        id: u64,
        /// Why it was not started.
        reason: String,
    },
    /// A connection is made, or is being made; it is the file.
    Connected(u64),
    /// Nobody listens there.
    NotConnected {
        /// For whom.
        id: u64,
        /// Why not.
        reason: String,
    },
}

/// A command of a machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct Program {
    pub argv: Vec<String>,
    pub variables: Vec<(String, String)>,
    pub is_root: bool,
}

pub(crate) fn send(socket: impl AsFd, packet: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("too many files for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `None` = the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, files)))
}
