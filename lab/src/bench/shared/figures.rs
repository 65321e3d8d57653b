//! From the windows of guests that share a core to figures; `docs/figures.md` defines each.
//!
//! Guarantees: pure arithmetic. All but the distribution of waits are slopes: a long window less
//! the short one before it.

use crate::bench::figures::{Error, Exits, Kind, Point, Tick, Window, share};
use ledger::Reason;

/// What was counted of one guest, and on its core meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// I/Os it completed.
    pub operations: u64,
    /// Device interrupts its kernel took.
    pub interrupts: u64,
    /// Local timer interrupts its kernel took.
    pub ticks: u64,
    /// Real time.
    pub nanoseconds: u64,
    /// Of the guest, by the ledger; zeroes on the bare machine.
    pub exits: Exits,
    /// Instructions in guest mode on the core, the other guest's among them.
    pub guest: u64,
    /// Instructions in host mode on the core.
    pub host: u64,
    /// Instructions of the other cores meanwhile: of the hypervisor's own.
    pub others: u64,
    /// Waits for the core in all windows, by the ledger's buckets.
    pub waits: Vec<u64>,
}

impl Side {
    /// All windows of a guest.
    pub fn of(windows: &[Window]) -> Result<Side, Error> {
        let mut side = Side::default();
        for pair in windows.windows(2) {
            let [short, long] = pair else { continue };
            if (short.kind, long.kind) == (Kind::Short, Kind::Long)
                && long.operations > short.operations
            {
                side.add(short, long);
            }
        }
        for exits in
            windows.iter().filter(|w| w.kind != Kind::Spin).filter_map(|w| w.exits.as_ref())
        {
            add(&mut side.waits, &exits.waits, &[]);
        }
        if side.operations == 0 {
            return Err(Error::Unpaired);
        }
        if side.interrupts == 0 {
            return Err(Error::Polled(side.operations));
        }
        Ok(side)
    }

    fn add(&mut self, short: &Window, long: &Window) {
        let more = |of: fn(&Window) -> u64| of(long).saturating_sub(of(short));
        self.operations += more(|w| w.operations);
        self.interrupts += more(|w| w.interrupts);
        self.ticks += more(|w| w.ticks);
        self.nanoseconds += more(|w| w.nanoseconds);
        self.guest += more(|w| w.guest);
        self.host += more(|w| w.host);
        self.others += more(|w| w.others);
        if let (Some(a), Some(b)) = (&short.exits, &long.exits) {
            let sum = &mut self.exits;
            sum.entries += b.entries.saturating_sub(a.entries);
            sum.injected += b.injected.saturating_sub(a.injected);
            sum.device_injected += b.device_injected.saturating_sub(a.device_injected);
            sum.slices += b.slices.saturating_sub(a.slices);
            add(&mut sum.by_reason, &b.by_reason, &a.by_reason);
        }
    }

    /// Takes in what was counted of the same guest in another run.
    fn pool(&mut self, other: &Side) {
        self.operations += other.operations;
        self.interrupts += other.interrupts;
        self.ticks += other.ticks;
        self.nanoseconds += other.nanoseconds;
        self.guest += other.guest;
        self.host += other.host;
        self.others += other.others;
        self.exits.entries += other.exits.entries;
        self.exits.injected += other.exits.injected;
        self.exits.device_injected += other.exits.device_injected;
        self.exits.slices += other.exits.slices;
        add(&mut self.exits.by_reason, &other.exits.by_reason, &[]);
        add(&mut self.waits, &other.waits, &[]);
    }

    /// Exits for this reason.
    pub fn exits_for(&self, reason: Reason) -> u64 {
        self.exits.by_reason.get(reason as usize).copied().unwrap_or(0)
    }

    /// Interrupts that came while the guest had the core: those that the host didn't give it, and
    /// those that exited on arrival.
    pub fn while_resident(&self) -> u64 {
        self.interrupts.saturating_sub(self.exits.device_injected)
            + self.exits_for(Reason::DeviceInterrupt)
    }

    /// Exits that these cost: on arrival, and for completions beyond those of the interrupts that
    /// came while it hadn't the core; each of these is completed by an exit.
    pub fn exits_while_resident(&self) -> u64 {
        let arrival = self.exits_for(Reason::DeviceInterrupt);
        let descheduled = self.exits.device_injected.saturating_sub(arrival);
        arrival + self.exits_for(Reason::DeviceEoi).saturating_sub(descheduled)
    }
}

/// What `sum` lacks, plus each of `more` less the same of `less`.
fn add(sum: &mut Vec<u64>, more: &[u64], less: &[u64]) {
    sum.resize(sum.len().max(more.len()), 0);
    for (i, (sum, n)) in sum.iter_mut().zip(more).enumerate() {
        *sum += n.saturating_sub(less.get(i).copied().unwrap_or(0));
    }
}

/// The guests of a core.
#[derive(Clone, Debug, Default)]
pub struct Together {
    /// Each.
    pub sides: Vec<Side>,
    /// What a timer tick costs, by a window of the first guest alone.
    pub tick: Tick,
    /// TSC ticks a second; none on the bare machine.
    pub tsc_hz: Option<u64>,
}

impl Together {
    /// The runs of one policy as one: each guest's counts added up, a tick's price their mean.
    pub fn pooled(runs: &[Together]) -> Together {
        let mut runs_left = runs.iter();
        let mut all = runs_left.next().cloned().unwrap_or_default();
        for run in runs_left {
            all.sides.iter_mut().zip(&run.sides).for_each(|(sum, side)| sum.pool(side));
        }
        let mean = |of: fn(&Tick) -> f64| {
            runs.iter().map(|run| of(&run.tick)).sum::<f64>() / runs.len().max(1) as f64
        };
        all.tick = Tick { guest: mean(|t| t.guest), host: mean(|t| t.host), exits: Vec::new() };
        all
    }

    /// The sum of a count over the guests.
    pub fn sum(&self, of: impl Fn(&Side) -> u64) -> u64 {
        self.sides.iter().map(of).sum()
    }

    /// I/Os counted.
    pub fn operations(&self) -> u64 {
        self.sum(|s| s.operations)
    }

    /// A count for each I/O.
    pub fn per_operation(&self, of: impl Fn(&Side) -> u64) -> f64 {
        self.sum(of) as f64 / self.operations() as f64
    }

    /// A count for each device interrupt.
    pub fn per_interrupt(&self, of: impl Fn(&Side) -> u64) -> f64 {
        self.sum(of) as f64 / self.sum(|s| s.interrupts) as f64
    }

    /// Exits for each interrupt that hit its running owner.
    pub fn exits_while_resident(&self) -> f64 {
        self.sum(Side::exits_while_resident) as f64 / self.sum(Side::while_resident).max(1) as f64
    }

    /// Instructions of the core for each I/O of either guest: the guests' I/Os for each
    /// instruction of their own windows, added up, as all have the same loads beside them.
    pub fn cost(&self) -> f64 {
        self.of_each_operation(|s| (s.guest + s.host) as f64)
    }

    /// The same with the price of all guests' timer ticks taken out.
    pub fn cost_ticks_out(&self) -> f64 {
        let ticks = |s: &Side| self.ticks_beside(s) * (self.tick.guest + self.tick.host);
        self.of_each_operation(|s| (s.guest + s.host) as f64 - ticks(s))
    }

    /// Instructions of the hypervisor's own core for each I/O of either guest.
    pub fn others(&self) -> f64 {
        self.of_each_operation(|s| s.others as f64)
    }

    /// The part of all cores' instructions that is the hypervisor's own core's, for each guest.
    pub fn others_share(&self) -> f64 {
        let all = share(self.others(), self.cost());
        all / self.sides.len().max(1) as f64
    }

    /// For comparing with the bare machine at this pace, or with as many interrupts.
    pub fn point(&self) -> Point {
        Point {
            pace: self.of_each_operation(|s| s.nanoseconds as f64),
            interrupts: self.per_operation(|s| s.interrupts),
            packets: 0.0,
            cost: self.cost(),
            cost_ticks_out: self.cost_ticks_out(),
        }
    }

    /// What passes on the core for each I/O of either guest, of what passes in each one's windows.
    fn of_each_operation(&self, spent: impl Fn(&Side) -> f64) -> f64 {
        let rate = |s: &Side| s.operations as f64 / spent(s).max(1.0);
        1.0 / self.sides.iter().map(rate).sum::<f64>()
    }

    /// Ticks of all guests in this one's windows: the others had theirs at the pace of their own.
    fn ticks_beside(&self, side: &Side) -> f64 {
        let pace = |s: &Side| s.ticks as f64 / s.nanoseconds.max(1) as f64;
        self.sides.iter().map(pace).sum::<f64>() * side.nanoseconds as f64
    }

    /// Guest instructions / all instructions on the core.
    pub fn guest_share(&self) -> f64 {
        share(self.sum(|s| s.guest) as f64, self.sum(|s| s.host) as f64)
    }

    /// The same with the ticks' price taken out of both.
    pub fn guest_share_ticks_out(&self) -> f64 {
        let ticks: f64 = self.sides.iter().map(|s| self.ticks_beside(s)).sum();
        let guest = self.sum(|s| s.guest) as f64 - ticks * self.tick.guest;
        share(guest, (self.sum(|s| s.host) as f64 - ticks * self.tick.host).max(0.0))
    }

    /// Instructions on the core for each time slice. A guest's windows see its own slices alone,
    /// and the other has as many.
    pub fn instructions_per_slice(&self) -> f64 {
        let all = self.sum(|s| s.guest + s.host) as f64;
        all / (self.sides.len() as u64 * self.sum(|s| s.exits.slices)).max(1) as f64
    }

    /// Waits for the core of both, by bucket.
    pub fn waits(&self) -> Vec<u64> {
        let mut all = Vec::new();
        self.sides.iter().for_each(|side| add(&mut all, &side.waits, &[]));
        all
    }
}

/// What an I/O costs, in one way of counting.
pub type Cost = fn(&Together) -> f64;

/// Of bare's throughput, in each pair of runs, lowest first.
pub fn fractions(bare: &[Together], vm: &[Together], cost: Cost) -> Vec<f64> {
    let mut all: Vec<f64> = bare.iter().zip(vm).map(|(b, v)| cost(b) / cost(v)).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Microseconds that a wait of this bucket is shorter than.
pub fn bucket_end(bucket: usize, tsc_hz: u64) -> f64 {
    (bucket as f64 + 1.0).exp2() * 1e6 / tsc_hz.max(1) as f64
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
