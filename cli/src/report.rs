//! What the hypervisor reported in a run: collected from its records, shown as a
//! table, written as JSON, and turned into the exit status.

pub mod sidecores;
pub mod status;

use crate::{
    paravirtual::Paravirtual,
    report::sidecores::Sidecores,
    session::Ended,
    stream::printable,
    table::{Table, thousands},
};
use ledger::Counters;
use proto::{
    End, Policy, Record,
    exit::{DONE, PANICKED, REFUSED},
    offer::Offer,
};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What was reported in a run.
#[derive(Debug, Default)]
pub struct Report {
    /// The machine as probed, once reported.
    pub machine: Option<Probed>,
    /// Why the hypervisor didn't start, if it didn't.
    pub refused: Option<String>,
    /// By index in the plan.
    pub vms: Vec<VmReport>,
    /// How often the host looked over what confines them, so far.
    pub audit: Audit,
    /// When the machine stood still, as far as the host's own core can tell: TSC values, from and
    /// to.
    pub pauses: Vec<(u64, u64)>,
    /// Every VM ended, and the machine was about to be reset or switched off.
    pub leaving: bool,
    /// What the machine offers, if there was no plan.
    pub offers: Vec<Offer>,
    /// What the sidecores did.
    pub sidecores: Sidecores,
}

/// What the host's audit came to (`docs/design.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Whole passes.
    pub passes: u64,
    /// Present interrupt entries that were judged.
    pub interrupts: u64,
    /// Things that must not be.
    pub findings: u64,
}

impl Audit {
    /// What is wrong with it, a sentence; `wanted`: there had to be a pass, with interrupts.
    pub fn complaint(&self, wanted: bool) -> Option<String> {
        let Audit { passes, interrupts, findings, .. } = *self;
        if findings > 0 {
            return Some(format!("the host found {findings} things wrong with the VMs' tables"));
        }
        (wanted && (passes == 0 || interrupts == 0)).then(|| {
            format!("the host looked over the tables {passes} times and judged {interrupts} interrupt entries; both must be more than none")
        })
    }
}

/// The machine as the hypervisor found it.
#[derive(Debug)]
pub struct Probed {
    /// CPUs brought up.
    pub cpus: u32,
    /// Bytes of usable memory.
    pub memory: u64,
    /// TSC ticks per second.
    pub tsc_hz: u64,
    /// Bytes the hypervisor keeps.
    pub host_memory: u64,
}

/// What was reported about one VM.
#[derive(Debug, Default)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// The policy in force and why, once it started.
    pub policy: Option<(Policy, String)>,
    /// Bytes of guest memory, once it started.
    pub memory: u64,
    /// Bytes the hypervisor spent on it.
    pub overhead: u64,
    /// The host core's TSC when it started.
    since: u64,
    /// The newest counters of its vCPUs.
    pub vcpus: Vec<Counters>,
    /// TSC cycles from its start to its newest counters.
    pub cycles: u64,
    /// What sidecores did for its disks and networks.
    pub paravirtual: Paravirtual,
    /// How it ended, once it did.
    pub end: Option<End>,
    /// What it did that was refused.
    pub incidents: Vec<String>,
}

/// More vCPUs than any plan has, so that a damaged record doesn't fill memory.
const MAX_VCPUS: usize = 64;

impl Report {
    /// For VMs of these names, in the plan's order.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let vms = names.into_iter().map(|n| VmReport { name: n.to_owned(), ..VmReport::default() });
        Report { vms: vms.collect(), ..Report::default() }
    }

    /// How much of a time, given by the TSC, the machine stood still, in microseconds.
    pub fn paused(&self, from: u64, to: u64) -> u64 {
        let within = |p: &(u64, u64)| p.1.min(to).saturating_sub(p.0.max(from));
        self.microseconds(self.pauses.iter().map(within).sum())
    }

    /// The longest time that the machine stood still at once, in microseconds.
    fn longest_pause(&self) -> u64 {
        self.microseconds(self.pauses.iter().map(|p| p.1.saturating_sub(p.0)).max().unwrap_or(0))
    }

    fn microseconds(&self, ticks: u64) -> u64 {
        let hz = self.machine.as_ref().map_or(0, |m| m.tsc_hz);
        ticks / (hz / 1_000_000).max(1)
    }

    /// Takes a record in.
    pub fn see(&mut self, record: &Record) {
        self.sidecores.see(record);
        let vm = match record {
            Record::Refused { reason } => {
                self.refused = Some(reason.clone());
                return;
            }
            Record::Machine { cpus, memory, tsc_hz, host_memory } => {
                let (cpus, memory, tsc_hz, host_memory) = (*cpus, *memory, *tsc_hz, *host_memory);
                self.machine = Some(Probed { cpus, memory, tsc_hz, host_memory });
                return;
            }
            Record::Started { vm, .. }
            | Record::Counters { vm, .. }
            | Record::Live { vm, .. }
            | Record::Ended { vm, .. }
            | Record::Paravirtual { vm, .. }
            | Record::Incident { vm, .. } => *vm,
            Record::Sidecore { .. } => return,
            Record::Audit { passes, interrupts, findings } => {
                let (passes, interrupts, findings) = (*passes, *interrupts, *findings);
                self.audit = Audit { passes, interrupts, findings };
                return;
            }
            Record::Offer(offer) => return self.offers.push(offer.clone()),
            Record::Paused { from, to } => return self.pauses.push((*from, *to)),
            Record::Leaving => {
                self.leaving = true;
                return;
            }
        };
        if let Some(vm) = self.vms.get_mut(vm as usize) {
            vm.see(record);
        }
    }

    /// How the hypervisor ended the machine. Where it was to reset it or to switch it off, it
    /// doesn't use the debug exit.
    fn code(&self, ended: &Ended) -> Option<u32> {
        match ended {
            Ended::Exited { status: 0, .. } if self.leaving => Some(DONE),
            _ => ended.code(),
        }
    }

    /// The status to exit with: the first that isn't [`status::OK`], machine before VMs.
    pub fn status(&self, ended: &Ended) -> u8 {
        match (ended, self.code(ended)) {
            (_, Some(DONE)) => {
                let ends = self.vms.iter().map(VmReport::status);
                ends.into_iter().find(|s| *s != status::OK).unwrap_or(status::OK)
            }
            (_, Some(REFUSED)) => status::REFUSED,
            // Without a debug-exit value, status 0 is a reset by triple fault of the host.
            (_, Some(PANICKED)) | (Ended::Exited { status: 0, .. }, _) => status::PANIC,
            (Ended::Exited { .. } | Ended::Killed { .. }, _) => status::QEMU,
            (Ended::TimedOut, _) => status::TIMEOUT,
            (Ended::Interrupted | Ended::Stopped, _) => status::INTERRUPTED,
        }
    }

    /// One sentence for a run whose machine didn't end as it should.
    pub fn failure(&self, ended: &Ended) -> Option<String> {
        Some(match (ended, self.code(ended)) {
            (_, Some(DONE)) => return None,
            (_, Some(REFUSED)) => match &self.refused {
                Some(reason) => format!("refused: {reason}"),
                None => "the hypervisor refused to start and gave no reason".into(),
            },
            (_, Some(PANICKED)) => "the hypervisor failed; its last lines above say where".into(),
            (Ended::Exited { status: 0, .. }, _) => {
                "the machine was reset under the hypervisor, as by a triple fault".into()
            }
            (Ended::Exited { status, message }, _) if message.is_empty() => {
                format!("QEMU ended with status {status} and said nothing")
            }
            (Ended::Exited { status, message }, _) => {
                format!("QEMU ended with status {status}: {message}")
            }
            (Ended::Killed { signal, message }, _) if message.is_empty() => {
                format!("QEMU was ended by signal {signal}")
            }
            (Ended::Killed { signal, message }, _) => {
                format!("QEMU was ended by signal {signal}: {message}")
            }
            (Ended::TimedOut, _) => "the time is up and not all VMs have ended".into(),
            (Ended::Interrupted | Ended::Stopped, _) => "stopped before all VMs had ended".into(),
        })
    }

    /// The summary for the terminal: for each VM how it ended and what made it exit;
    /// nothing when none started.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let started = self.vms.iter().any(|vm| vm.policy.is_some());
        for vm in self.vms.iter().filter(|_| started) {
            // Writing to a string can't fail.
            let _ = vm.summarize(self.machine.as_ref(), &mut text);
        }
        if started {
            // Writing to a string can't fail.
            let _ = write!(text, "{}", self.sidecores);
        }
        text.extend(self.audit.complaint(false).map(|c| c + ", as the log says\n"));
        text
    }

    /// The summary for programs; `docs/running.md` describes it.
    pub fn json(&self, ended: &Ended) -> Value {
        let machine = self.machine.as_ref().map(|m| {
            json!({ "cpus": m.cpus, "memory": m.memory, "tsc_hz": m.tsc_hz, "host_memory": m.host_memory })
        });
        let vms: Vec<_> = self.vms.iter().map(VmReport::json).collect();
        json!({
            "status": self.status(ended),
            "failure": self.failure(ended),
            "machine": machine,
            "audit": {
                "passes": self.audit.passes,
                "interrupts": self.audit.interrupts,
                "findings": self.audit.findings,
            },
            "longest_pause_us": self.longest_pause(),
            "sidecores": self.sidecores.json(),
            "vms": vms,
        })
    }
}

impl VmReport {
    fn see(&mut self, record: &Record) {
        match record {
            Record::Started { policy, why, memory, overhead, now, .. } => {
                self.policy = Some((*policy, why.clone()));
                (self.memory, self.overhead, self.since) = (*memory, *overhead, *now);
            }
            Record::Counters { vcpu, counters, cycles, .. } => {
                self.count(*vcpu, counters, *cycles);
            }
            // What a vCPU sent itself at its end is newer.
            Record::Live { vcpu, counters, now, .. } if self.end.is_none() => {
                self.count(*vcpu, counters, now.saturating_sub(self.since));
            }
            Record::Ended { end, .. } => self.end = Some(end.clone()),
            Record::Paravirtual { device, queue, served, .. } => {
                self.paravirtual.see(*device, *queue, *served);
            }
            Record::Incident { what, .. } => self.incidents.push(what.clone()),
            Record::Refused { .. }
            | Record::Machine { .. }
            | Record::Live { .. }
            | Record::Paused { .. }
            | Record::Leaving
            | Record::Offer(_)
            | Record::Sidecore { .. }
            | Record::Audit { .. } => {}
        }
    }

    fn count(&mut self, vcpu: u32, counters: &Counters, cycles: u64) {
        let vcpu = vcpu as usize;
        if vcpu < MAX_VCPUS {
            let count = self.vcpus.len().max(vcpu + 1);
            self.vcpus.resize_with(count, Counters::default);
            self.vcpus[vcpu] = counters.clone();
            self.cycles = self.cycles.max(cycles);
        }
    }

    /// The counters of all vCPUs together.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.vcpus.iter().for_each(|vcpu| sum.add(vcpu));
        sum
    }

    /// The part of its vCPUs' cycles that the host took, from 0 to 1.
    pub fn host_share(&self) -> Option<f64> {
        let all = self.cycles.checked_mul(self.vcpus.len() as u64).filter(|c| *c > 0)?;
        Some(self.counters().host_cycles as f64 / all as f64)
    }

    fn status(&self) -> u8 {
        match &self.end {
            Some(End::PowerOff | End::Reset) => status::OK,
            Some(End::DebugExit(value)) => status::of_guest(*value),
            Some(End::Fault(_)) => status::FAULT,
            None => status::INTERRUPTED,
        }
    }

    fn end_text(&self) -> String {
        match &self.end {
            Some(end) => end.to_string(),
            None => "was still running".into(),
        }
    }

    fn summarize(&self, machine: Option<&Probed>, text: &mut String) -> std::fmt::Result {
        write!(text, "{}", lines(&format!("VM {}: {}", self.name, self.end_text())))?;
        let Some((policy, why)) = &self.policy else {
            return writeln!(text, "  it never started");
        };
        write!(text, "{}", lines(&format!("  interrupts: {} ({why})", policy.label())))?;
        for incident in &self.incidents {
            write!(text, "{}", lines(&format!("  refused: {incident}")))?;
        }
        let counters = self.counters();
        let entries = thousands(counters.entries);
        let seconds =
            machine.filter(|m| m.tsc_hz > 0).map(|m| self.cycles as f64 / m.tsc_hz as f64);
        if let (Some(seconds), Some(share)) = (seconds, self.host_share()) {
            let share = share * 100.0;
            writeln!(
                text,
                "  {seconds:.1} s, {entries} guest entries, {share:.2} % of cycles in the host"
            )?;
        }
        let total = counters.total();
        if total > 0 {
            let mut table = Table::new(["exits by reason", "exits", "share"]);
            for (reason, n) in counters.by_reason() {
                let share = n as f64 * 100.0 / total as f64;
                table.row([reason.label().to_owned(), thousands(n), format!("{share:.1} %")]);
            }
            table.row(["all".to_owned(), thousands(total), String::new()]);
            write!(text, "{table}")?;
        }
        write!(text, "{}", self.paravirtual)
    }

    fn json(&self) -> Value {
        let counters = self.counters();
        let reasons: Map<String, Value> =
            counters.by_reason().into_iter().map(|(r, n)| (r.label().into(), n.into())).collect();
        let (end, detail) = match &self.end {
            Some(End::PowerOff) => ("power-off", Value::Null),
            Some(End::Reset) => ("reset", Value::Null),
            Some(End::DebugExit(value)) => ("debug-exit", json!(value)),
            Some(End::Fault(what)) => ("fault", json!(what)),
            None => ("none", Value::Null),
        };
        json!({
            "name": self.name,
            "policy": self.policy.as_ref().map(|(p, _)| p.label()),
            "why": self.policy.as_ref().map(|(_, why)| why),
            "end": end,
            "end_detail": detail,
            "memory": self.memory,
            "overhead": self.overhead,
            "cycles": self.cycles,
            "host_cycles": counters.host_cycles,
            "host_share": self.host_share(),
            "entries": counters.entries,
            "exits": counters.total(),
            "exits_by_reason": reasons,
            "injected": counters.injected,
            "injected_device": counters.device_injected,
            "injected_timer": counters.timer_injected,
            "slices": counters.slices,
            "disks": self.paravirtual.disks(),
            "networks": self.paravirtual.networks(),
            "iommu": self.paravirtual.iommus(),
            "incidents": self.incidents,
        })
    }
}

/// What a terminal shows in a line.
const WIDTH: usize = 80;

/// A sentence as lines that a terminal doesn't wrap, further ones indented.
fn lines(sentence: &str) -> String {
    let sentence = printable(sentence);
    let (mut text, mut line) = (String::new(), String::new());
    for word in sentence.split_inclusive(' ') {
        let long = line.chars().count() + word.trim_end().chars().count() > WIDTH;
        if long && !line.trim().is_empty() {
            text += line.trim_end();
            text.push('\n');
            line = "    ".to_owned();
        }
        line += word;
    }
    text + line.trim_end() + "\n"
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
