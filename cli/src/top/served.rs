//! What sidecores did between two states of a run: each sidecore, and each queue that it serves.
//!
//! Guarantees: as for [`super::rates`]. Seconds are the longest that passed for a sidecore.

use super::{
    numbers::{difference, per_second, percent},
    state::{QueueState, SidecoreState, Snapshot},
};
use crate::table::{Table, thousands};
use proto::ServedDevice;
use serde_json::{Value, json};

/// What happened in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sidecores {
    /// By core.
    pub cores: Vec<SidecoreRates>,
    /// In the plan's order.
    pub queues: Vec<QueueRates>,
}

/// What happened on a sidecore.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SidecoreRates {
    /// The core.
    pub core: u32,
    /// Looks at all its queues, a second.
    pub passes: f64,
    /// The part of these that found work.
    pub found: f64,
    /// The part of the time that it served queues, and didn't only look at them.
    pub busy: f64,
    /// Times that it fell asleep, since it began.
    pub sleeps: u64,
    /// It sleeps.
    pub asleep: bool,
}

/// What happened to a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueRates {
    /// Its VM's index in the plan, and name.
    pub vm: (usize, String),
    /// Per second: requests or frames, bytes, interrupts sent, notifications that exited.
    pub completed: f64,
    /// See [`Self::completed`].
    pub bytes: f64,
    /// See [`Self::completed`].
    pub calls: f64,
    /// See [`Self::completed`].
    pub kicks: f64,
    /// The part of the time in which its VM was at its limit by what this queue was served.
    pub held: f64,
    /// Since the VM started.
    pub total: QueueState,
}

impl Sidecores {
    /// What happened from `old` to `new`.
    pub fn between(old: &Snapshot, new: &Snapshot) -> Sidecores {
        let mut longest = 0.0_f64;
        let mut cores = Vec::new();
        for core in &new.sidecores {
            let before = old.sidecores.iter().find(|before| before.core == core.core);
            let (seconds, rates) = SidecoreRates::between(before, core, new.tsc_hz);
            longest = longest.max(seconds);
            cores.push(rates);
        }
        let mut queues = Vec::new();
        for (index, vm) in new.vms.iter().enumerate() {
            let before = old.vms.get(index).map_or(&[][..], |vm| &vm.queues);
            let ticks = longest * new.tsc_hz as f64;
            queues.extend(vm.queues.iter().map(|queue| {
                let before =
                    before.iter().find(|b| (b.device, b.queue) == (queue.device, queue.queue));
                let vm = (index, vm.name.clone());
                QueueRates::between(vm, before, queue, longest, ticks)
            }));
        }
        Sidecores { cores, queues }
    }

    /// For scripts; `docs/running.md` describes it.
    pub fn json(&self) -> Value {
        let core = |c: &SidecoreRates| {
            json!({
                "core": c.core, "passes_per_second": c.passes, "found": c.found, "busy": c.busy,
                "sleeps": c.sleeps, "asleep": c.asleep,
            })
        };
        self.cores.iter().map(core).collect()
    }

    /// The queues of the VM with this index.
    pub fn queues_json(&self, vm: usize) -> Value {
        let number = |rate: f64, total: u64| json!({ "per_second": rate, "total": total });
        let queue = |q: &QueueRates| {
            let served = &q.total.served;
            json!({
                "device": q.total.device.to_string(),
                "queue": q.total.queue,
                "core": q.total.core,
                "completed": number(q.completed, served.completed),
                "bytes": number(q.bytes, served.bytes),
                "calls": number(q.calls, served.calls),
                "kicks": number(q.kicks, served.kicks),
                "longest_wait": served.longest_wait,
                "longest_wait_bytes": served.longest_wait_bytes,
                "moves": served.moves,
                "at_limit": q.held,
                "features": names(q.total.device, q.total.features),
            })
        };
        self.queues.iter().filter(|q| q.vm.0 == vm).map(queue).collect()
    }

    /// A row for each sidecore; none without one.
    pub fn cores_table(&self) -> Option<Table> {
        let mut table = Table::new(["sidecore", "busy", "passes/s", "found work"]);
        for core in &self.cores {
            let busy = if core.asleep { "asleep".to_owned() } else { percent(core.busy) };
            let numbers = [busy, per_second(core.passes), percent(core.found)];
            table.row([core.core.to_string()].into_iter().chain(numbers));
        }
        (!self.cores.is_empty()).then_some(table)
    }

    /// A row for each queue; none without one.
    pub fn queues_table(&self) -> Option<Table> {
        let mut table = Table::new([
            "VM", "served", "queue", "core", "done/s", "MiB/s", "calls/op", "kicks/s", "waited",
            "limit", "rings",
        ]);
        for queue in &self.queues {
            let served = &queue.total.served;
            table.row([
                queue.vm.1.clone(),
                queue.total.device.to_string(),
                queue.total.queue.to_string(),
                queue.total.core.to_string(),
                per_second(queue.completed),
                per_second(queue.bytes / f64::from(1 << 20)),
                queue.calls_per_completion().map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                per_second(queue.kicks),
                thousands(served.longest_wait),
                format!("{:.0} %", 100.0 * queue.held),
                rings(queue.total.features).to_owned(),
            ]);
        }
        (!self.queues.is_empty()).then_some(table)
    }
}

impl SidecoreRates {
    fn between(
        old: Option<&SidecoreState>,
        new: &SidecoreState,
        tsc_hz: u64,
    ) -> (f64, SidecoreRates) {
        let (core, sleeps, asleep) = (new.core, new.sleeps, new.asleep);
        let none = SidecoreRates { core, sleeps, asleep, ..SidecoreRates::default() };
        let Some(old) = old else { return (0.0, none) };
        let ticks = difference(old.now, new.now);
        if ticks == 0 || tsc_hz == 0 {
            return (0.0, none);
        }
        let seconds = ticks as f64 / tsc_hz as f64;
        let passes = difference(old.passes, new.passes);
        let found = difference(old.found, new.found) as f64 / passes.max(1) as f64;
        let busy = difference(old.busy, new.busy) as f64 / ticks as f64;
        let rates = SidecoreRates {
            passes: passes as f64 / seconds,
            // The counts and the clock aren't read at one instant.
            found: found.min(1.0),
            busy: busy.min(1.0),
            ..none
        };
        (seconds, rates)
    }
}

impl QueueRates {
    fn between(
        vm: (usize, String),
        old: Option<&QueueState>,
        new: &QueueState,
        seconds: f64,
        ticks: f64,
    ) -> QueueRates {
        let rate = |of: fn(&proto::Served) -> u64| match old {
            Some(old) if seconds > 0.0 => {
                difference(of(&old.served), of(&new.served)) as f64 / seconds
            }
            _ => 0.0,
        };
        let held = old.map_or(0, |old| difference(old.served.held, new.served.held)) as f64;
        QueueRates {
            vm,
            // What holds it back may end after this look.
            held: if ticks > 0.0 { (held / ticks).min(1.0) } else { 0.0 },
            completed: rate(|s| s.completed),
            bytes: rate(|s| s.bytes),
            calls: rate(|s| s.calls),
            kicks: rate(|s| s.kicks),
            total: new.clone(),
        }
    }

    /// Interrupts for each completion; none without a completion.
    fn calls_per_completion(&self) -> Option<f64> {
        (self.completed > 0.0).then(|| self.calls / self.completed)
    }
}

/// Virtio's names of the features that a driver accepted.
fn names(device: ServedDevice, features: u64) -> Vec<String> {
    let names: Vec<&str> = match device {
        ServedDevice::Disk(_) => {
            blk::Features::from_bits_truncate(features).iter_names().map(|(name, _)| name).collect()
        }
        // Its own have no names here; of rings' none is offered.
        ServedDevice::Iommu => Vec::new(),
        ServedDevice::Network(_) => {
            net::Features::from_bits_truncate(features).iter_names().map(|(name, _)| name).collect()
        }
    };
    names.into_iter().map(str::to_ascii_lowercase).collect()
}

/// Which kind of rings the driver chose.
fn rings(features: u64) -> &'static str {
    match features & blk::Features::RING_PACKED.bits() {
        _ if features == 0 => "-",
        0 => "split",
        _ => "packed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::state::VmState;
    use proto::Served;

    fn snapshot(now: u64, completed: u64) -> Snapshot {
        let served = Served {
            completed,
            bytes: completed << 20,
            calls: completed / 4,
            longest_wait: 3,
            held: now / 4,
            ..Served::default()
        };
        let features = (blk::Features::FLUSH | blk::Features::RING_PACKED).bits();
        let (device, queue, core) = (ServedDevice::Disk(0), 1, 2);
        let vm = VmState {
            name: "db".into(),
            queues: vec![QueueState { device, queue, core, features, served }],
            ..VmState::default()
        };
        let (found, busy) = (now / 2, now / 4);
        let rest = SidecoreState::default();
        let core = SidecoreState { core: 2, passes: now, found, busy, now, ..rest };
        Snapshot { tsc_hz: 1_000, vms: vec![VmState::default(), vm], sidecores: vec![core] }
    }

    #[test]
    fn rates_are_of_the_interval() {
        let rates = Sidecores::between(&snapshot(2_000, 100), &snapshot(4_000, 500));
        let core = &rates.cores[0];
        assert_eq!((core.core, core.passes, core.found, core.busy), (2, 1_000.0, 0.5, 0.25));
        let queue = &rates.queues[0];
        assert_eq!(
            (queue.vm.0, queue.completed, queue.calls_per_completion()),
            (1, 200.0, Some(0.25))
        );
        let shown = rates.cores_table().unwrap().to_string();
        assert_eq!(
            shown,
            "  sidecore     busy  passes/s  found work\n         2  25.00 %     1,000     50.00 %\n"
        );
        let shown = rates.queues_table().unwrap().to_string();
        let words: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            ["db", "disk0", "1", "2", "200", "200", "0.250", "0", "3", "25", "%", "packed"]
        );
        let mut asleep = rates.clone();
        asleep.cores[0].asleep = true;
        assert!(asleep.cores_table().unwrap().to_string().contains(" asleep "));
        assert_eq!(rates.json()[0]["busy"], 0.25);
        assert_eq!(rates.queues_json(1)[0]["completed"]["per_second"], 200.0);
        assert_eq!(rates.queues_json(1)[0]["at_limit"], 0.25);
        assert_eq!(rates.queues_json(1)[0]["features"], json!(["flush", "ring_packed"]));
        assert_eq!(rates.queues_json(0), json!([]));
    }

    #[test]
    fn the_first_state_has_no_rates() {
        let rates = Sidecores::between(&Snapshot::default(), &snapshot(4_000, 500));
        assert_eq!((rates.cores[0].busy, rates.queues[0].completed), (0.0, 0.0));
        assert_eq!(rates.queues[0].calls_per_completion(), None);
        let none = Sidecores::between(&Snapshot::default(), &Snapshot::default());
        assert!(none.cores_table().is_none() && none.queues_table().is_none());
    }
}
