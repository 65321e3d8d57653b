//! One boot of one cell: the emulated machine with the counting plugin, the guest's
//! lines on its console, and, for a network load, its peer on this machine.
//!
//! Guarantees: when [`boot`] returns, whatever happened, the emulator and the load
//! generator have ended and no file of theirs is left.

use super::{
    column::Column,
    emulated::{self, MAX_CONSOLE, last_line},
    generator::{self, Generator, Idle, Role},
    guest::Kit,
    lines::{self, ours},
    matched::{PAIRS, ROUNDS},
    progress::Step,
    workload::{Effort, Workload},
};
use crate::{cmdline::LINUX, selftest::outer};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    load,
    machine::NULL_DISK,
    network::{Forward, NicModel},
    report::Report,
    session::{self, Ended, Framing, Seen, Setup},
    stream::{Demux, Piece},
};
use plan::{Class, DeviceName, Plan};
use proto::End;
use std::{
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

/// How long a guest may take on a slow machine to boot, to warm up, and to end; and each pair of
/// its windows (`guests/measure`: 20 s each at most, and the edges).
const PATIENCE: Duration = Duration::from_secs(300);
const A_PAIR: Duration = Duration::from_secs(45);
/// How long after its end a load generator may turn out not to have been needed any more.
const GRACE: Duration = Duration::from_secs(5);
/// How long a guest may say nothing, besides all its windows: it reports when they are over.
const SILENCE: Duration = Duration::from_secs(120);

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

/// A guest that said nothing more, neither that it measured nor that it failed.
#[derive(Debug, thiserror::Error)]
#[error("it hung: nothing was heard for {} s; its last line: {last}", silence.as_secs())]
pub struct Hung {
    /// How long it was waited for.
    pub silence: Duration,
    /// The last thing it said.
    pub last: String,
}

/// The bare machine under a load that is compared with it is measured unslowed, and then slowed.
pub fn is_slowed(workload: Workload, policy: Column, effort: Effort) -> bool {
    policy == Column::Bare && workload.has_control() && effort != Effort::Smoke
}

/// Rounds of the plugin's loop in each pair of windows.
fn rounds(workload: Workload, policy: Column, effort: Effort) -> Vec<u64> {
    let slowed: &[u64] = if is_slowed(workload, policy, effort) { &ROUNDS } else { &[] };
    let own = (0..workload.size(effort).pairs).map(|_| 0);
    own.chain(slowed.iter().flat_map(|rounds| [*rounds; PAIRS as usize])).collect()
}

/// Boots a cell once.
pub fn boot(
    cx: &Context,
    kit: &Kit,
    workload: Workload,
    policy: Column,
    effort: Effort,
    step: &Step,
) -> Result<Boot> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let guest = kit.guest(workload)?;
    let rounds = rounds(workload, policy, effort);
    let pairs = u32::try_from(rounds.len())?;
    let mut cmdline = format!("{LINUX} {}", workload.parameters(effort, pairs));
    let role = Role::of(workload);
    let port = if role.is_some() { generator::free_port()? } else { 0 };
    if role == Some(Role::Server) {
        cmdline.push_str(&format!(" exitless.port={port}"));
    }
    let disks = if workload.is_network() { Vec::new() } else { vec![NULL_DISK] };
    // What the machine boots from stays until it has ended.
    let _image;
    let mut machine = match policy.policy() {
        None => emulated::bare(guest, &cmdline, 1, disks),
        Some(of_vm) => {
            let class = if workload.is_network() { Class::Nic } else { Class::Nvme };
            let device = DeviceName::Named { class, index: 0 };
            let vm = emulated::vm("bench", guest, cmdline, device, of_vm);
            let plan = load::files(Plan::new(vec![vm]), Path::new(""))?;
            let plan =
                if policy == Column::Nested { outer::plan(cx, &plan, kit.iommu)? } else { plan };
            let (machine, kept) = emulated::running(cx, &plan, disks)?;
            _image = kept;
            machine
        }
    };
    machine.iommu = Some(kit.iommu);
    machine.plugin = Some(kit.plugin_slowing(&counts, &rounds));
    if let Some(Role::Client { guest_port }) = role {
        let forward = Forward { nic: 0, tcp: true, port, address: None, guest_port };
        machine.connect(&[NicModel::Igb], &[forward])?;
    } else if workload.is_network() {
        machine.connect(&[NicModel::Igb], &[])?;
    } else {
        emulated::set_nvme(&mut machine);
    }
    let command = machine.command(cx)?;

    step.say("boots");
    let peer = || generator::command(workload, &guest.host, port).and_then(Generator::start);
    let mut watch = Watch::new(step);
    watch.silence = SILENCE + pairs * A_PAIR;
    watch.patience = PATIENCE + pairs * A_PAIR;
    if role == Some(Role::Server) {
        watch.generator = Some(peer()?);
    }
    let framing = if policy == Column::Bare { Framing::Raw } else { Framing::Frames };
    let setup = Setup { command, framing, timeout: Some(watch.patience), typed: None };
    let (mut inner, mut outer) = (Demux::default(), Report::new(["outer"]));
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) if policy == Column::Nested => {
                let mut result = Ok(());
                inner.push(bytes, |piece| {
                    if result.is_ok() {
                        result = watch.see(Seen::Said(piece), &peer);
                    }
                });
                result?;
            }
            // What the outer one counts is told of a VM that isn't the measured one.
            Seen::Said(Piece::Record(record)) if policy == Column::Nested => outer.see(&record),
            seen => watch.see(seen, &peer)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    if let Some(reason) = &outer.refused {
        bail!("the hypervisor below refused to start: {reason}");
    }
    if outer.audit.findings > 0 {
        bail!("the hypervisor below found {} of its tables wrong", outer.audit.findings);
    }
    watch.finish(&ended, &counts)
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
    /// Whether the windows aren't over yet, so that the load generator must not end.
    needed: bool,
    /// When it was seen to have ended all the same, and what that means.
    died: Option<(Instant, anyhow::Error)>,
    /// How long it may have ended before that counts.
    grace: Duration,
    /// When the guest last said something, and how long it may be silent.
    heard: Instant,
    silence: Duration,
    /// How long all may take.
    patience: Duration,
}

impl<'a> Watch<'a> {
    fn new(step: &'a Step) -> Self {
        let report = Report::new(["bench"]);
        let (console, panic, generator) = (Vec::new(), None, None);
        let (at, needed, died, grace) = (0, true, None, GRACE);
        Watch {
            step,
            console,
            at,
            panic,
            report,
            generator,
            needed,
            died,
            grace,
            heard: Instant::now(),
            silence: SILENCE,
            patience: PATIENCE,
        }
    }

    fn see(&mut self, seen: Seen, peer: &dyn Fn() -> Result<Generator>) -> Result<()> {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) if self.console.len() < MAX_CONSOLE => {
                self.heard = Instant::now();
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
        self.step.tick();
        if self.heard.elapsed() > self.silence {
            let last = last_line(&String::from_utf8_lossy(&self.console));
            return Err(Hung { silence: self.silence, last }.into());
        }
        self.check_generator()
    }

    /// The guest may have ended the load before it says that the windows are over, and a
    /// load generator whose connections end may end, too.
    fn check_generator(&mut self) -> Result<()> {
        if !self.needed {
            return Ok(());
        }
        match (&self.died, &mut self.generator) {
            (None, Some(generator)) => {
                self.died = generator.check().err().map(|e| (Instant::now(), e));
            }
            (Some((when, _)), _) if when.elapsed() >= self.grace => {
                self.died.take().map_or(Ok(()), |(_, error)| Err(error))?;
            }
            _ => {}
        }
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
        let guest = match (lines::guest(&console), self.died.filter(|_| self.needed)) {
            (Err(e), Some((_, died))) => return Err(e.context(died)),
            (guest, _) => guest?,
        };
        let patience = self.patience;
        let why = || why(ended, &self.report, self.panic.as_deref(), patience, &console);
        let guest = emulated::reported(guest, why)?;
        let idle = self.generator.as_ref().and_then(Generator::idle);
        Ok(Boot { guest, plugin: emulated::counted(counts)?, report: self.report, idle })
    }
}

/// Why a run ended before the guest had reported.
fn why(
    ended: &Ended,
    report: &Report,
    panic: Option<&str>,
    patience: Duration,
    console: &str,
) -> String {
    if let Some(reason) = &report.refused {
        return format!("the hypervisor refused to start: {reason}");
    }
    if let Some(End::Fault(what)) = report.vms.first().and_then(|vm| vm.end.as_ref()) {
        return format!("the hypervisor stopped the guest: {what}");
    }
    if let Some(line) = panic {
        return format!("the hypervisor failed: {line}");
    }
    let last = last_line(console);
    let how = match (ended, report.failure(ended)) {
        (Ended::TimedOut, _) => format!("no end after {} s", patience.as_secs()),
        (Ended::Exited { status: 0, .. }, _) | (_, None) => "the machine went off".into(),
        (_, Some(failure)) => failure,
    };
    format!("{how}, before the guest had reported; its last line: {last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn watch(step: &Step) -> Watch<'_> {
        Watch { grace: Duration::ZERO, ..Watch::new(step) }
    }

    fn peer(script: &'static str) -> impl Fn() -> Result<Generator> {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Generator::start(command)
        }
    }

    fn say(watch: &mut Watch, peer: &dyn Fn() -> Result<Generator>, line: &str) -> Result<()> {
        watch.see(Seen::Said(Piece::Console { vm: 0, bytes: line.as_bytes() }), peer)
    }

    #[test]
    fn the_load_generator_starts_when_the_guest_is_ready_and_may_end_after_it() {
        let (step, peer) = (Step::begin("test".into()), peer("exit 3"));
        let mut watch = watch(&step);
        say(&mut watch, &peer, "booting\r\n@exitless rea").unwrap();
        assert!(watch.generator.is_none());
        watch.needed = false;
        say(&mut watch, &peer, "dy workload=apache port=80\r\n").unwrap();
        assert!(watch.generator.is_some());
        for _ in 0..100 {
            watch.see(Seen::Idle, &peer).unwrap();
        }
    }

    #[test]
    fn a_guest_that_falls_silent_hangs() {
        let (step, peer) = (Step::begin("test".into()), peer("exit 0"));
        let mut watch = watch(&step);
        say(&mut watch, &peer, "booting\r\n@exitless measuring\r\n").unwrap();
        watch.see(Seen::Idle, &peer).unwrap();
        watch.silence = Duration::ZERO;
        let error = watch.see(Seen::Idle, &peer).unwrap_err();
        let hung = error.downcast::<Hung>().unwrap();
        assert_eq!(hung.last, "@exitless measuring");
    }

    #[test]
    fn a_load_generator_that_dies_midway_ends_the_run() {
        let (step, peer) = (Step::begin("test".into()), peer("echo refused; exit 3"));
        let mut watch = watch(&step);
        say(&mut watch, &peer, "@exitless ready\n@exitless measuring\n").unwrap();
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody noticed");
            if let Err(error) = watch.see(Seen::Idle, &peer) {
                break error.to_string();
            }
        };
        assert!(error.ends_with("(exit status: 3); it said: refused"), "{error}");
    }

    #[test]
    fn a_guest_that_gave_up_is_named_with_the_peer_that_had_died() {
        let (step, peer) = (Step::begin("test".into()), peer("exit 3"));
        let mut watch = Watch { grace: Duration::MAX, ..watch(&step) };
        say(&mut watch, &peer, "@exitless ready\n").unwrap();
        let start = Instant::now();
        while watch.died.is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody noticed");
            watch.see(Seen::Idle, &peer).unwrap();
        }
        say(&mut watch, &peer, "@exitless failed the load stands still\n").unwrap();
        let ended = Ended::Exited { status: 0, message: String::new() };
        let error = format!("{:#}", watch.finish(&ended, Path::new("none")).err().unwrap());
        assert!(error.contains("load generator sh ended"), "{error}");
        assert!(error.contains("the load stands still"), "{error}");
    }
}
