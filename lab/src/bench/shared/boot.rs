//! One run: two VMs that share core 1, or one system on the bare machine.
//!
//! Guarantees: a VM opens its first window when both are under load, and takes its load off when
//! both have closed their last; the first one's spin window has the core for itself.

use crate::{
    bench::{
        column::Column,
        guest::Kit,
        lines,
        progress::Step,
        workload::{Effort, Workload},
    },
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::{
    boot_image::BootImage,
    context::Context,
    load,
    machine::{Machine, NULL_DISK},
    report::Report,
    session::{self, Ended, Framing, Seen, Setup, Typed, Wishes},
    stream::Piece,
};
use plan::{Class, DeviceName, OnReset, Plan, Vm};
use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Memory of each guest; the bare machine has as much as both.
const MEMORY: u64 = 512 << 20;
/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// How much of a guest's console is kept.
const MAX_CONSOLE: usize = 1 << 20;
const NAMES: [&str; 2] = ["first", "second"];

/// What is measured, whatever the policy.
pub struct Load {
    /// Each guest's fio.
    pub fio: Workload,
    /// Its windows.
    pub effort: Effort,
    /// The slice, in microseconds.
    pub slice_us: u32,
}

/// What a run gave.
pub struct Ran {
    /// What each guest said.
    pub guests: Vec<lines::Guest>,
    /// All guests' edges.
    pub edges: Vec<lines::Edge>,
    /// TSC ticks a second, by the hypervisor; none on the bare machine.
    pub tsc_hz: Option<u64>,
}

/// Runs it once.
pub fn boot(cx: &Context, kit: &Kit, load: &Load, policy: Column, step: &Step) -> Result<Ran> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let guest = kit.guest(load.fio)?;
    let parameters = load.fio.parameters(load.effort);
    let disks = vec![NULL_DISK; NAMES.len()];
    let image;
    let mut machine = match policy.policy() {
        None => {
            let cmdline = format!(
                "{LINUX} {parameters} exitless.disk=nvme0n1,nvme1n1 iommu=pt no_timer_check"
            );
            let memory = MEMORY * NAMES.len() as u64;
            Machine::bare(&guest.kernel, Some(&guest.initrd), &cmdline, memory, disks)
        }
        Some(policy) => {
            let vms = NAMES.into_iter().zip(0..).map(|(name, index)| Vm {
                name: name.into(),
                cpus: vec![1],
                weight: plan::DEFAULT_WEIGHT,
                memory: MEMORY,
                kernel: guest.kernel.display().to_string(),
                initrd: Some(guest.initrd.display().to_string()),
                cmdline: format!("{LINUX} {parameters} exitless.guest={index}"),
                devices: vec![DeviceName::Named { class: Class::Nvme, index }],
                interrupts: Some(policy),
                reset: OnReset::Stop,
            });
            let plan = Plan { slice_us: load.slice_us, ..Plan::new(vms.collect()) };
            let plan = load::files(plan, Path::new(""))?;
            image = BootImage::new(&plan)?;
            Machine::exitless(cx.hypervisor()?, &image.path(), &plan, disks)?
        }
    };
    machine.plugin = Some(kit.plugin_writing(&counts));
    // As most real controllers: no shadow doorbells; and few queues, so that set-up is short.
    for setting in ["dbcs=off", "max_ioqpairs=2", "msix_qsize=3"] {
        machine.extra.extend(["-global".into(), format!("nvme.{setting}").into()]);
    }
    let bare = policy == Column::Bare;
    let mut watch = Watch::new(if bare { 1 } else { NAMES.len() });
    let (_nobody, bytes) = mpsc::channel();
    let wishes = Arc::new(Wishes::default());
    let setup = Setup {
        command: machine.command(cx)?,
        framing: if bare { Framing::Raw } else { Framing::Frames },
        timeout: Some(PATIENCE),
        typed: Some(Typed { bytes, to: 0, wishes: wishes.clone() }),
    };
    step.say("boots");
    let ended = session::run(setup, cx, |seen| {
        watch.see(seen, &wishes, step);
        Ok(ControlFlow::Continue(()))
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    watch.finish(&ended, &counts)
}

/// What is seen of a run.
struct Watch {
    consoles: Vec<Vec<u8>>,
    report: Report,
    /// How often all were told to go on.
    told: usize,
}

/// What both must have said before they are told to go on, and what they do then.
const STAGES: [(&str, &str); 2] =
    [("@exitless loaded", "measures"), ("@exitless load-over", "ends")];

impl Watch {
    fn new(guests: usize) -> Self {
        Watch { consoles: vec![Vec::new(); guests], report: Report::new(NAMES), told: 0 }
    }

    fn see(&mut self, seen: Seen, wishes: &Wishes, step: &Step) {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                if let Some(console) = self.consoles.get_mut(vm)
                    && console.len() < MAX_CONSOLE
                {
                    console.extend_from_slice(bytes);
                }
            }
            Seen::Said(Piece::Record(record)) => self.report.see(&record),
            _ => {}
        }
        step.tick();
        if self.consoles.len() > 1
            && let Some((mark, then)) = STAGES.get(self.told)
            && self.consoles.iter().all(|c| String::from_utf8_lossy(c).contains(mark))
        {
            self.told += 1;
            step.say(then);
            (0..self.consoles.len()).for_each(|vm| wishes.type_to(vm, "\n"));
        }
        if self.told == STAGES.len() && self.report.vms.get(1).is_some_and(|vm| vm.end.is_some()) {
            self.told += 1;
            wishes.type_to(0, "\n");
        }
    }

    fn finish(self, ended: &Ended, counts: &Path) -> Result<Ran> {
        let mut guests = Vec::new();
        for (console, name) in self.consoles.iter().zip(NAMES) {
            let console = String::from_utf8_lossy(console);
            let guest = lines::guest(&console).with_context(|| format!("the {name} guest"))?;
            if !guest.done {
                let why = self.report.failure(ended).unwrap_or_else(|| format!("{ended:?}"));
                let last = console.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing");
                bail!("{why}, before the {name} guest had reported; its last line: {last}");
            }
            if !guest.interrupt.contains("MSI") {
                bail!("the {name} guest's disk interrupts by {}; MSI-X is needed", guest.interrupt);
            }
            guests.push(guest);
        }
        let text = fs::read_to_string(counts).context("the counting plugin left no file")?;
        let edges = lines::plugin(&text)?.edges;
        if edges.is_empty() {
            return Err(anyhow!("the counting plugin saw no window"));
        }
        Ok(Ran { guests, edges, tsc_hz: self.report.machine.as_ref().map(|m| m.tsc_hz) })
    }
}
