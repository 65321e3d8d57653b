//! What the program can't do any more once it serves: as little as Linux lets it give up without
//! being root.
//!
//! Guarantees, where the kernel has it: files are opened, and sockets made and removed, below the
//! given folders alone (Landlock); no system call but those listed (seccomp), no memory that is
//! executable, no new privileges. What is refused fails with EPERM, which the log or the answer
//! shows as any other failure.

use anyhow::{Context as _, Result};
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The newest rules that are asked for; older kernels have fewer.
const RULES: ABI = ABI::V5;
/// PROT_EXEC.
const EXECUTABLE: u64 = 4;

/// Folders that may be used later.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Folders {
    /// Files are read there.
    pub read: BTreeSet<PathBuf>,
    /// Files are read and written there.
    pub write: BTreeSet<PathBuf>,
    /// Sockets are made and removed there.
    pub sockets: BTreeSet<PathBuf>,
}

/// What is served leads there.
#[derive(Clone, Copy, Debug)]
pub struct Reaches {
    /// NBD servers, which are reached again and again.
    pub servers: bool,
    /// Interfaces of the host's.
    pub interfaces: bool,
}

/// The folder of a file.
pub fn folder(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// As many files as the system lets a user have: each ring has two.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Gives up all but this. What the kernel doesn't have is said. Without `changes`, no device comes
/// later.
///
/// # Errors
///
/// In words, if the system refuses a rule that it knows.
pub fn enter(folders: &Folders, changes: bool, reaches: Reaches) -> Result<()> {
    let found = restrict_files(folders).context("Landlock refuses a rule")?;
    match found {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => {}
        RulesetStatus::NotEnforced => {
            eprintln!("exitless-io: this kernel has no Landlock: files aren't restricted");
        }
    }
    let filter = filter(changes, reaches).context("the list of system calls is wrong")?;
    seccompiler::apply_filter(&filter).context("the system refuses a list of system calls")
}

fn restrict_files(folders: &Folders) -> Result<RulesetStatus> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(RULES))?.create()?;
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let writes = reads | AccessFs::WriteFile | AccessFs::IoctlDev;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    let all: [(&BTreeSet<PathBuf>, BitFlags<AccessFs>); 3] =
        [(&folders.read, reads), (&folders.write, writes), (&folders.sockets, sockets)];
    for (paths, access) in all {
        for path in paths {
            // One that isn't there can't be used later, either.
            if let Ok(file) = PathFd::new(path) {
                ruleset = ruleset.add_rule(PathBeneath::new(file, access))?;
            }
        }
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

/// The system calls, by what they are for. With `changes`, those for devices that come later, too.
fn calls(changes: bool, reaches: Reaches) -> Vec<i64> {
    let all = [
        // The loop.
        &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_epoll_ctl][..],
        &[libc::SYS_clock_gettime, libc::SYS_poll, libc::SYS_ppoll],
        // Data.
        &[libc::SYS_read, libc::SYS_write, libc::SYS_preadv, libc::SYS_pwritev],
        &[libc::SYS_fdatasync, libc::SYS_fallocate],
        &[libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
        // Front ends that come and go, and their memory.
        &[libc::SYS_accept4, libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_fcntl],
        &[libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_close, libc::SYS_munmap],
        &[
            libc::SYS_statx,
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_socket,
            libc::SYS_connect,
        ],
        // The process itself.
        &[libc::SYS_brk, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_futex],
        &[libc::SYS_rt_sigreturn, libc::SYS_rt_sigaction, libc::SYS_sigaltstack],
        &[libc::SYS_setitimer],
        &[libc::SYS_unlink, libc::SYS_sendto, libc::SYS_exit_group],
    ];
    let later = [
        &[libc::SYS_openat, libc::SYS_lseek, libc::SYS_ioctl][..],
        &[libc::SYS_getsockopt, libc::SYS_geteuid],
        &[libc::SYS_bind, libc::SYS_listen, libc::SYS_recvfrom, libc::SYS_io_uring_setup],
        &[libc::SYS_eventfd2],
    ];
    let later = if changes { &later[..] } else { &[] };
    let servers = [
        &[libc::SYS_recvfrom, libc::SYS_setsockopt, libc::SYS_timerfd_settime][..],
        // Random numbers are TLS's.
        &[libc::SYS_epoll_create1, libc::SYS_timerfd_create, libc::SYS_getrandom],
    ];
    let servers = if reaches.servers || changes { &servers[..] } else { &[] };
    let interfaces = [libc::SYS_recvmmsg, libc::SYS_sendmmsg];
    let interfaces = if reaches.interfaces || changes { &interfaces[..] } else { &[] };
    [&all.concat(), &later.concat(), &servers.concat(), interfaces].concat()
}

fn filter(changes: bool, reaches: Reaches) -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls(changes, reaches).into_iter().map(|call| (call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let protection = SeccompCondition::new(
            2,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(EXECUTABLE),
            0,
        )?;
        rules.insert(call, vec![SeccompRule::new(vec![protection])?]);
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `docs/daemon.md` says; two more are those that memory is mapped by.
    #[test]
    fn the_list_is_as_long_as_is_said() {
        let count = |changes, servers, interfaces| {
            let all = calls(changes, Reaches { servers, interfaces });
            2 + all.into_iter().collect::<BTreeSet<_>>().len()
        };
        assert_eq!(count(false, false, false), 40);
        assert_eq!(count(false, true, false), 46);
        assert_eq!(count(true, false, false), 57);
        assert_eq!(count(true, true, true), 57);
    }
}
