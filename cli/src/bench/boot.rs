//! One boot of one cell: the emulated machine with the counting plugin, the guest's
//! lines on its console, and, for a network load, its peer on this machine.
//!
//! Guarantees: when [`boot`] returns, whatever happened, the emulator and the load
//! generator have ended and no file of theirs is left.

use super::{
    generator::{self, Generator, Idle, Role},
    guest::{Guest, Kit},
    lines::{self, ours},
    policy::Policy,
    progress::Step,
    workload::{Effort, Workload},
};
use crate::{
    boot_image::BootImage,
    context::Context,
    load,
    machine::{DEFAULT_DISK, Machine},
    network::{Forward, NicModel},
    report::Report,
    session::{self, Ended, Framing, Seen, Setup},
    stream::{Piece, printable},
};
use anyhow::{Context as _, Result, bail};
use ledger::End;
use plan::{Choice, Class, DeviceName, OnReset, Plan, Vm};
use std::{fs, ops::ControlFlow, path::Path, time::Duration};

/// Memory of the guest, on the bare machine and in the VM.
const GUEST_MEMORY: u64 = 512 << 20;
/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// How much of a guest's console is kept.
const MAX_CONSOLE: usize = 1 << 20;

/// What a boot gave.
pub struct Boot {
    /// What the guest said.
    pub guest: lines::Guest,
    /// What the plugin counted.
    pub plugin: lines::Plugin,
    /// What the hypervisor reported.
    pub report: Report,
    /// How idle the load generator was, where there is one.
    pub idle: Option<Idle>,
}

/// Boots a cell once.
pub fn boot(
    cx: &Context,
    kit: &Kit,
    workload: Workload,
    policy: Policy,
    effort: Effort,
    step: &Step,
) -> Result<Boot> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let guest = kit.guest(workload)?;
    let mut cmdline = format!("console=ttyS0 {}", workload.parameters(effort));
    let role = Role::of(workload);
    let port = if role.is_some() { generator::free_port()? } else { 0 };
    if role == Some(Role::Server) {
        cmdline.push_str(&format!(" exitless.port={port}"));
    }
    // The VM's guest sees no IOMMU: on the bare machine its kernel must not pay for one either.
    if policy == Policy::Bare {
        cmdline.push_str(" iommu=pt");
    }
    let disks = if workload.is_network() { Vec::new() } else { vec![DEFAULT_DISK] };
    let image;
    let mut machine = match policy.choice() {
        None => Machine::bare(&guest.kernel, Some(&guest.initrd), &cmdline, GUEST_MEMORY, disks),
        Some(choice) => {
            let plan = load::files(plan(workload, guest, cmdline, choice), Path::new(""))?;
            image = BootImage::new(&plan)?;
            Machine::exitless(cx.hypervisor()?, &image.path(), &plan, disks)?
        }
    };
    machine.plugin = Some(kit.plugin_writing(&counts));
    if let Some(Role::Client { guest_port }) = role {
        let forward = Forward { nic: 0, tcp: true, port, address: None, guest_port };
        machine.connect(&[NicModel::Igb], &[forward])?;
    } else if workload.is_network() {
        machine.connect(&[NicModel::Igb], &[])?;
    } else {
        // As most real controllers: no shadow doorbells; and few queues, so that set-up is short.
        for setting in ["dbcs=off", "max_ioqpairs=2", "msix_qsize=3"] {
            machine.extra.extend(["-global".into(), format!("nvme.{setting}").into()]);
        }
    }
    let command = machine.command(cx)?;

    step.say("boots");
    let peer = || generator::command(workload, &guest.host, port).and_then(Generator::start);
    let mut watch = Watch::new(step);
    if role == Some(Role::Server) {
        watch.generator = Some(peer()?);
    }
    let framing = if policy == Policy::Bare { Framing::Raw } else { Framing::Frames };
    let setup = Setup { command, framing, timeout: Some(PATIENCE), typed: None };
    let ended = session::run(setup, cx, |seen| {
        watch.see(seen, &peer)?;
        Ok(ControlFlow::Continue(()))
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    watch.finish(&ended, &counts)
}

fn plan(workload: Workload, guest: &Guest, cmdline: String, interrupts: Choice) -> Plan<String> {
    let class = if workload.is_network() { Class::Nic } else { Class::Nvme };
    let vm = Vm {
        name: "bench".into(),
        cpus: vec![1],
        memory: GUEST_MEMORY,
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline,
        devices: vec![DeviceName::Named { class, index: 0 }],
        interrupts,
        reset: OnReset::Stop,
    };
    Plan::new(vec![vm])
}

/// What is seen of a boot while it runs.
struct Watch<'a> {
    step: &'a Step,
    console: Vec<u8>,
    /// Where the console's first unread line begins.
    at: usize,
    /// The first line of the hypervisor's log that tells of a panic.
    panic: Option<String>,
    report: Report,
    generator: Option<Generator>,
    /// Whether the load generator may still end only by our hand.
    needed: bool,
}

impl<'a> Watch<'a> {
    fn new(step: &'a Step) -> Self {
        let report = Report::new(["bench"]);
        let (console, panic, generator) = (Vec::new(), None, None);
        Watch { step, console, at: 0, panic, report, generator, needed: true }
    }

    fn see(&mut self, seen: Seen, peer: &dyn Fn() -> Result<Generator>) -> Result<()> {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) if self.console.len() < MAX_CONSOLE => {
                self.console.extend_from_slice(bytes);
                while let Some(end) = self.console[self.at..].iter().position(|b| *b == b'\n') {
                    let line = String::from_utf8_lossy(&self.console[self.at..self.at + end]);
                    let said = ours(&line).map(|l| l.split(' ').next().unwrap_or(l).to_owned());
                    self.at += end + 1;
                    if let Some(said) = said {
                        self.hear(&said, peer)?;
                    }
                }
            }
            Seen::Said(Piece::Record(record)) => self.report.see(&record),
            Seen::Said(Piece::Log(line)) if line.contains("panic") => {
                self.panic.get_or_insert(line);
            }
            _ => {}
        }
        if let Some(generator) = self.generator.as_mut().filter(|_| self.needed) {
            generator.check()?;
        }
        self.step.tick();
        Ok(())
    }

    /// A line of the measuring guest that begins with `word`.
    fn hear(&mut self, word: &str, peer: &dyn Fn() -> Result<Generator>) -> Result<()> {
        match (word, &mut self.generator) {
            ("ready", None) => {
                self.step.say("warms up");
                self.generator = Some(peer()?);
            }
            ("measuring", generator) => {
                self.step.say("measures");
                generator.iter_mut().for_each(Generator::begin);
            }
            ("load-over", generator) => {
                self.needed = false;
                generator.iter_mut().for_each(Generator::end);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self, ended: &Ended, counts: &Path) -> Result<Boot> {
        self.generator.iter_mut().for_each(Generator::end);
        let console = String::from_utf8_lossy(&self.console);
        let guest = lines::guest(&console)?;
        if !guest.done {
            bail!("{}", why(ended, &self.report, self.panic.as_deref(), &console));
        }
        if !guest.interrupt.contains("MSI") {
            bail!("the guest's device interrupts by {}; MSI-X is needed", guest.interrupt);
        }
        let text = fs::read_to_string(counts).context("the counting plugin left no file")?;
        let idle = self.generator.as_ref().and_then(Generator::idle);
        Ok(Boot { guest, plugin: lines::plugin(&text)?, report: self.report, idle })
    }
}

/// Why a run ended before the guest had reported.
fn why(ended: &Ended, report: &Report, panic: Option<&str>, console: &str) -> String {
    if let Some(reason) = &report.refused {
        return format!("the hypervisor refused to start: {reason}");
    }
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
