//! The system calls that a machine has: those of ordinary programs. Everything else is as if the kernel did not know it.

use std::{collections::BTreeMap, io};

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// Memory that is no process's own, and processors that are: calls of machines that a control group bounds.
const OF_BOUNDED: [c_long; 2] = [libc::SYS_memfd_create, libc::SYS_sched_setaffinity];

/// Confines this thread and whatever it starts; `is_watched`: no control group bounds it.
pub(super) fn confine(is_watched: bool) -> io::Result<()> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = ORDINARY.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(OLDER.iter().map(|call| (*call, Vec::new())));
    rules.extend(bounded().map_err(io::Error::other)?);
    if is_watched {
        rules.retain(|call, _| !OF_BOUNDED.contains(call));
    }
    let target = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, target).map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    // Whole disks are taken by one call, before anybody measures them; programs that are told so write instead.
    let taking = BTreeMap::from([(libc::SYS_fallocate, Vec::new())]);
    let unsupported = SeccompAction::Errno(libc::EOPNOTSUPP.unsigned_abs());
    let filter = SeccompFilter::new(taking, SeccompAction::Allow, unsupported, target).map_err(io::Error::other)?;
    let without_taking: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    [without_taking, program].iter().try_for_each(|program| apply_filter(program).map_err(io::Error::other))
}

/// `FS_IOC_RESVSP`, `_UNRESVSP`, both of 64 bits, and `_ZERO_RANGE` (linux/falloc.h): they are not even bounded by the
/// size that a file may have.
const RESERVING: [u64; 5] = [0x4030_5828, 0x4030_5829, 0x4030_582a, 0x4030_582b, 0x4030_5839];

/// Bytes of a piece of shared memory of System V, of which there may be 4,096.
const MAX_SHARED: u64 = 64 << 10;

/// Calls that are allowed with some arguments.
fn bounded() -> Result<Vec<(c_long, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let is = |argument, operator, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    let exactly = |argument, value: i32| is(argument, SeccompCmpOp::Eq, u64::from(value.unsigned_abs()));
    let of_at_most = |argument, most| SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Le, most);
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let none_of = SeccompCmpOp::MaskedEq(u64::from(namespaces.unsigned_abs()));
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let mut sockets =
        families.iter().map(|family| SeccompRule::new(vec![exactly(0, *family)?])).collect::<Result<Vec<_>, _>>()?;
    // Programs list the interfaces over it.
    sockets.push(SeccompRule::new(vec![exactly(0, libc::AF_NETLINK)?, exactly(2, libc::NETLINK_ROUTE)?])?);
    let personalities = [0, 0xffff_ffff].map(|of| SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, of)?]));
    // Typing into somebody's terminal, and taking room by another name.
    let others = [libc::TIOCSTI, libc::TIOCLINUX].into_iter().chain(RESERVING);
    let others = others.map(|call| is(1, SeccompCmpOp::Ne, call & 0xffff_ffff));
    Ok(vec![
        (libc::SYS_clone, vec![SeccompRule::new(vec![is(0, none_of, 0)?])?]),
        (libc::SYS_socket, sockets),
        (libc::SYS_personality, personalities.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_ioctl, vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?]),
        // It outlives whoever made it, and no process is the larger for it; databases need a page.
        (libc::SYS_shmget, vec![SeccompRule::new(vec![of_at_most(1, MAX_SHARED)?])?]),
        // Of itself alone.
        (libc::SYS_prlimit64, vec![SeccompRule::new(vec![exactly(0, 0)?])?]),
    ])
}

#[rustfmt::skip]
const ORDINARY: &[c_long] = &[
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_bind, libc::SYS_brk, libc::SYS_capget, libc::SYS_capset,
    libc::SYS_chdir, libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_close,
    libc::SYS_close_range, libc::SYS_connect, libc::SYS_copy_file_range, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2,
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_fchdir, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_fcntl, libc::SYS_fdatasync,
    libc::SYS_fgetxattr, libc::SYS_flistxattr, libc::SYS_flock, libc::SYS_fremovexattr, libc::SYS_fsetxattr,
    libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_futex, libc::SYS_futex_waitv,
    libc::SYS_getcpu, libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_getegid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getgroups, libc::SYS_getitimer, libc::SYS_getpeername, libc::SYS_getpgid, libc::SYS_getpid,
    libc::SYS_getppid, libc::SYS_getpriority, libc::SYS_getrandom, libc::SYS_getresgid, libc::SYS_getresuid,
    libc::SYS_getrlimit, libc::SYS_get_robust_list, libc::SYS_getrusage, libc::SYS_getsid, libc::SYS_getsockname,
    libc::SYS_getsockopt, libc::SYS_gettid, libc::SYS_gettimeofday, libc::SYS_getuid, libc::SYS_getxattr,
    libc::SYS_inotify_add_watch, libc::SYS_inotify_init1, libc::SYS_inotify_rm_watch, libc::SYS_io_cancel,
    libc::SYS_io_destroy, libc::SYS_io_getevents, libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_ioprio_get,
    libc::SYS_kill, libc::SYS_lgetxattr, libc::SYS_linkat, libc::SYS_listen, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_lremovexattr, libc::SYS_lseek, libc::SYS_lsetxattr, libc::SYS_madvise,
    libc::SYS_membarrier, libc::SYS_memfd_create, libc::SYS_mincore, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_mlock,
    libc::SYS_mlock2, libc::SYS_mlockall, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_munlock, libc::SYS_munlockall, libc::SYS_munmap, libc::SYS_nanosleep, libc::SYS_newfstatat,
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_pipe2,
    libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect, libc::SYS_ppoll, libc::SYS_prctl,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_pselect6, libc::SYS_pwrite64,
    libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_read, libc::SYS_readahead, libc::SYS_readlinkat,
    libc::SYS_readv, libc::SYS_recvfrom, libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_remap_file_pages,
    libc::SYS_removexattr, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_restart_syscall, libc::SYS_rseq,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigpending, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigsuspend, libc::SYS_rt_sigtimedwait, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_getaffinity, libc::SYS_sched_getattr, libc::SYS_sched_getparam,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval, libc::SYS_sched_setaffinity, libc::SYS_sched_setattr, libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler, libc::SYS_sched_yield, libc::SYS_semctl, libc::SYS_semget, libc::SYS_semop,
    libc::SYS_semtimedop, libc::SYS_sendfile, libc::SYS_sendmmsg, libc::SYS_sendmsg, libc::SYS_sendto,
    libc::SYS_setfsgid, libc::SYS_setfsuid, libc::SYS_setgid, libc::SYS_setgroups, libc::SYS_setitimer,
    libc::SYS_setpgid, libc::SYS_setpriority, libc::SYS_setregid, libc::SYS_setresgid, libc::SYS_setresuid,
    libc::SYS_setreuid, libc::SYS_setrlimit, libc::SYS_set_robust_list, libc::SYS_setsid, libc::SYS_setsockopt,
    libc::SYS_set_tid_address, libc::SYS_setuid, libc::SYS_setxattr, libc::SYS_shmat, libc::SYS_shmctl,
    libc::SYS_shmdt, libc::SYS_shutdown, libc::SYS_sigaltstack, libc::SYS_signalfd4,
    libc::SYS_socketpair, libc::SYS_splice, libc::SYS_statfs, libc::SYS_statx, libc::SYS_symlinkat, libc::SYS_sync,
    libc::SYS_sync_file_range, libc::SYS_syncfs, libc::SYS_sysinfo, libc::SYS_tee, libc::SYS_tgkill,
    libc::SYS_timer_create, libc::SYS_timer_delete, libc::SYS_timerfd_create, libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime, libc::SYS_timer_getoverrun, libc::SYS_timer_gettime, libc::SYS_timer_settime,
    libc::SYS_times, libc::SYS_tkill, libc::SYS_truncate, libc::SYS_umask, libc::SYS_uname, libc::SYS_unlinkat,
    libc::SYS_utimensat, libc::SYS_vmsplice, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_write, libc::SYS_writev,
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[c_long] = &[
    libc::SYS_access, libc::SYS_alarm, libc::SYS_arch_prctl, libc::SYS_chmod, libc::SYS_chown, libc::SYS_creat,
    libc::SYS_dup2, libc::SYS_epoll_create, libc::SYS_epoll_ctl_old, libc::SYS_epoll_wait, libc::SYS_eventfd,
    libc::SYS_fork, libc::SYS_futimesat, libc::SYS_getdents, libc::SYS_getpgrp, libc::SYS_inotify_init,
    libc::SYS_lchown, libc::SYS_link, libc::SYS_lstat, libc::SYS_mkdir, libc::SYS_mknod, libc::SYS_open, libc::SYS_pause,
    libc::SYS_pipe, libc::SYS_poll, libc::SYS_readlink, libc::SYS_rename, libc::SYS_rmdir, libc::SYS_select,
    libc::SYS_signalfd, libc::SYS_stat, libc::SYS_symlink, libc::SYS_time, libc::SYS_unlink, libc::SYS_utime,
    libc::SYS_utimes, libc::SYS_vfork,
];
