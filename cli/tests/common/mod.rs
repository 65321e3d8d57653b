//! Runs of the real command line with a script in QEMU's place.

// Each test file uses a part of it.
#![allow(dead_code, reason = "each test binary uses its part")]

use ledger::Counters;
use proto::{End, Policy, Record};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    fs::{self, Permissions},
    io::Read,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};
use tempfile::TempDir;

/// Where a run finds what it needs, and may leave what it shouldn't.
pub struct Place(TempDir);

impl Place {
    /// A place whose QEMU tells its process number on the console, does what `script` says
    /// and then nothing, for ever.
    pub fn new(script: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        for folder in ["runtime", "tmp"] {
            fs::create_dir(place.path(folder)).unwrap();
        }
        let script = format!(
            "#!/bin/sh\n\
             if [ \"$1\" = --version ]; then echo QEMU emulator version 11.1.3; exit; fi\n\
             if [ \"$1 $2\" = '-device amd-iommu,help' ]; then\n\
               printf 'intremap=\\nxtsup=\\ndma-remap=\\n'; exit\n\
             fi\n\
             cd {}\n\
             printf '\\001\\001\\020%016d' $$\n\
             {script}\n\
             exec sleep 1000\n",
            place.0.path().display()
        );
        fs::write(place.path("qemu"), script).unwrap();
        fs::set_permissions(place.path("qemu"), Permissions::from_mode(0o755)).unwrap();
        fs::write(place.path("kernel"), kernel()).unwrap();
        place
    }

    /// A file of this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Records on their way out of the machine, as a file for the script to `cat`.
    pub fn records(&self, name: &str, records: &[Record]) {
        let payload: Vec<_> = records.iter().flat_map(proto::encode).collect();
        let frames = payload.chunks(255).flat_map(|c| [&[1, 0x7F, c.len() as u8], c].concat());
        fs::write(self.path(name), frames.collect::<Vec<_>>()).unwrap();
    }

    /// The program with this place around it and standard output to be read.
    pub fn exitless(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_exitless"));
        command
            .args(args)
            .env("EXITLESS_QEMU", self.path("qemu"))
            // Never looked into: QEMU would.
            .env("EXITLESS_HYPERVISOR", self.path("kernel"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("TMPDIR", self.path("tmp"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A run of one VM, not started yet.
    pub fn run(&self) -> Command {
        let kernel = self.path("kernel");
        self.exitless(&["run", "--kernel", kernel.to_str().unwrap(), "--memory", "64M"])
    }

    /// What lies about in the place that only a run can have left.
    pub fn left_over(&self) -> Vec<PathBuf> {
        let folders = [self.path("runtime/exitless"), self.path("tmp")];
        let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
        entries.map(|e| e.path()).collect()
    }
}

/// A multiboot kernel that is loaded at 1 MiB and has no code.
fn kernel() -> Vec<u8> {
    let (magic, flags) = (0x1BAD_B002u32, 0x1_0000u32);
    let sum = 0u32.wrapping_sub(magic).wrapping_sub(flags);
    let fields = [magic, flags, sum, 0x10_0000, 0x10_0000, 0, 0, 0x10_0010];
    fields.map(u32::to_le_bytes).concat()
}

/// QEMU of a run that has begun.
pub struct Qemu {
    pid: Pid,
    process: OwnedFd,
}

impl Qemu {
    /// Waits until the run shows what its QEMU says first.
    pub fn of(run: &mut Child) -> Qemu {
        let mut digits = [0; 16];
        run.stdout.as_mut().unwrap().read_exact(&mut digits).unwrap();
        Qemu::numbered(&digits)
    }

    /// From what it says.
    pub fn numbered(digits: &[u8]) -> Qemu {
        let number = std::str::from_utf8(digits).unwrap().parse().unwrap();
        let pid = Pid::from_raw(number).unwrap();
        Qemu { pid, process: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    /// Kills it.
    pub fn kill(&self) {
        kill_process(self.pid, Signal::KILL).unwrap();
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.ends_within(0)
    }

    /// Whether it ends in so many seconds.
    pub fn ends_within(&self, seconds: i64) -> bool {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&time)).unwrap() == 1
    }
}

/// Sends a signal to a child.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for the end of a child: its status and what it said on standard error.
pub fn end(mut child: Child) -> (ExitStatus, String) {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut text).unwrap();
    }
    (child.wait().unwrap(), text)
}

/// What a hypervisor says when its one VM has started.
pub fn started() -> [Record; 2] {
    let (name, why) = ("guest".to_owned(), "asked for".to_owned());
    let machine = Record::Machine { cpus: 2, memory: 0, tsc_hz: 1_000, host_memory: 0 };
    let policy = Policy::Direct;
    [machine, Record::Started { vm: 0, name, policy, why, memory: 0, overhead: 0, now: 0 }]
}

/// And when it has ended.
pub fn ended() -> Record {
    Record::Ended { vm: 0, end: End::PowerOff }
}

/// Its answer to a question: CPUID so often at that time.
pub fn live(now: u64, exits: u64) -> Record {
    let mut counters = Counters { entries: exits, ..Counters::default() };
    counters.exits = vec![0; ledger::Reason::COUNT];
    counters.exits[ledger::Reason::Cpuid as usize] = exits;
    Record::Live { vm: 0, vcpu: 0, core: 1, counters, now, left: 0 }
}

/// A file that is always full.
pub fn full() -> fs::File {
    fs::File::options().write(true).open(Path::new("/dev/full")).unwrap()
}
