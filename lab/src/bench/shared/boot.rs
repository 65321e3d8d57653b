//! One run: two VMs that share core 1, or one system on the bare machine.
//!
//! Guarantees: a VM opens its first window when both are under load, and takes its load off when
//! both have closed their last; the first one's spin window has the core for itself.

use crate::{
    bench::{
        column::Column,
        emulated::{self, MAX_CONSOLE, last_line},
        guest::Kit,
        lines,
        progress::Step,
        workload::{Effort, Workload},
    },
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::{
    context::Context,
    machine::NULL_DISK,
    report::Report,
    session::{self, Commands, Ended, Framing, Seen, Setup, Typed},
    stream::Piece,
};
use plan::{Class, DeviceName, Plan};
use std::{
    ops::ControlFlow,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);
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
    let parameters = load.fio.parameters(load.effort, load.fio.size(load.effort).pairs);
    let disks = vec![NULL_DISK; NAMES.len()];
    // What the machine boots from stays until it has ended.
    let _image;
    let mut machine = match policy.policy() {
        None => {
            let cmdline = format!("{LINUX} {parameters} exitless.disk=nvme0n1,nvme1n1");
            emulated::bare(guest, &cmdline, NAMES.len() as u64, disks)
        }
        Some(policy) => {
            let vms = NAMES.into_iter().zip(0..).map(|(name, index)| {
                let cmdline = format!("{LINUX} {parameters} exitless.guest={index}");
                let device = DeviceName::Named { class: Class::Nvme, index };
                emulated::vm(name, guest, cmdline, device, policy)
            });
            let plan = Plan { slice_us: load.slice_us, ..Plan::new(vms.collect()) };
            let (machine, kept) = emulated::hosted(cx, plan, disks)?;
            _image = kept;
            machine
        }
    };
    machine.iommu = Some(kit.iommu);
    machine.plugin = Some(kit.plugin_writing(&counts));
    emulated::set_nvme(&mut machine);
    let bare = policy == Column::Bare;
    let mut watch = Watch::new(if bare { 1 } else { NAMES.len() });
    let (_nobody, bytes) = mpsc::channel();
    let commands = Arc::new(Commands::default());
    let setup = Setup {
        command: machine.command(cx)?,
        framing: if bare { Framing::Raw } else { Framing::Frames },
        timeout: Some(PATIENCE),
        typed: Some(Typed { bytes, to: 0, commands: commands.clone() }),
    };
    step.say("boots");
    let ended = session::run(setup, cx, |seen| {
        watch.see(seen, &commands, step);
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

    fn see(&mut self, seen: Seen, commands: &Commands, step: &Step) {
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
            (0..self.consoles.len()).for_each(|vm| commands.type_to(vm, "\n"));
        }
        if self.told == STAGES.len() && self.report.vms.get(1).is_some_and(|vm| vm.end.is_some()) {
            self.told += 1;
            commands.type_to(0, "\n");
        }
    }

    fn finish(self, ended: &Ended, counts: &Path) -> Result<Ran> {
        let mut guests = Vec::new();
        for (console, name) in self.consoles.iter().zip(NAMES) {
            let console = String::from_utf8_lossy(console);
            let why = || {
                let how = self.report.failure(ended).unwrap_or_else(|| format!("{ended:?}"));
                format!("{how}, before it had reported; its last line: {}", last_line(&console))
            };
            let guest = lines::guest(&console).and_then(|guest| emulated::reported(guest, why));
            guests.push(guest.with_context(|| format!("the {name} guest"))?);
        }
        let edges = emulated::counted(counts)?.edges;
        if edges.is_empty() {
            return Err(anyhow!("the counting plugin saw no window"));
        }
        Ok(Ran { guests, edges, tsc_hz: self.report.machine.as_ref().map(|m| m.tsc_hz) })
    }
}
