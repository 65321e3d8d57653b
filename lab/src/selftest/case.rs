//! A case: which VMs on which machine, what must come of it; and its run.

use super::{
    echo,
    hostile::{self, Conductor},
    kernel::{Kernel, Variant},
};
use crate::{
    bench::{self, Edge},
    cmdline::LINUX,
};
use anyhow::{Context as _, Result};
use exitless::{
    context::Context,
    load::{self, File},
    machine::{Boot, Disk, Machine},
    network::NicModel,
    report::Report,
    session::{self, Ended, Framing, Seen, Setup, Typed, Wishes},
    stream::Piece,
};
use ledger::Reason;
use plan::{Choice, DeviceName, Host, Network, OnReset, Plan, Policy, Vm, WithoutRemapping};
use proto::Record;
use std::{
    fs,
    ops::{ControlFlow, RangeInclusive},
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Bytes of a test VM's memory.
pub const MEMORY: u64 = plan::MIN_MEMORY;
/// A byte of the boot image that belongs to the plan in it.
const IN_PLAN: usize = 48;
/// Bytes of a VM's memory that runs Linux.
const LINUX_MEMORY: u64 = 512 << 20;
/// When a case is given up, and one with Linux.
const PATIENCE: Duration = Duration::from_secs(60);
const LINUX_PATIENCE: Duration = Duration::from_secs(240);

/// A case.
pub struct Case {
    /// `group/name`.
    pub name: String,
    /// Whether a quick test has it.
    pub quick: bool,
    /// The VMs; on the bare machine the only one.
    pub guests: Vec<Guest>,
    /// What the plan says of network controllers.
    pub networks: Vec<Network>,
    /// What the plan says of the host.
    pub host: Host,
    /// What the hypervisor's log must say, each in one of its lines.
    pub log: Vec<&'static str>,
    /// The host must have looked over what confines the VMs at least once.
    pub audited: bool,
    /// What is special about the machine.
    pub machine: Special,
    /// Microseconds that a vCPU has a shared core while another waits for it.
    pub slice_us: u32,
    /// What must come of the run.
    pub expect: Expect,
    /// What the first VM's windows for the counting plugin may cost; empty: the plugin isn't
    /// loaded.
    pub windows: Vec<Budget>,
}

/// A window that a test kernel opens and closes on a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What is done in it, for sentences.
    pub what: &'static str,
    /// How often.
    pub times: u64,
    /// Host instructions that each may take on that vCPU's core.
    pub host_each: u64,
    /// Nor more than in the window before.
    pub like_before: bool,
}

impl Case {
    /// Whether it runs without the hypervisor.
    pub fn is_bare(&self) -> bool {
        matches!(self.machine, Special::Bare | Special::BareWithoutIommu)
    }

    /// Whether the machine's IOMMU can remap interrupts.
    fn remaps(&self) -> bool {
        self.machine != Special::NoInterruptRemapping
            && self.host.without_remapping == WithoutRemapping::Refuse
    }

    /// Whether a VM of it runs this.
    pub fn has(&self, variant: Variant) -> bool {
        self.guests.iter().any(|g| g.variant == variant)
    }

    fn has_linux(&self) -> bool {
        self.has(Variant::Linux) || self.has(Variant::Steady)
    }
}

/// A VM of a case.
pub struct Guest {
    /// The test kernel's tests, the attacker's subjects, separated by commas; Linux has none.
    pub tests: &'static str,
    /// More words for its command line.
    pub options: &'static str,
    /// The seed of the endless random stream that the attacker ends with.
    pub stream: Option<u64>,
    /// Its vCPUs.
    pub cpus: u32,
    /// Which cores.
    pub cores: Cores,
    /// Its vCPUs' weight there.
    pub weight: u32,
    /// Which image.
    pub variant: Variant,
    /// The interrupt policy that is asked for.
    pub policy: Choice,
    /// Its devices.
    pub devices: Vec<DeviceName>,
    /// A reset of its own starts it again.
    pub restarts: bool,
    /// How it must end.
    pub end: Expected,
    /// What its console must say, besides an `ok` for each test and no `FAIL`.
    pub says: Vec<&'static str>,
    /// What the ledger must have counted over its whole life.
    pub counts: Vec<(Reason, RangeInclusive<u64>)>,
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
    /// The command line rejects the plan, in a sentence that contains all of these.
    Rejected(Vec<&'static str>),
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
    /// No hypervisor.
    Bare,
    /// No hypervisor, and no IOMMU either.
    BareWithoutIommu,
    /// This CPU model.
    Cpu(&'static str),
    /// No IOMMU.
    NoIommu,
    /// An IOMMU that can't remap interrupts.
    NoInterruptRemapping,
    /// Network controllers of these models.
    Nics([NicModel; 2]),
    /// One network controller, an igb, behind a PCI Express port.
    NicBehindPort,
    /// These devices besides, as QEMU names them.
    Devices(&'static [&'static str]),
    /// The host's core alone.
    OneCore,
    /// This much memory, in MiB.
    Memory(u64),
    /// A boot image with one byte of its plan changed.
    DamagedImage,
    /// A boot image cut in half.
    HalfImage,
    /// No boot image.
    NoImage,
    /// Files as they are, without the command line's own look at them.
    Unchecked,
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
    /// What was on the first disk at the end, of [`Special::Attacked`].
    pub disk: Vec<u8>,
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
            disk: Vec::new(),
        }
    }
}

/// What a test kernel says before and after it makes a point of not exiting.
pub const QUIET: [&str; 2] = ["quiet from here\n", "quiet to here\n"];

/// Runs a case; an error is what the command line would have said.
pub fn run(case: &Case, kernel: &Kernel, cx: &Context) -> Result<Outcome> {
    if case.machine != Special::Watched {
        return run_once(case, false, kernel, cx);
    }
    let unwatched = run_once(case, false, kernel, cx)?.report;
    Ok(Outcome { unwatched: Some(unwatched), ..run_once(case, true, kernel, cx)? })
}

fn run_once(case: &Case, watched: bool, kernel: &Kernel, cx: &Context) -> Result<Outcome> {
    let directory = tempfile::tempdir().context("no temporary directory can be made")?;
    let directory = directory.path();
    let plan = plan(case, kernel, directory)?;
    let mut machine = machine(case, plan, directory, cx)?;
    let counts = directory.join("counts");
    if !case.windows.is_empty() {
        machine.plugin = Some(bench::counting_plugin(cx, &counts)?);
    }
    let framing = if case.is_bare() { Framing::Raw } else { Framing::Frames };
    let command = machine.command(cx)?;
    let patience = if case.has_linux() { LINUX_PATIENCE } else { PATIENCE };
    let wishes = Arc::new(Wishes::default());
    let (_nobody, bytes) = mpsc::channel();
    let typed = Some(Typed { bytes, to: 0, wishes: wishes.clone() });
    let setup = Setup { command, framing, timeout: Some(patience), typed };
    let names = || case.guests.iter().enumerate().map(|(i, _)| NAMES[i % NAMES.len()]);
    let (mut report, mut live) = (Report::new(names()), Report::new(names()));
    let mut conductor = (case.machine == Special::Attacked).then(Conductor::default);
    let mut consoles = vec![Vec::new(); case.guests.len()];
    let (mut log, mut answers) = (Vec::new(), Vec::new());
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                if let Some(console) = consoles.get_mut(vm) {
                    console.extend_from_slice(bytes);
                }
            }
            Seen::Said(Piece::Log(line)) => log.push(line),
            Seen::Said(Piece::Record(record)) => {
                report.see(&record);
                if let Record::Live { vm, vcpu, counters, .. } = &record {
                    let (vm, vcpu, counters) = (*vm, *vcpu, counters.clone());
                    live.see(&Record::Counters { vm, vcpu, counters, cycles: 0 });
                }
                // From the start on, a question follows each answer.
                let answer = match &record {
                    Record::Live { counters, left: 0, .. } => Some(counters.total()),
                    _ => None,
                };
                let quiet = consoles.first().map(|c| QUIET.map(|mark| says(c, mark)));
                if quiet == Some([true, false]) {
                    answers.extend(answer);
                }
                if watched && (answer.is_some() || matches!(record, Record::Started { .. })) {
                    wishes.ask();
                }
            }
            Seen::Idle => {}
        }
        Ok(match &mut conductor {
            Some(conductor) => conductor.lead(case, &consoles, &report, &live, &wishes),
            None => ControlFlow::Continue(()),
        })
    })?;
    let disk = match case.machine {
        Special::Attacked => fs::read(directory.join(DISK))?,
        _ => Vec::new(),
    };
    let consoles = consoles.iter().map(|c| String::from_utf8_lossy(c).into_owned()).collect();
    let edges = match fs::read_to_string(counts) {
        Ok(text) => bench::counted(&text)?.edges,
        Err(_) => Vec::new(),
    };
    Ok(Outcome { ended, report, consoles, log, answers, live, unwatched: None, edges, disk })
}

fn says(console: &[u8], text: &str) -> bool {
    console.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Names of the VMs of a case.
const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];
/// The first disk of [`Special::Attacked`].
const DISK: &str = "disk";

fn plan(case: &Case, kernel: &Kernel, directory: &Path) -> Result<Plan<File>> {
    let mut vms = Vec::new();
    let mut cores = 1..;
    let port = if case.has(Variant::Linux) { echo::send_back()? } else { 0 };
    for (i, guest) in case.guests.iter().enumerate() {
        let name = NAMES[i % NAMES.len()];
        let path = directory.join(name);
        fs::write(&path, kernel.variant(guest.variant)?)?;
        vms.push(Vm {
            name: name.to_owned(),
            cpus: match guest.cores {
                Cores::Next => cores.by_ref().take(guest.cpus as usize).collect(),
                Cores::First => (1..=guest.cpus).collect(),
                Cores::One => vec![1; guest.cpus as usize],
            },
            weight: guest.weight,
            memory: guest.memory(),
            kernel: path.display().to_string(),
            initrd: kernel.initrd(guest.variant)?,
            cmdline: match guest.variant {
                Variant::Linux => guest.linux_cmdline(port, echo::count()?),
                Variant::Steady => format!("{LINUX} {}", hostile::STEADY),
                Variant::Hostile => guest.hostile_cmdline(),
                _ => guest.cmdline(case.is_bare()),
            },
            devices: guest.devices.clone(),
            interrupts: guest.policy,
            reset: match guest.variant {
                _ if guest.restarts => OnReset::Restart,
                Variant::Linux => OnReset::Restart,
                Variant::Hostile if guest.end == Expected::Never => OnReset::Restart,
                _ => OnReset::Stop,
            },
        });
    }
    let (networks, slice_us) = (case.networks.clone(), case.slice_us);
    let plan = Plan { networks, slice_us, host: case.host, ..Plan::new(vms) };
    match case.machine {
        Special::Unchecked => plan.try_map(|_, _, path| {
            let path = Path::new(&path).to_owned();
            let bytes = fs::read(&path)?;
            Ok(File { path, bytes })
        }),
        _ => load::files(plan, directory),
    }
}

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

    fn memory(&self) -> u64 {
        match self.variant {
            Variant::Linux | Variant::Steady => LINUX_MEMORY,
            _ => MEMORY,
        }
    }

    fn linux_cmdline(&self, port: u16, counter: u16) -> String {
        format!(
            "{LINUX} quiet exitless.workload=echo exitless.port={port} exitless.counter={counter} {}",
            self.options
        )
    }

    fn hostile_cmdline(&self) -> String {
        let stream = self.stream.map_or(String::new(), |seed| format!(" random={seed:#x}"));
        let policy = self.in_force().0;
        format!("attack={} policy={policy} {}{stream}", self.tests, self.options)
    }

    fn cmdline(&self, bare: bool) -> String {
        let policy = if bare { "bare" } else { self.in_force().0 };
        let shared = if self.cores == Cores::Next { "" } else { " shared=yes" };
        format!("test={} policy={policy}{shared} {}", self.tests, self.options)
    }
}

fn machine(case: &Case, plan: Plan<File>, directory: &Path, cx: &Context) -> Result<Machine> {
    if let (Special::Bare | Special::BareWithoutIommu, Some(vm)) = (case.machine, plan.vms.first())
    {
        let mut machine = Machine::bare(&vm.kernel.path, None, &vm.cmdline, MEMORY, Vec::new());
        machine.iommu = case.machine == Special::Bare;
        machine.cpus = vm.cpus.len() as u32;
        machine.add_devices(vm.devices.iter().copied())?;
        return Ok(machine);
    }
    let mut image = plan::image::build(&plan)?;
    match case.machine {
        Special::DamagedImage => {
            if let Some(byte) = image.get_mut(IN_PLAN) {
                *byte ^= 0x40;
            }
        }
        Special::HalfImage => image.truncate(image.len() / 2),
        _ => {}
    }
    let path = directory.join("image");
    fs::write(&path, image)?;
    let mut disks = Vec::new();
    if case.machine == Special::Attacked {
        let disk = directory.join(DISK);
        fs::File::create(&disk)?.set_len(hostile::DISK_BYTES)?;
        disks.push(Disk::File(disk));
    }
    let mut machine = Machine::exitless(cx.hypervisor()?, &path, &plan, disks)?;
    if !case.remaps() {
        machine.iommu = false;
        machine.extra = ["-device", "intel-iommu,intremap=off"].map(Into::into).into();
    }
    match case.machine {
        Special::Cpu(model) => machine.cpu = model.to_owned(),
        Special::NoIommu => machine.iommu = false,
        Special::Nics(models) => machine.connect(&models, &[])?,
        Special::NicBehindPort => {
            machine.nics.clear();
            let port = ["-device", "pcie-root-port,id=above,addr=0x3,chassis=1"];
            let nic = ["-netdev", "user,id=net", "-device", "igb,bus=above,netdev=net,romfile="];
            machine.extra = [port.as_slice(), &nic].concat().into_iter().map(Into::into).collect();
        }
        Special::Devices(devices) => {
            machine.extra = devices.iter().flat_map(|d| ["-device", d]).map(Into::into).collect();
        }
        Special::OneCore => machine.cpus = 1,
        Special::Memory(mib) => machine.memory = mib << 20,
        Special::NoImage => {
            let (kernel, initrd, cmdline) = (cx.hypervisor()?.to_owned(), None, String::new());
            machine.boot = Boot::Bare { kernel, initrd, cmdline };
        }
        _ => {}
    }
    Ok(machine)
}
