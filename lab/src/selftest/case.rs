//! A case: which VMs on which machine, and what must come of it.

use super::{cost::Budget, kernel::Variant, suite::Suite};
use crate::{bench::Edge, cmdline::LINUX};
use exitless::{
    network::NicModel,
    qemu::Iommu,
    report::Report,
    session::Ended,
    source::{Trust, Way},
};
use ledger::Reason;
use plan::{Choice, DeviceName, Disk, Host, Interface, Network, Policy, WithoutRemapping};
use std::ops::RangeInclusive;

/// Bytes of a test VM's memory.
pub const MEMORY: u64 = plan::MIN_MEMORY;
/// The test that sleeps nearly all the time.
pub const HEARTBEAT: &str = "heartbeat";
/// Bytes of a VM's memory that runs Linux.
const LINUX_MEMORY: u64 = 512 << 20;

/// A case.
pub struct Case {
    /// `group/name`.
    pub name: String,
    /// Whether a quick test has it.
    pub quick: bool,
    /// Whether it takes long: a whole test has it if asked for such ones.
    pub long: bool,
    /// The VMs; on the bare machine the only one.
    pub guests: Vec<Guest>,
    /// What the plan says of network controllers.
    pub networks: Vec<Network>,
    /// How many cores serve disks and networks.
    pub sidecores: usize,
    /// What the plan says of the host.
    pub host: Host,
    /// What the hypervisor's log must say, each in one of its lines.
    pub log: Vec<&'static str>,
    /// What the hypervisor's log must not say, in any of its lines.
    pub unsaid: Vec<&'static str>,
    /// The host must have looked over what confines the VMs at least once.
    pub audited: bool,
    /// The hypervisor's log must have nothing to warn of.
    pub silent: bool,
    /// What its audit must find, and tell in these words; else nothing.
    pub finding: Option<&'static str>,
    /// When a byte is typed on the last VM's console.
    pub typed: Option<Cue>,
    /// The machine's IOMMU, where it has one.
    pub iommu: Iommu,
    /// What is special about the machine.
    pub machine: Special,
    /// Microseconds that a vCPU has a shared core while another waits for it.
    pub slice_us: u32,
    /// What must come of the run.
    pub expect: Expect,
    /// What the first VM's windows for the counting plugin may cost; empty: the plugin isn't
    /// loaded.
    pub windows: Vec<Budget>,
    /// What the first VM counts itself, and what it may come to.
    pub prices: Vec<Price>,
}

/// What a test kernel waits for, that it can't see itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cue {
    /// So many VMs have ended.
    Ended(usize),
    /// The hypervisor's log has said this.
    Log(&'static str),
    /// A VM's console has said this.
    Said(&'static str),
}

/// What a test kernel counts itself: the word for it, what it is, and how many instructions each
/// may take.
pub type Price = (&'static str, &'static str, u64);

impl Case {
    /// Whether it runs without the hypervisor.
    pub fn is_bare(&self) -> bool {
        matches!(self.machine, Special::Bare | Special::BareWithoutIommu)
    }

    /// Whether the machine's IOMMU can remap interrupts.
    pub fn remaps(&self) -> bool {
        self.machine != Special::NoInterruptRemapping
            && self.host.without_remapping == WithoutRemapping::Refuse
    }

    /// Whether a VM of it runs this.
    pub fn has(&self, variant: Variant) -> bool {
        self.guests.iter().any(|g| g.variant == variant)
    }

    /// Whether instructions to the first guest entry are counted: where that costs little, as it
    /// doubles the time that firmware takes.
    pub fn counts_start(&self) -> bool {
        matches!(self.machine, Special::Boots(_, Trust::Anything, suite) if suite != Some(Suite::Bookworm))
    }

    /// Whether firmware runs first, which takes an emulated machine long.
    pub fn has_firmware(&self) -> bool {
        matches!(self.machine, Special::Boots(way, ..) if way != Way::Pvh)
    }

    pub fn has_linux(&self) -> bool {
        self.has(Variant::Linux) || self.has(Variant::Victim)
    }

    /// Whether it must have the machine that tests run on for itself: several CPUs of it are busy
    /// at once, turns on a shared core are timed, or its run is measured.
    pub fn is_alone(&self) -> bool {
        let measured = !self.windows.is_empty() || self.machine == Special::Watched;
        let timed = self.slice_us != plan::DEFAULT_SLICE;
        let busy = self.guests.iter().filter(|g| g.tests != HEARTBEAT && g.cores != Cores::First);
        let cores = busy.map(|g| if g.cores == Cores::One { 1 } else { g.cpus }).sum::<u32>();
        // An attacker waits for what the victim does most of the time. One that waits for its only
        // sidecore is busy beside that for half of the time: until then the machine starts.
        let waits = self.machine == Special::Attacked;
        measured || timed || (cores > 1 && !waits) || cores as usize + self.sidecores > 2
    }
}

/// A VM of a case.
pub struct Guest {
    /// The test kernel's tests, the attacker's subjects, separated by commas; Linux has none.
    pub tests: &'static str,
    /// More words for its command line.
    pub options: &'static str,
    /// The seed of what is random in a test, or of the endless stream that the attacker ends with.
    pub stream: Option<u64>,
    /// Its vCPUs.
    pub cpus: u32,
    /// Which cores.
    pub cores: Cores,
    /// Its vCPUs' weight there.
    pub weight: u32,
    /// The most that its sidecores serve it.
    pub limit: plan::Limit,
    /// Which image.
    pub variant: Variant,
    /// The interrupt policy that is asked for.
    pub policy: Choice,
    /// Its devices.
    pub devices: Vec<DeviceName>,
    /// Disks that a sidecore serves; on the bare machine QEMU itself.
    pub disks: Vec<Disk<String>>,
    /// Network interfaces that a sidecore serves.
    pub interfaces: Vec<Interface>,
    /// A reset of its own starts it again.
    pub restarts: bool,
    /// It may run guests of its own.
    pub nested: bool,
    /// The IOMMU that it has itself.
    pub iommu: plan::GuestIommu,
    /// How it must end.
    pub end: Expected,
    /// What its console must say, besides an `ok` for each test and no `FAIL`.
    pub says: Vec<&'static str>,
    /// What the ledger must have counted over its whole life.
    pub counts: Vec<(Reason, RangeInclusive<u64>)>,
    /// Of the device interrupts that Linux says it had (`interrupts=N`), so many in a hundred may
    /// have come by the host at the most.
    pub by_host: Option<u64>,
    /// What the report must say was refused, in one of its sentences.
    pub incident: Option<&'static str>,
}

/// On which cores a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The next that no VM has.
    Next,
    /// Those of the case's first VM.
    First,
    /// All its vCPUs on the first of them.
    One,
    /// Its one vCPU on this.
    At(u32),
}

/// How a VM must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Every check of the test kernel held.
    Passed,
    /// It powers itself off.
    PowerOff,
    /// It resets.
    Reset,
    /// It is stopped, for a reason that contains this text.
    Fault(&'static str),
    /// It doesn't: it goes on when the others have ended, and the machine is switched off.
    Never,
    /// As it likes, or not at all: nobody knows what it does.
    Anyhow,
}

/// What must come of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Every VM ends as its [`Guest`] says.
    Ends,
    /// The hypervisor refuses, in a sentence that contains all of these.
    Refused(Vec<&'static str>),
    /// The hypervisor panics, and says this.
    Panics(&'static str),
    /// The hypervisor has no plan: it tells what the machine offers, these parts among others.
    Tells(Vec<&'static str>),
    /// The command line rejects the plan, in a sentence that contains all of these.
    Rejected(Vec<&'static str>),
    /// Firmware doesn't start the hypervisor, and says this.
    Unstarted(&'static str),
}

/// What is special about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Nothing.
    None,
    /// Its vCPUs' counters are asked for all the time, as `exitless top` does once a second.
    /// The VMs must have the exits, reason for reason, that they have when nobody asks.
    Watched,
    /// The first VM is Linux at work on a disk of its own, the others attack it: see [`hostile`].
    Attacked,
    /// The first NVMe controller's namespace is zeroes at first, and looked at afterwards: see
    /// [`parts`](super::parts).
    Parts,
    /// QEMU has these arguments besides.
    Arguments(&'static [&'static str]),
    /// No hypervisor.
    Bare,
    /// No hypervisor, and no IOMMU either.
    BareWithoutIommu,
    /// This CPU model.
    Cpu(&'static str),
    /// It comes to the hypervisor in this way; by UEFI firmware of this suite, if it has that.
    Boots(Way, Trust, Option<Suite>),
    /// No IOMMU.
    NoIommu,
    /// An IOMMU that can't remap interrupts.
    NoInterruptRemapping,
    /// Network controllers of these models.
    Nics([NicModel; 2]),
    /// Two network controllers on one wire: see [`uplink`](super::uplink).
    Wired,
    /// One network controller, an igb, behind a PCI Express port.
    NicBehindPort,
    /// These devices besides, as QEMU names them.
    Devices(&'static [&'static str]),
    /// These words are said to QEMU's monitor when a VM has said something.
    Monitored {
        /// What a VM says.
        when: &'static str,
        /// What the monitor is told.
        words: &'static str,
        /// More of QEMU's arguments.
        arguments: &'static [&'static str],
    },
    /// A watchdog that firmware left running: see [`watchdog`](super::watchdog).
    Watchdog {
        /// Its table names a way to stop it.
        stops: bool,
    },
    /// UEFI firmware, and a display; when the first VM has ended, its screen must show what the
    /// serial port said: see [`screen`](super::screen).
    Screen,
    /// The host's core alone.
    OneCore,
    /// This much memory, in MiB.
    Memory(u64),
    /// The hypervisor's image in which guests may plant what the audit must find, and which dawdles
    /// before it enters a guest.
    Planted,
    /// The same image, which forgets the addresses of BARs behind bridges when it starts, and puts
    /// one of 00:15.0 over an IOMMU's registers, with these devices besides.
    Unplaced(&'static [&'static str]),
    /// The hypervisor's image in which a guest may switch off what makes nesting cheap.
    Switched,
    /// A boot image with one byte of its plan changed.
    DamagedImage,
    /// A boot image cut in half.
    HalfImage,
    /// No boot image; the CPU is this model of QEMU's.
    NoImage(&'static str),
    /// Another kind of machine.
    Strange(Strange),
    /// Bochs' machine, with so many CPUs: Intel's VMX, and no IOMMU.
    Bochs(u32),
    /// The same in the Bochs of `cli/bochs/mended`.
    BochsMended(u32),
    /// The same with the image of [`Special::Planted`], in which an ELI guest takes its interrupts
    /// itself without a device.
    BochsPlanted(u32),
    /// Files as they are, without the command line's own look at them.
    Unchecked,
}

impl Special {
    /// How many CPUs Bochs' machine has, if it is that one.
    pub fn bochs(self) -> Option<u32> {
        match self {
            Special::Bochs(cpus) | Special::BochsPlanted(cpus) | Special::BochsMended(cpus) => {
                Some(cpus)
            }
            _ => None,
        }
    }

    /// Whether its image is that of the audit's tests.
    pub fn is_planted(self) -> bool {
        matches!(self, Special::Planted | Special::Unplaced(_) | Special::BochsPlanted(_))
    }
}

/// What is different about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strange {
    /// CPUs.
    pub cpus: u32,
    /// QEMU's model of them.
    pub cpu: &'static str,
    /// Memory, in GiB.
    pub memory: u64,
    /// It has an IOMMU.
    pub iommu: bool,
    /// The hypervisor gets a plan.
    pub image: bool,
    /// More of QEMU's arguments.
    pub arguments: &'static [&'static str],
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How QEMU ended.
    pub ended: Ended,
    /// What the hypervisor reported.
    pub report: Report,
    /// Each VM's console.
    pub consoles: Vec<String>,
    /// The hypervisor's log.
    pub log: Vec<String>,
    /// The answers that came while the first VM was [`QUIET`]: the vCPUs' exits.
    pub answers: Vec<u64>,
    /// Of [`Special::Attacked`]: the counters of the VMs that never end, at the end.
    pub live: Report,
    /// What another run reported, in which nobody asked.
    pub unwatched: Option<Report>,
    /// What the counting plugin saw.
    pub edges: Vec<Edge>,
    /// Instructions from the loader's or the hypervisor's first to the first guest entry, if they
    /// were counted.
    pub entered: Option<u64>,
    /// What was on the first disk at the end, of [`Special::Attacked`] and [`Special::Parts`].
    pub disk: Vec<u8>,
    /// What its last screenshot lacked, of [`Special::Screen`].
    pub screen: Vec<String>,
}

#[cfg(test)]
impl Outcome {
    /// Of a run of three VMs that was stopped, and in which nothing was said.
    pub fn silent(report: Report) -> Outcome {
        Outcome {
            ended: Ended::Stopped,
            report,
            consoles: vec![String::new(); 3],
            log: Vec::new(),
            answers: Vec::new(),
            live: Report::new(NAMES.into_iter().take(3)),
            unwatched: None,
            edges: Vec::new(),
            entered: None,
            disk: Vec::new(),
            screen: Vec::new(),
        }
    }
}

/// What a test kernel says before and after it makes a point of not exiting.
pub const QUIET: [&str; 2] = ["quiet from here\n", "quiet to here\n"];

/// Names of the VMs of a case.
pub const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];

impl Guest {
    /// Whether the machine may be switched off while it runs.
    pub fn is_endless(&self) -> bool {
        matches!(self.end, Expected::Never | Expected::Anyhow)
    }

    /// The policy that must be in force, and a part of why.
    pub fn in_force(&self) -> (&'static str, &'static str) {
        match self.policy {
            None => (Policy::Direct.label(), "it shares no core"),
            Some(asked) => (asked.label(), "asked for"),
        }
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        match self.variant {
            Variant::Linux | Variant::Victim => LINUX_MEMORY,
            _ => MEMORY,
        }
    }

    /// The kernel's command line, where it runs Linux that exchanges data with these ports.
    pub fn linux_cmdline(&self, port: u16, counter: u16) -> String {
        format!(
            "{LINUX} quiet exitless.workload=echo exitless.port={port} exitless.counter={counter} {}",
            self.options
        )
    }

    /// The attacker's command line.
    pub fn hostile_cmdline(&self) -> String {
        let stream = self.stream.map_or(String::new(), |seed| format!(" random={seed:#x}"));
        let policy = self.in_force().0;
        let shared = self.says_shared();
        format!("attack={} policy={policy}{shared} {}{stream}", self.tests, self.options)
    }

    /// A test kernel's command line.
    pub fn cmdline(&self, bare: bool) -> String {
        let policy = if bare { "bare" } else { self.in_force().0 };
        let shared = self.says_shared();
        let seed = self.stream.map_or(String::new(), |seed| format!(" seed={seed}"));
        format!("test={} policy={policy}{shared} {}{seed}", self.tests, self.options)
    }

    fn says_shared(&self) -> &'static str {
        if matches!(self.cores, Cores::Next | Cores::At(_)) { "" } else { " shared=yes" }
    }
}
