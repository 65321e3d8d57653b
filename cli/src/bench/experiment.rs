//! The fio experiment: every policy under every queue depth, one emulated machine
//! after the other, each with the counting plugin.
//!
//! Guarantees: a cell that fails is named with its reason, and the rest goes on.

use super::{
    figures::{Figures, Kind, Window},
    guest::Kit,
    lines,
    progress::Step,
};
use crate::{
    boot_image::BootImage,
    context::Context,
    elf, load,
    machine::{DEFAULT_DISK, Machine},
    report::Report,
    session::{self, Ended, Framing, Seen, Setup},
    stream::{Piece, printable},
};
use anyhow::{Context as _, Result, anyhow, bail};
use ledger::End;
use plan::{Choice, Class, DeviceName, Plan, Vm};
use std::{fs, ops::ControlFlow, path::Path, time::Duration};

/// Memory of the guest, on the bare machine and in the VM.
const GUEST_MEMORY: u64 = 512 << 20;
/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(360);
/// How much of a guest's console is kept.
const MAX_CONSOLE: usize = 1 << 20;

/// What the guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The emulated machine without the hypervisor.
    Bare,
    /// A VM whose interrupts are trapped.
    Trap,
    /// A VM with exitless interrupts.
    Eli,
    /// A VM that owns its core's local APIC, the timer included.
    Direct,
}

impl Policy {
    /// All of them, in the order of the table's columns.
    pub const ALL: [Policy; 4] = [Policy::Bare, Policy::Trap, Policy::Eli, Policy::Direct];

    /// The name used in tables and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Policy::Bare => "bare",
            Policy::Trap => "trap",
            Policy::Eli => "eli",
            Policy::Direct => "direct",
        }
    }

    const fn choice(self) -> Option<Choice> {
        match self {
            Policy::Bare => None,
            Policy::Trap => Some(Choice::Trap),
            Policy::Eli => Some(Choice::Eli),
            Policy::Direct => Some(Choice::Direct),
        }
    }
}

/// How long the windows are, in I/Os.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Before the first window.
    pub warmup: u32,
    /// A short window.
    pub short: u32,
    /// A long window.
    pub long: u32,
    /// Pairs of windows in one boot.
    pub pairs: u32,
}

/// What `bench fio` measures by default.
pub const FULL: Size = Size { warmup: 2_000, short: 2_000, long: 12_000, pairs: 4 };
/// What `demo` measures.
pub const DEMO: Size = Size { warmup: 1_500, short: 1_500, long: 8_000, pairs: 3 };
/// What `bench fio --quick` measures.
pub const QUICK: Size = Size { warmup: 1_000, short: 1_000, long: 5_000, pairs: 2 };

/// What to measure.
#[derive(Clone, Debug)]
pub struct Request {
    /// In this order.
    pub policies: Vec<Policy>,
    /// Queue depths.
    pub depths: Vec<u32>,
    /// The windows.
    pub size: Size,
    /// Boots per cell.
    pub repeat: u32,
}

/// What one policy under one depth gave.
pub struct Cell {
    /// What the guest ran on.
    pub policy: Policy,
    /// fio's queue depth.
    pub depth: u32,
    /// The figures.
    pub figures: Figures,
    /// The guest's clock source.
    pub clocksource: String,
    /// The kind of interrupt its disk had.
    pub interrupt: String,
    /// Instructions from power-on to the first guest entry.
    pub boot_instructions: Option<u64>,
    /// Bytes of host memory spent on the VM.
    pub vm_overhead: Option<u64>,
    /// Bytes of memory the hypervisor keeps for itself.
    pub host_memory: Option<u64>,
}

/// What an experiment gave.
#[derive(Default)]
pub struct Results {
    /// Of the cells that worked.
    pub cells: Vec<Cell>,
    /// One sentence for each that didn't.
    pub failures: Vec<String>,
    /// Bytes that the hypervisor's image loads.
    pub hypervisor_bytes: Option<u64>,
}

impl Results {
    /// The figures of a cell, if it worked.
    pub fn figures(&self, policy: Policy, depth: u32) -> Option<&Figures> {
        self.cell(policy, depth).map(|c| &c.figures)
    }

    /// A cell, if it worked.
    pub fn cell(&self, policy: Policy, depth: u32) -> Option<&Cell> {
        self.cells.iter().find(|c| c.policy == policy && c.depth == depth)
    }
}

/// Measures every cell of the request.
pub fn run(cx: &Context, kit: &Kit, request: &Request) -> Result<Results> {
    let mut results = Results::default();
    if request.policies.iter().any(|p| p.choice().is_some()) {
        let elf = fs::read(cx.hypervisor()?).context("the hypervisor can't be read")?;
        results.hypervisor_bytes = Some(elf::loaded_bytes(&elf)?);
    }
    for &depth in &request.depths {
        for &policy in &request.policies {
            let step = Step::begin(format!("depth {depth:<2} {:<6}", policy.label()));
            match cell(cx, kit, policy, depth, request, &step) {
                Ok(cell) => {
                    let per_second = cell.figures.operations as f64 / cell.figures.seconds;
                    step.end(&format!(
                        "{} I/Os, {per_second:.0} a second (emulated)",
                        cell.figures.operations
                    ));
                    results.cells.push(cell);
                }
                Err(e) => {
                    step.end("failed");
                    results.failures.push(format!("depth {depth}, {}: {e:#}", policy.label()));
                }
            }
            if cx.interrupted() {
                bail!("stopped");
            }
        }
    }
    Ok(results)
}

fn cell(
    cx: &Context,
    kit: &Kit,
    policy: Policy,
    depth: u32,
    request: &Request,
    step: &Step,
) -> Result<Cell> {
    let mut windows = Vec::new();
    let mut last = None;
    for _ in 0..request.repeat {
        let boot = boot(cx, kit, policy, depth, request.size, step)?;
        let first = windows.len();
        windows.extend(lines::join(boot.guest, &boot.plugin)?);
        check(policy, &windows[first..])?;
        last = Some((boot.report, boot.plugin.boot, boot.clocksource, boot.interrupt));
    }
    let (report, boot_instructions, clocksource, interrupt) =
        last.ok_or_else(|| anyhow!("no run was asked for: --repeat must be 1 or more"))?;
    let figures = Figures::of(&windows)?;
    let started = report.vms.first().filter(|vm| vm.delivery.is_some());
    Ok(Cell {
        policy,
        depth,
        figures,
        clocksource,
        interrupt,
        boot_instructions,
        vm_overhead: started.map(|vm| vm.overhead),
        host_memory: report.machine.as_ref().map(|m| m.host_memory),
    })
}

/// A VM's windows have the ledger's counts, the bare machine's have neither those nor guest entries.
fn check(policy: Policy, windows: &[Window]) -> Result<()> {
    let load = || windows.iter().filter(|w| w.kind != Kind::Spin);
    if policy == Policy::Bare {
        if load().any(|w| w.vmruns > 0) {
            bail!("guest entries were seen on the bare machine");
        }
    } else if load().any(|w| w.exits.is_none()) {
        bail!("the guest found no ledger page: CPUID leaf 0x40000000 doesn't say ExitlessHypV");
    }
    Ok(())
}

struct Boot {
    guest: lines::Guest,
    plugin: lines::Plugin,
    report: Report,
    clocksource: String,
    interrupt: String,
}

fn boot(
    cx: &Context,
    kit: &Kit,
    policy: Policy,
    depth: u32,
    size: Size,
    step: &Step,
) -> Result<Boot> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let Size { warmup, short, long, pairs } = size;
    let cmdline = format!(
        "console=ttyS0 exitless.depth={depth} exitless.warmup={warmup} exitless.short={short} exitless.long={long} exitless.pairs={pairs}"
    );
    let image;
    let mut machine = match policy.choice() {
        // The VM's guest sees no IOMMU: on the bare machine its kernel must not pay for one either.
        None => {
            let cmdline = format!("{cmdline} iommu=pt");
            Machine::bare(
                &kit.kernel,
                Some(&kit.initrd),
                &cmdline,
                GUEST_MEMORY,
                vec![DEFAULT_DISK],
            )
        }
        Some(choice) => {
            let plan = load::files(plan(kit, cmdline, choice), Path::new(""))?;
            image = BootImage::new(&plan)?;
            Machine::exitless(cx.hypervisor()?, &image.path(), &plan, vec![DEFAULT_DISK])?
        }
    };
    machine.plugin = Some(kit.plugin_writing(&counts));
    // As most real controllers: no shadow doorbells; and few queues, so that set-up is short.
    for setting in ["dbcs=off", "max_ioqpairs=2", "msix_qsize=3"] {
        machine.extra.extend(["-global".into(), format!("nvme.{setting}").into()]);
    }

    step.say("boots");
    let framing = if policy == Policy::Bare { Framing::Raw } else { Framing::Frames };
    let setup =
        Setup { command: machine.command(cx)?, framing, timeout: Some(PATIENCE), typed: None };
    let (mut console, mut at, mut panic) = (Vec::new(), 0, None);
    let mut report = Report::new(["fio"]);
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) if console.len() < MAX_CONSOLE => {
                console.extend_from_slice(bytes);
                while let Some(end) = console[at..].iter().position(|b| *b == b'\n') {
                    let line = String::from_utf8_lossy(&console[at..at + end]);
                    if lines::ours(&line) == Some("measuring") {
                        step.say("measures");
                    }
                    at += end + 1;
                }
            }
            Seen::Said(Piece::Record(record)) => report.see(&record),
            Seen::Said(Piece::Log(line)) if line.contains("panic") => {
                panic.get_or_insert(line);
            }
            _ => {}
        }
        step.tick();
        Ok(ControlFlow::Continue(()))
    })?;
    let console = String::from_utf8_lossy(&console);
    let guest = lines::guest(&console)?;
    if !guest.done {
        bail!("{}", why(&ended, &report, panic.as_deref(), &console));
    }
    if !guest.interrupt.contains("MSI") {
        bail!("the guest's disk interrupts by {}; MSI-X is needed", guest.interrupt);
    }
    let text = fs::read_to_string(&counts).context("the counting plugin left no file")?;
    let (clocksource, interrupt) = (guest.clocksource.clone(), guest.interrupt.clone());
    Ok(Boot { plugin: lines::plugin(&text)?, guest, report, clocksource, interrupt })
}

fn plan(kit: &Kit, cmdline: String, interrupts: Choice) -> Plan<String> {
    let vm = Vm {
        name: "fio".into(),
        cpus: vec![1],
        memory: GUEST_MEMORY,
        kernel: kit.kernel.display().to_string(),
        initrd: Some(kit.initrd.display().to_string()),
        cmdline,
        devices: vec![DeviceName::Named { class: Class::Nvme, index: 0 }],
        interrupts,
    };
    Plan::new(vec![vm])
}

/// Why a run ended before the guest had reported.
fn why(ended: &Ended, report: &Report, panic: Option<&str>, console: &str) -> String {
    if let Some(End::Fault(what)) = report.vms.first().and_then(|vm| vm.end.as_ref()) {
        return format!("the hypervisor stopped the guest: {what}");
    }
    if let Some(line) = panic {
        return format!("the hypervisor failed: {line}");
    }
    let last = console.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing");
    let how = match (ended, report.failure(ended)) {
        (Ended::TimedOut, _) => format!("no end after {} s", PATIENCE.as_secs()),
        (Ended::Exited { status: 0, .. }, _) | (_, None) => "the machine went off".into(),
        (_, Some(failure)) => failure,
    };
    format!("{how}, before the guest had reported; its last line: {}", printable(last.trim()))
}
