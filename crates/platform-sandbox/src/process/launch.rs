//! The machine's side: a process makes namespaces of its own, and its child becomes the first process in them.
//!
//! No code of a client runs before everything here is done.

use std::{
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::{
        ffi::OsStringExt,
        fs::{MetadataExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use rustix::{
    fs::{Mode, StatVfsMountFlags, fstat, statvfs},
    io::{Errno, fcntl_dupfd_cloexec},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_remount,
        unmount,
    },
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect as connect_to, listen, send as send_bytes,
        socket_with, sockopt,
    },
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, chdir, getrlimit, pivot_root, set_dumpable_behavior,
        set_parent_process_death_signal, setrlimit, setsid, umask,
    },
    stdio::stdin,
    system::sethostname,
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, CpuSet, Gid, LinkNameSpaceType, Uid, UnshareFlags,
        capabilities, move_into_link_name_space, remove_capability_from_bounding_set, sched_getaffinity,
        sched_setaffinity, set_capabilities, set_capabilities_secure_bits, set_no_new_privs, set_thread_gid,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use super::{
    USER, first,
    packet::{Instruction, Report, Setup, Watched, receive, send},
    syscalls,
};

/// What the first process of a machine needs to start commands as either user.
const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);
/// Directories of the host that a machine sees.
const PROGRAMS: [&str; 6] = ["usr", "bin", "sbin", "lib", "lib32", "lib64"];
/// What of the host's `/etc` programs need, and is nobody's secret.
const PUBLIC_ETC: [&str; 17] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// What of `/proc` says more of the host than programs need.
const HIDDEN: [&str; 8] =
    ["kcore", "keys", "key-users", "latency_stats", "sched_debug", "timer_list", "kallsyms", "config.gz"];
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// Connections that wait to be taken.
const BACKLOG: i32 = 64;
/// Open files of a process.
pub(crate) const MAX_FILES: u64 = 8192;

/// Becomes a machine: `stage` is the second argument of the command that started this process, standard input the
/// socket to whoever did. Returns when the machine has ended.
pub fn serve_machine(stage: &str) -> io::Result<()> {
    // Nothing that the platform or whoever started it left open is open in a machine.
    close_fds::set_fds_cloexec(3, &[]);
    let made = match stage {
        "inner" => inner(),
        "doors" => join(),
        _ => outer(),
    };
    if let Err(error) = &made {
        let _ = send(stdin(), &Report::Failed(error.to_string()), &[]);
    }
    made
}

fn setup() -> io::Result<Setup> {
    match receive(stdin())? {
        Some((Instruction::Setup(setup), _)) => Ok(setup),
        _ => Err(io::Error::other("the platform has gone")),
    }
}

/// Makes the namespaces, the users and the network.
fn outer() -> io::Result<()> {
    let setup = setup()?;
    let namespaces = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    #[expect(deprecated, reason = "what is unsafe about it is FILES alone")]
    rustix::thread::unshare(namespaces).map_err(|error| said("this host lets us make no namespaces", error))?;
    send(stdin(), &Report::Unshared, &[])?;
    let Some((Instruction::Mapped, _)) = receive::<Instruction>(stdin())? else {
        return Err(io::Error::other("the platform has gone"));
    };
    if !setup.single_user {
        set_thread_groups(&[])?;
    }
    let (user, group) = (Uid::ROOT, Gid::ROOT);
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    if let Some(Watched { cpus, first_cpu, .. }) = setup.watched {
        keep_to(cpus as usize, first_cpu as usize)?;
    }
    let doors = doors(&setup.listen, setup.names).map_err(|error| said("the network of the machine", error))?;
    let doors: Vec<BorrowedFd<'_>> = doors.iter().map(AsFd::as_fd).collect();
    send(stdin(), &Report::Listening, &doors)?;
    let mut inner = Command::new("/proc/self/exe");
    inner.args(std::env::args_os().skip(1).take(1)).arg("inner").env_clear();
    inner.stdin(Stdio::from(fcntl_dupfd_cloexec(stdin(), 0)?)).spawn()?.wait()?;
    Ok(())
}

/// Stays on so many processors, and so does all that is started.
fn keep_to(most: usize, first: usize) -> io::Result<()> {
    let open = sched_getaffinity(None)?;
    let open: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| open.is_set(*cpu)).collect();
    let mut kept = CpuSet::new();
    for cpu in open.iter().cycle().skip(first % open.len().max(1)).take(open.len().min(most)) {
        kept.set(*cpu);
    }
    Ok(sched_setaffinity(None, &kept)?)
}

/// Listens in the network of a machine that somebody else has made, or connects there.
fn join() -> io::Result<()> {
    let Some((instruction, files)) = receive(stdin())? else {
        return Err(io::Error::other("the platform has gone"));
    };
    let [users, network] =
        <[OwnedFd; 2]>::try_from(files).map_err(|_| io::Error::other("nobody said which machine"))?;
    let is_ours = |space: &OwnedFd, name: &str| {
        Ok::<_, io::Error>(fstat(space)?.st_ino == fs::metadata(format!("/proc/self/ns/{name}"))?.ino())
    };
    if is_ours(&network, "net")? {
        return Err(io::Error::other("it has no network of its own"));
    }
    // An engine without root has users of its own: who owns them may do with their network what they like.
    if !is_ours(&users, "user")? {
        move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
    }
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    match instruction {
        Instruction::Join { listen, names } => {
            let doors = doors(&listen, Some(names)).map_err(|error| said("the network of the machine", error))?;
            let doors: Vec<BorrowedFd<'_>> = doors.iter().map(AsFd::as_fd).collect();
            send(stdin(), &Report::Listening, &doors)
        }
        Instruction::Connect { id, port } => match connect(port) {
            Ok(connection) => send(stdin(), &Report::Connected(id), &[connection.as_fd()]),
            Err(error) => send(stdin(), &Report::NotConnected { id, reason: error.to_string() }, &[]),
        },
        _ => Err(io::Error::other("there is nothing to do in it")),
    }
}

/// A connection to what listens on this port here, made or being made.
pub(super) fn connect(port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match connect_to(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn said(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// Listens in place of those whom the machine reaches: every address is its own.
fn doors(listen_at: &[SocketAddrV4], names: Option<SocketAddrV4>) -> io::Result<Vec<OwnedFd>> {
    let mut doors = Vec::new();
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // What serves on a machine is reached by its own programs also where these reach nobody else.
    tell(kernel.as_fd(), &LOOPBACK_UP)?;
    let Some(names) = names else { return Ok(doors) };
    tell(kernel.as_fd(), &EVERY_ADDRESS_IS_OURS)?;
    for address in listen_at {
        let door = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&door, true)?;
        bind(&door, address)?;
        listen(&door, BACKLOG)?;
        doors.push(door);
    }
    let door = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(&door, &names)?;
    doors.push(door);
    Ok(doors)
}

/// `RTM_NEWLINK`: interface 1, which is the loopback, is up (rtnetlink(7)).
const LOOPBACK_UP: [u8; 32] = {
    let mut message = header::<32>(32, 16);
    message[20] = 1;
    message[24] = 1;
    message[28] = 1;
    message
};

/// `RTM_NEWROUTE`: `local 0.0.0.0/0 dev lo table local`.
const EVERY_ADDRESS_IS_OURS: [u8; 36] = {
    let mut message = header::<36>(36, 24);
    message[16] = 2; // AF_INET
    message[20] = 255; // the local table
    message[21] = 3; // by whoever set the machine up
    message[22] = 254; // of this host
    message[23] = 2; // local
    message[28] = 8; // an attribute of 8 bytes
    message[30] = 4; // the interface
    message[32] = 1;
    message
};

/// A request that is to be acknowledged, to create what it names.
const fn header<const LENGTH: usize>(length: u8, kind: u8) -> [u8; LENGTH] {
    let mut message = [0; LENGTH];
    message[0] = length;
    message[4] = kind;
    message[6] = 0x05;
    message[7] = 0x04;
    message
}

fn tell(kernel: BorrowedFd<'_>, message: &[u8]) -> io::Result<()> {
    send_bytes(kernel, message, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(kernel, &mut answer, rustix::net::RecvFlags::empty())?;
    let code = answer
        .get(16..20)
        .filter(|_| length >= 20)
        .map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("the kernel gives no answer")),
    }
}

/// The first process of the machine: sees the machine's files alone, may do little, and starts commands.
fn inner() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let setup = setup()?;
    let _ = setsid();
    build_root(setup.names.map(|names| *names.ip())).map_err(|error| said("the files of the machine", error))?;
    let _ = sethostname(b"sandbox");
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Nofile, MAX_FILES),
        (Resource::Nproc, setup.processes),
        (Resource::Fsize, setup.file_bytes),
        (Resource::Memlock, 1 << 20),
        (Resource::Msgqueue, 1 << 20),
    ] {
        // What the host bounds already is not raised.
        let most = getrlimit(resource).maximum.map_or(most, |had| had.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    // Both users are in one group, so that each can change what the other made.
    umask(Mode::WOTH);
    if setup.single_user {
        become_unprivileged()?;
    }
    give_up_rights(setup.single_user).map_err(|error| said("the rights of the machine", error))?;
    protect_files().map_err(|error| said("landlock", error))?;
    syscalls::confine(setup.watched.is_some()).map_err(|error| said("the system calls of the machine", error))?;
    send(stdin(), &Report::Ready, &[])?;
    first::serve(&setup)
}

/// On a host that lets a machine have one user alone, that one is not its first.
fn become_unprivileged() -> io::Result<()> {
    #[expect(deprecated, reason = "what is unsafe about it is FILES alone")]
    rustix::thread::unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER} 0 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER} 0 1"))?;
    Ok(())
}

fn give_up_rights(single_user: bool) -> io::Result<()> {
    let kept = if single_user { CapabilitySet::empty() } else { KEPT };
    if !single_user {
        set_thread_gid(Gid::from_raw(USER))?;
    }
    for right in CapabilitySet::all().iter().filter(|right| !kept.contains(*right) && right.bits().is_power_of_two()) {
        // One that this kernel does not know is not there.
        let _ = remove_capability_from_bounding_set(right);
    }
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits)?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    if !kept.contains(capabilities(None)?.permitted) {
        return Err(io::Error::other("they could not be given up"));
    }
    set_no_new_privs(true)?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The second wall, of the kernels that have it: files are written in few places, whatever becomes of the mounts.
fn protect_files() -> Result<(), landlock::RulesetError> {
    let abi = ABI::V5;
    let all = AccessFs::from_all(abi);
    let ruleset = Ruleset::default().handle_access(all)?.create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(["/"], AccessFs::from_read(abi)))?;
    ruleset.add_rules(path_beneath_rules(["/workspace", "/tmp", "/dev", "/proc"], all))?.restrict_self()?;
    Ok(())
}

/// Builds the files of the machine under `root` in the working directory, and leaves everything else behind.
fn build_root(names: Option<std::net::Ipv4Addr>) -> io::Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "root", "tmpfs", plain, c"mode=0755,size=4m")?;
    for name in PROGRAMS {
        let (host, here) = (Path::new("/").join(name), Path::new("root").join(name));
        match fs::symlink_metadata(&host) {
            Ok(found) if found.is_symlink() => symlink(fs::read_link(&host)?, here)?,
            Ok(_) => show(&host, &here)?,
            Err(_) => {}
        }
    }
    for dir in [
        "dev",
        "dev/shm",
        "dev/pts",
        "etc",
        "etc/ssl",
        "proc",
        "root",
        "run",
        "tmp",
        "var",
        "workspace",
        "home",
        "mnt",
        "opt",
    ] {
        fs::create_dir(Path::new("root").join(dir))?;
    }
    for name in PUBLIC_ETC {
        let (host, here) = (Path::new("/etc").join(name), Path::new("root/etc").join(name));
        match fs::symlink_metadata(&host) {
            Ok(found) if found.is_symlink() => symlink(fs::read_link(&host)?, here)?,
            Ok(_) => show(&host, &here)?,
            Err(_) => {}
        }
    }
    for (name, text) in etc(names) {
        fs::write(Path::new("root/etc").join(name), text)?;
    }
    for (link, to) in [
        ("var/tmp", "/tmp"),
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "/proc/self/fd/0"),
        ("dev/stdout", "/proc/self/fd/1"),
        ("dev/stderr", "/proc/self/fd/2"),
        ("dev/ptmx", "pts/ptmx"),
    ] {
        symlink(to, Path::new("root").join(link))?;
    }
    for name in DEVICES {
        let here = Path::new("root/dev").join(name);
        fs::write(&here, "")?;
        mount_bind_recursive(Path::new("/dev").join(name), &here)?;
    }
    mount("tmpfs", "root/dev/shm", "tmpfs", plain | MountFlags::NOEXEC, c"mode=1777,size=64m")?;
    mount(
        "devpts",
        "root/dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=0620",
    )?;
    mount("proc", "root/proc", "proc", plain | MountFlags::NOEXEC, None)?;
    for name in READ_ONLY {
        let path = Path::new("root/proc").join(name);
        if path.exists() {
            mount_bind_recursive(&path, &path)?;
            remount(&path, MountFlags::RDONLY)?;
        }
    }
    for name in HIDDEN {
        let path = Path::new("root/proc").join(name);
        if path.exists() {
            mount_bind_recursive("/dev/null", &path)?;
        }
    }
    for dir in ["workspace", "tmp"] {
        let here = Path::new("root").join(dir);
        mount_bind_recursive(dir, &here)?;
        remount(&here, MountFlags::empty())?;
    }
    remount(Path::new("root"), MountFlags::RDONLY)?;
    chdir("root")?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/workspace")?)
}

/// Shows a file or directory of the host, with whatever is mounted below it, read-only.
fn show(host: &Path, here: &Path) -> io::Result<()> {
    if fs::metadata(host)?.is_dir() {
        fs::create_dir(here)?;
    } else {
        fs::write(here, "")?;
    }
    mount_bind_recursive(host, here)?;
    remount(here, MountFlags::RDONLY)?;
    // Paths from the root may lead through directories that are closed to us.
    let dir = std::env::current_dir()?;
    let mounts = fs::read("/proc/self/mountinfo")?;
    let points = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = points.map(unescaped).filter_map(|path| Some(path.strip_prefix(&dir).ok()?.to_owned()));
    let below: Vec<PathBuf> = below.filter(|path| path != here && path.starts_with(here)).collect();
    below.iter().try_for_each(|path| remount(path, MountFlags::RDONLY))
}

/// A path of `mountinfo`, where odd characters are written as octal numbers (proc(5)).
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Takes rights from a mount; what the host had taken stays taken.
fn remount(path: &Path, more: MountFlags) -> io::Result<()> {
    let had = statvfs(path)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | more;
    for (flag, same) in
        [(StatVfsMountFlags::RDONLY, MountFlags::RDONLY), (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC)]
    {
        flags.set(same, flags.contains(same) || had.contains(flag));
    }
    Ok(mount_remount(path, flags, c"")?)
}

/// Files of `/etc` that say what the machine is.
fn etc(names: Option<std::net::Ipv4Addr>) -> Vec<(&'static str, String)> {
    let resolver = names.map(|names| format!("nameserver {names}\noptions timeout:5 attempts:2\n")).unwrap_or_default();
    vec![
        (
            "passwd",
            format!(
                "root:x:0:{USER}:root:/workspace:/bin/bash\nsandbox:x:{USER}:{USER}:sandbox:/workspace:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n"
            ),
        ),
        ("group", format!("root:x:0:\nsandbox:x:{USER}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n".to_owned()),
        ("hostname", "sandbox\n".to_owned()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
        ("resolv.conf", resolver),
    ]
}
