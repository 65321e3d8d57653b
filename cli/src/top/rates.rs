//! What happened between two states of a run, per second of the machine's own clock.
//!
//! Guarantees: a rate is the difference of two counters over the difference of the TSC
//! readings that came with them, so that it doesn't matter when this process got to ask;
//! a counter that wraps or starts again gives no nonsense. It says nothing of what the
//! host doesn't see: interrupts that the guest takes without an exit.

use super::{
    numbers::difference,
    served::Sidecores,
    state::{Snapshot, VcpuState, VmState},
};
use ledger::{Counters, Reason};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;

/// What happened in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Its length by the machine's clock: the longest of the vCPUs'; 0 when none counted.
    pub seconds: f64,
    /// In the plan's order.
    pub vms: Vec<VmRates>,
    /// What sidecores did.
    pub sidecores: Sidecores,
}

/// What happened in a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmRates {
    /// Its name.
    pub name: String,
    /// As in [`VmState`].
    pub policy: Option<String>,
    /// As in [`VmState`].
    pub state: String,
    /// By index.
    pub vcpus: Vec<VcpuRates>,
}

/// What happened on a vCPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VcpuRates {
    /// The core that runs it.
    pub core: u32,
    /// What happened there.
    pub rates: Tally,
}

/// Numbers per second, and in all since the VM started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Exits.
    pub exits: f64,
    /// Interrupts that the host gave to the guest.
    pub injected: f64,
    /// Of these, assigned devices'.
    pub device: f64,
    /// Of these, the timer's.
    pub timer: f64,
    /// The part of the time that passed in the host, from 0 to 1.
    pub host_share: f64,
    /// Exits by reason: those that occurred since the VM started, the most frequent now first.
    pub reasons: Vec<(Reason, f64)>,
    /// Since the VM started.
    pub total: Counters,
}

impl Rates {
    /// What happened from `old` to `new`.
    pub fn between(old: &Snapshot, new: &Snapshot) -> Rates {
        let mut seconds = 0.0_f64;
        let mut vms = Vec::new();
        for (i, vm) in new.vms.iter().enumerate() {
            let before = old.vms.get(i).map_or(&[][..], |vm| &vm.vcpus);
            let vcpus = vm.vcpus.iter().enumerate().map(|(j, vcpu)| {
                let elapsed = elapsed(before.get(j), vcpu, new.tsc_hz);
                seconds = seconds.max(elapsed.map_or(0.0, |e| e.seconds));
                VcpuRates { core: vcpu.core, rates: Tally::of(elapsed.as_ref(), &vcpu.counters) }
            });
            let vcpus = vcpus.collect();
            let VmState { name, policy, state, .. } = vm.clone();
            vms.push(VmRates { name, policy, state, vcpus });
        }
        Rates { seconds, vms, sidecores: Sidecores::between(old, new) }
    }

    /// All vCPUs together.
    pub fn sum(&self) -> Tally {
        Tally::sum(self.vms.iter().flat_map(|vm| &vm.vcpus).map(|v| &v.rates))
    }

    /// For scripts; `docs/running.md` describes it.
    pub fn json(&self, session: u32) -> Value {
        let vms = self.vms.iter().enumerate().map(|(index, vm)| {
            let mut object = vm.json();
            object["queues"] = self.sidecores.queues_json(index);
            object
        });
        let vms: Vec<_> = vms.collect();
        let sidecores = self.sidecores.json();
        json!({ "session": session, "seconds": self.seconds, "vms": vms, "sidecores": sidecores })
    }
}

impl VmRates {
    fn json(&self) -> Value {
        let mut object = Tally::sum(self.vcpus.iter().map(|v| &v.rates)).json();
        let vcpus = self.vcpus.iter().enumerate().map(|(i, vcpu)| {
            let mut object = vcpu.rates.json();
            object.insert("vcpu".into(), i.into());
            object.insert("core".into(), vcpu.core.into());
            Value::Object(object)
        });
        object.insert("vcpus".into(), vcpus.collect());
        object.insert("name".into(), self.name.clone().into());
        object.insert("policy".into(), self.policy.clone().into());
        object.insert("state".into(), self.state.clone().into());
        Value::Object(object)
    }
}

/// Two states of a vCPU and the time between.
#[derive(Clone, Copy)]
struct Elapsed<'a> {
    before: &'a Counters,
    cycles: u64,
    seconds: f64,
}

/// None without two readings, time between them, and a known clock.
fn elapsed<'a>(old: Option<&'a VcpuState>, new: &VcpuState, tsc_hz: u64) -> Option<Elapsed<'a>> {
    let old = old?;
    let cycles = difference(old.now, new.now);
    let seconds = cycles as f64 / tsc_hz as f64;
    (cycles > 0 && tsc_hz > 0).then_some(Elapsed { before: &old.counters, cycles, seconds })
}

impl Tally {
    fn of(elapsed: Option<&Elapsed>, total: &Counters) -> Tally {
        let total = total.clone();
        let Some(Elapsed { before, cycles, seconds }) = elapsed else {
            let reasons = total.by_reason().into_iter().map(|(r, _)| (r, 0.0)).collect();
            return Tally { reasons, total, ..Tally::default() };
        };
        let rate = |old, new| difference(old, new) as f64 / seconds;
        let host = difference(before.host_cycles, total.host_cycles);
        let mut tally = Tally {
            injected: rate(before.injected, total.injected),
            device: rate(before.device_injected, total.device_injected),
            timer: rate(before.timer_injected, total.timer_injected),
            // The clock and the counter aren't read at one instant.
            host_share: (host as f64 / *cycles as f64).min(1.0),
            ..Tally::default()
        };
        tally.reasons = total
            .by_reason()
            .into_iter()
            .map(|(reason, n)| (reason, rate(before.of(reason), n)))
            .collect();
        tally.exits = tally.reasons.iter().map(|(_, n)| n).sum();
        tally.total = total;
        tally.sort();
        tally
    }

    /// Several vCPUs together: numbers are added, the share is that of all their time.
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Tally>) -> Tally {
        let (mut sum, mut count) = (Tally::default(), 0.0_f64);
        for part in parts {
            count += 1.0;
            sum.exits += part.exits;
            sum.injected += part.injected;
            sum.device += part.device;
            sum.timer += part.timer;
            sum.host_share += part.host_share;
            for (reason, rate) in &part.reasons {
                match sum.reasons.iter_mut().find(|(r, _)| r == reason) {
                    Some((_, total)) => *total += rate,
                    None => sum.reasons.push((*reason, *rate)),
                }
            }
            sum.total.add(&part.total);
        }
        sum.host_share /= count.max(1.0);
        sum.sort();
        sum
    }

    /// The most frequent now first; those as frequent, by how often they occurred so far.
    fn sort(&mut self) {
        let total = &self.total;
        self.reasons.sort_by(|(a, x), (b, y)| {
            y.total_cmp(x).then(total.of(*b).cmp(&total.of(*a))).then(a.cmp(b))
        });
    }

    fn json(&self) -> Map<String, Value> {
        let reasons: Map<_, _> = self
            .reasons
            .iter()
            .map(|(r, rate)| {
                let number = json!({ "per_second": rate, "total": self.total.of(*r) });
                (r.label().to_owned(), number)
            })
            .collect();
        let number = |rate: f64, total: u64| json!({ "per_second": rate, "total": total });
        let total = &self.total;
        let object = [
            ("exits", number(self.exits, total.total())),
            ("exits_by_reason", reasons.into()),
            ("injected", number(self.injected, total.injected)),
            ("injected_device", number(self.device, total.device_injected)),
            ("injected_timer", number(self.timer, total.timer_injected)),
            ("host_share", self.host_share.into()),
        ];
        object.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// What rows are sorted by: the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Time in the host: what hurts.
    #[default]
    HostShare,
    /// Exits a second.
    Exits,
    /// Interrupts the host gives a second.
    Injected,
    /// Not at all: the plan's order.
    Plan,
}

impl Sort {
    /// All, as the arrow keys go through them.
    pub const ALL: [Sort; 4] = [Sort::Plan, Sort::Exits, Sort::Injected, Sort::HostShare];

    /// In the list of keys.
    pub const fn label(self) -> &'static str {
        match self {
            Sort::HostShare => "host share",
            Sort::Exits => "exits",
            Sort::Injected => "injected",
            Sort::Plan => "name",
        }
    }

    fn compare(self, a: &Tally, b: &Tally) -> Ordering {
        let by = |f: fn(&Tally) -> f64| f(b).total_cmp(&f(a));
        let (share, exits) = (by(|t| t.host_share), by(|t| t.exits));
        match self {
            Sort::HostShare => share.then(exits),
            Sort::Exits => exits.then(share),
            Sort::Injected => by(|t| t.injected).then(share),
            Sort::Plan => Ordering::Equal,
        }
    }
}

/// A vCPU among all.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Index of the VM and of the vCPU: what stays when the order changes.
    pub key: (usize, usize),
    /// Its VM.
    pub vm: &'a VmRates,
    /// Itself; none in the one row of a VM that has no counters yet.
    pub vcpu: Option<&'a VcpuRates>,
}

impl Row<'_> {
    /// The VM's name; with the vCPU's index where there are several.
    pub fn name(&self) -> String {
        let (name, vcpu) = (&self.vm.name, self.key.1);
        if self.vm.vcpus.len() > 1 { format!("{name}/{vcpu}") } else { name.clone() }
    }
}

/// Every vCPU, sorted; those that are alike stay in the plan's order.
pub fn rows(rates: &Rates, sort: Sort) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (i, vm) in rates.vms.iter().enumerate() {
        let vcpus = vm.vcpus.iter().enumerate();
        rows.extend(vcpus.map(|(j, vcpu)| Row { key: (i, j), vm, vcpu: Some(vcpu) }));
        if vm.vcpus.is_empty() {
            rows.push(Row { key: (i, 0), vm, vcpu: None });
        }
    }
    let nothing = Tally::default();
    let tally = |row: &Row| row.vcpu.map_or(nothing.clone(), |v| v.rates.clone());
    rows.sort_by(|a, b| sort.compare(&tally(a), &tally(b)));
    rows
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
