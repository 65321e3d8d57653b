//! What the program can't do any more once it serves: as little as Linux lets it give up without
//! being root.
//!
//! Guarantees, where the kernel has it: who serves opens no file and makes no socket to listen at;
//! what it can do with files is to remove those below the given folders (Landlock). Another process
//! opens what comes later, below the given folders alone. Both make no system call but those listed
//! (seccomp, `calls`), and have no memory that is executable and no new privileges. What is refused
//! fails with EPERM, which the log or the answer shows as any other failure.

mod calls;

pub use calls::Needs;

use anyhow::{Context as _, Result};
use calls::{CLOSER, Call, OPENER, serving};
use daemon_os::CALLS_FOR_MEMORY;
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
/// What an argument has to be, as far as these bits of it go: any of these.
struct Only {
    calls: &'static [i64],
    argument: u8,
    bits: u64,
    any: &'static [u64],
}

/// Memory without PROT_EXEC.
const NOT_EXECUTABLE: Only =
    Only { calls: &[libc::SYS_mmap, libc::SYS_mprotect], argument: 2, bits: 4, any: &[0] };
/// Of what serves: sockets of Unix, IPv4 and IPv6, and no other that a kernel may have; what is
/// done with descriptors, and not who gets which signal by them; the exchange of a ring's files and
/// of the memory that it holds; of a device's calls those that give memory to it and take it.
const SERVING: [Only; 5] = [
    NOT_EXECUTABLE,
    Only { calls: &[libc::SYS_socket], argument: 0, bits: WORD, any: &[1, 2, 10] },
    Only {
        calls: &[libc::SYS_fcntl],
        argument: 1,
        bits: WORD,
        any: &[
            libc::F_GETFD as u64,
            libc::F_GETFL as u64,
            libc::F_SETFL as u64,
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_GET_SEALS as u64,
        ],
    },
    Only {
        calls: &[libc::SYS_io_uring_register],
        argument: 1,
        bits: WORD,
        any: &[UPDATE_FILES, UPDATE_BUFFERS],
    },
    Only { calls: &[libc::SYS_ioctl], argument: 1, bits: WORD, any: &CALLS_FOR_MEMORY },
];
/// All that the kernel looks at of an `int`.
const WORD: u64 = 0xffff_ffff;
/// IORING_REGISTER_FILES_UPDATE.
const UPDATE_FILES: u64 = 6;
/// IORING_REGISTER_BUFFERS_UPDATE.
const UPDATE_BUFFERS: u64 = 16;

impl Only {
    fn rules(&self) -> Result<Vec<SeccompRule>> {
        let is = SeccompCmpOp::MaskedEq(self.bits);
        let rule = |value: &u64| {
            let length = SeccompCmpArgLen::Dword;
            let condition = SeccompCondition::new(self.argument, length, is.clone(), *value)?;
            Ok(SeccompRule::new(vec![condition])?)
        };
        self.any.iter().map(rule).collect()
    }
}

/// What the look-up of a host's name reads.
const NAMES: [&str; 6] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
];

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

/// Gives up what serving doesn't take. What the kernel doesn't have is said. Sockets' files are
/// removed below the folders for them, and that is all that can be done with files.
///
/// # Errors
///
/// In words, if the system refuses a rule that it knows.
pub fn enter(folders: &Folders, needs: Needs) -> Result<()> {
    let found = restrict_files(&[(&folders.sockets, AccessFs::RemoveFile.into())]);
    match found.context("Landlock refuses a rule")? {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => {}
        RulesetStatus::NotEnforced => {
            eprintln!("exitless-io: this kernel has no Landlock: files aren't restricted");
        }
    }
    restrict_calls(&serving(&needs), &SERVING)
}

/// Gives up what opening files, sockets and servers doesn't take.
///
/// # Errors
///
/// As for [`enter`].
pub fn enter_opener(folders: &Folders) -> Result<()> {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let writes = reads | AccessFs::WriteFile | AccessFs::IoctlDev;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    // Added one by one: to be made of a list it would be sorted, by a sort of its own.
    let mut names = BTreeSet::new();
    names.extend(NAMES.into_iter().map(PathBuf::from));
    restrict_files(&[
        (&folders.read, reads),
        (&folders.write, writes),
        (&folders.sockets, sockets),
        (&names, AccessFs::ReadFile.into()),
    ])
    .context("Landlock refuses a rule")?;
    restrict_calls(OPENER, &[NOT_EXECUTABLE])
}

/// Gives up, for this thread, what closing descriptors doesn't take.
///
/// # Errors
///
/// As for [`enter`].
pub fn enter_closer() -> Result<()> {
    restrict_files(&[]).context("Landlock refuses a rule")?;
    restrict_calls(CLOSER, &[NOT_EXECUTABLE])
}

fn restrict_files(all: &[(&BTreeSet<PathBuf>, BitFlags<AccessFs>)]) -> Result<RulesetStatus> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(RULES))?.create()?;
    for (paths, access) in all {
        for path in *paths {
            // One that isn't there can't be used later, either.
            if let Ok(file) = PathFd::new(path) {
                ruleset = ruleset.add_rule(PathBeneath::new(file, *access))?;
            }
        }
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

fn restrict_calls(calls: &[Call], only: &[Only]) -> Result<()> {
    let filter = filter(calls, only).context("the list of system calls is wrong")?;
    seccompiler::apply_filter(&filter).context("the system refuses a list of system calls")
}

fn filter(calls: &[Call], only: &[Only]) -> Result<BpfProgram> {
    let mut rules = BTreeMap::new();
    for (call, _) in calls {
        let own = only.iter().filter(|one| one.calls.contains(call));
        let own = own.map(|one| one.rules()).collect::<Result<Vec<_>>>()?.concat();
        rules.insert(*call, own);
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon_os::{Uring, stock_rings};
    use rustix::fd::AsFd as _;
    use rustix::net::socket;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixDatagram;

    /// From inside, in a thread, which alone gives it up. It may not even end.
    fn inside(
        enter: impl FnOnce() -> Result<()> + Send + 'static,
        try_it: impl FnOnce() + Send + 'static,
    ) {
        let (done, is_done) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        std::thread::spawn(move || {
            stock_rings(1).expect("the system has io_uring");
            enter().expect("it can be given up");
            let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(try_it));
            let _ = rustix::io::write(&done, &[tried.is_ok().into()]);
            loop {
                let _ = rustix::event::poll(&mut [], None);
            }
        });
        let mut told = [0];
        rustix::io::read(&is_done, &mut told).expect("it is told");
        assert_eq!(told, [1]);
    }

    fn is_refused<T>(what: std::io::Result<T>) -> bool {
        what.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    /// A ring that could open files would go around all of it.
    #[test]
    fn no_ring_is_made_and_no_file_is_opened() {
        for changes in [false, true] {
            let file = tempfile::tempfile().expect("a file");
            let folder = tempfile::tempdir().expect("a folder");
            let (_, pipe) = std::io::pipe().expect("a pipe");
            let needs = Needs { changes, stock: changes, files: true, ..Needs::default() };
            let enter = move || enter(&Folders::default(), needs);
            inside(enter, move || {
                assert!(is_refused(stock_rings(1)));
                // What its own rings can do is daemon-os's to test: nothing of this kind.
                let own = Uring::new(&[file.as_fd()]);
                assert_eq!(own.is_ok(), changes, "files of a ring are exchanged for later ones");
                assert!(is_refused(std::fs::File::open("/dev/null")));
                assert!(is_refused(rustix::process::getpgid(None).map_err(Into::into)));
                assert_eq!(is_refused(UnixDatagram::unbound()), !changes);
                let netlink = rustix::net::AddressFamily::NETLINK;
                let netlink = socket(netlink, rustix::net::SocketType::RAW, None);
                assert!(is_refused(netlink.map_err(Into::into)));
                // Of what can be done with a descriptor, too, which could send signals else.
                rustix::fs::fcntl_getfl(&file).expect("it may");
                drop(file.try_clone().expect("it may"));
                let resized = rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 16);
                assert!(is_refused(resized.map_err(Into::into)));
                let listener = std::os::unix::net::UnixListener::bind(folder.path().join("s"));
                assert!(is_refused(listener));
            });
        }
    }

    /// Who gives a controller memory asks devices for nothing else.
    #[test]
    fn no_other_call_of_a_device_is_made() {
        let (file, _other) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let needs = Needs { controllers: true, ..Needs::default() };
        rustix::io::ioctl_fionread(&file).expect("it may");
        let try_it =
            move || assert!(is_refused(rustix::io::ioctl_fionread(&file).map_err(Into::into)));
        inside(move || enter(&Folders::default(), needs), try_it);
    }

    #[test]
    fn who_opens_files_opens_those_of_its_folders() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        for folder in [&own, &other] {
            std::fs::write(folder.path().join("file"), "").expect("it is written");
        }
        let mut folders = Folders::default();
        folders.write.insert(own.path().to_owned());
        let enter = move || enter_opener(&folders);
        inside(enter, move || {
            std::fs::File::open(own.path().join("file")).expect("it may");
            assert!(is_refused(std::fs::File::open(other.path().join("file"))));
            assert!(is_refused(stock_rings(1)));
            assert!(is_refused(std::process::Command::new("true").status()));
        });
    }
}
