//! From counted windows to figures: slopes between short and long windows, the
//! price of a timer tick, medians and spreads. What an operation is the load says:
//! an I/O, a request, a transaction, a write.
//!
//! Guarantees: pure arithmetic on counts; what a window's edges cost is in every
//! window once and drops out; a set of windows that gives no figure is refused
//! with a sentence. Doesn't guarantee that ticks taken out by their price are all
//! that time costs: a load that idles reprograms its timer between I/Os, and that
//! stays with the I/O.

use ledger::Reason;

/// Guest entries counted from outside and inside may differ by this much, or by one in each
/// window: where exits are rare, one between a marker and the reading of the ledger is a lot.
const MAX_DISAGREEMENT: f64 = 0.03;

/// What a window was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Few operations.
    Short,
    /// Many operations.
    Long,
    /// None: a loop of a known number of instructions, and the ticks of its time.
    Spin,
}

/// What the hypervisor's ledger counted during a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Guest entries.
    pub entries: u64,
    /// Virtual interrupts that the host gave to the guest.
    pub injected: u64,
    /// Of these, those of assigned devices.
    pub device_injected: u64,
    /// Devices' interrupts that reached the host while theirs was pending already.
    pub device_merged: u64,
    /// How often the guest was given a core that it shares.
    pub slices: u64,
    /// How long interrupts waited for that, as [`ledger::Page::waits`] has it.
    pub waits: Vec<u64>,
    /// Exits by [`Reason`] index.
    pub by_reason: Vec<u64>,
}

/// One window: everything counted between two markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// What it was for.
    pub kind: Kind,
    /// Instructions of the known loop, for [`Kind::Spin`].
    pub spun: u64,
    /// Operations completed.
    pub operations: u64,
    /// Device interrupts the guest's kernel took.
    pub interrupts: u64,
    /// Local timer interrupts the guest's kernel took.
    pub ticks: u64,
    /// Real time.
    pub nanoseconds: u64,
    /// Bytes of payload that the network card moved; 0 where the guest doesn't say.
    pub bytes: u64,
    /// Packets that the network card moved, both ways; 0 where the guest doesn't say.
    pub packets: u64,
    /// From the ledger; none on the bare machine.
    pub exits: Option<Exits>,
    /// Instructions executed in guest mode, or on the bare machine.
    pub guest: u64,
    /// Instructions executed in host mode.
    pub host: u64,
    /// Instructions that all other CPUs executed meanwhile: the hypervisor's own core.
    pub others: u64,
    /// Guest entries, as the plugin saw them.
    pub vmruns: u64,
    /// Of a guest's guest: entries by the hypervisor below the guest's.
    pub outer_vmruns: u64,
}

/// Why windows give no figures.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no pair of a short and a long window.
    #[error("the guest reported no pair of a short and a long window")]
    Unpaired,
    /// Nothing to take a slope over, in any pair.
    #[error(
        "pair {pair}: the long window has {long} operations, the short one {short}; it needs more"
    )]
    Flat {
        /// Which, from 0.
        pair: usize,
        /// Operations of the long window.
        long: u64,
        /// Operations of the short window.
        short: u64,
    },
    /// A load without interrupts.
    #[error("{0} operations completed without a device interrupt: the device is polled")]
    Polled(u64),
    /// No price for a tick.
    #[error("the guest reported no spin window with a timer tick in it: ticks can't be taken out")]
    Tickless,
}

/// What one timer tick costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// Instructions in guest mode.
    pub guest: f64,
    /// Instructions in host mode.
    pub host: f64,
    /// Exits by [`Reason`] index.
    pub exits: Vec<f64>,
}

/// The figures of one policy under one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Operations that long windows have more than short ones; so are the other counts.
    pub operations: u64,
    /// Device interrupts.
    pub interrupts: u64,
    /// Timer ticks.
    pub ticks: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Packets, both ways.
    pub packets: u64,
    /// Virtual interrupts that the host gave to the guest.
    pub injected: u64,
    /// Devices' interrupts that the guest takes together with one before, which was still pending.
    pub merged: u64,
    /// Real seconds.
    pub seconds: f64,
    /// Exits by [`Reason`] index; empty on the bare machine.
    pub exits: Vec<u64>,
    /// Guest instructions.
    pub guest: u64,
    /// Host instructions.
    pub host: u64,
    /// Instructions of all other CPUs meanwhile.
    pub others: u64,
    /// The price of a tick.
    pub tick: Tick,
    /// Instructions per operation, guest and host, of each pair of windows.
    pub cost: Vec<f64>,
    /// The same with ticks taken out.
    pub cost_ticks_out: Vec<f64>,
    /// What else each pair tells.
    pub points: Vec<Point>,
    /// Exits of the hypervisor below, of a guest's guest and of its hypervisor together.
    pub outer_exits: u64,
    /// Guest entries in all windows as the plugin saw them.
    pub vmruns: u64,
    /// Guest entries in all windows as the ledger counted them.
    pub entries: u64,
    /// How many windows these are.
    pub windows: u64,
    /// Pairs left out, because the long window had no more operations than the short one.
    pub flat: u64,
}

/// What a pair of windows tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Real time of an operation, in nanoseconds: the pace.
    pub pace: f64,
    /// Device interrupts per operation.
    pub interrupts: f64,
    /// Packets both ways per operation; 0 without a network.
    pub packets: f64,
    /// Instructions per operation, guest and host, ticks in.
    pub cost: f64,
    /// The same with ticks taken out.
    pub cost_ticks_out: f64,
}

impl Point {
    /// What this pair tells; nothing where it has no slope.
    pub fn of(short: &Window, long: &Window, tick: &Tick) -> Option<Point> {
        let more = |of: fn(&Window) -> u64| of(long).saturating_sub(of(short)) as f64;
        let operations = more(|w| w.operations);
        let done = (long.operations + short.operations) as f64;
        let cost = more(|w| w.guest) + more(|w| w.host);
        let ticks = more(|w| w.ticks) * (tick.guest + tick.host);
        (operations > 0.0 && cost > ticks).then(|| Point {
            // Of both: the difference of two times is too sensitive to what else the computer did.
            pace: (long.nanoseconds + short.nanoseconds) as f64 / done,
            interrupts: more(|w| w.interrupts) / operations,
            packets: more(|w| w.packets) / operations,
            cost: cost / operations,
            cost_ticks_out: (cost - ticks) / operations,
        })
    }
}

/// A ratio with its spread: half the range over repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Of the medians.
    pub value: f64,
    /// To either side.
    pub spread: f64,
}

/// Whether a reason is the timer's doing.
pub fn is_timer(reason: usize) -> bool {
    [Reason::TimerProgram, Reason::TimerInterrupt, Reason::TimerEoi]
        .iter()
        .any(|r| *r as usize == reason)
}

/// The name of a reason by index; a newer hypervisor may count some we don't know.
pub fn reason_name(index: usize) -> String {
    Reason::ALL.get(index).map_or_else(|| format!("reason-{index}"), |r| r.label().to_string())
}

impl Figures {
    /// From the windows of one or several runs, in the order they were taken.
    pub fn of(windows: &[Window]) -> Result<Figures, Error> {
        let tick = tick(windows)?;
        let mut figures = Figures {
            operations: 0,
            interrupts: 0,
            ticks: 0,
            bytes: 0,
            packets: 0,
            injected: 0,
            merged: 0,
            seconds: 0.0,
            exits: Vec::new(),
            guest: 0,
            host: 0,
            others: 0,
            tick,
            cost: Vec::new(),
            cost_ticks_out: Vec::new(),
            points: Vec::new(),
            outer_exits: 0,
            vmruns: windows.iter().map(|w| w.vmruns).sum(),
            entries: windows.iter().filter_map(|w| w.exits.as_ref()).map(|e| e.entries).sum(),
            windows: windows.len() as u64,
            flat: 0,
        };
        let (mut exits, mut flat): (Vec<i64>, _) = (Vec::new(), None);
        for (pair, (short, long)) in pairs(windows).enumerate() {
            if long.operations <= short.operations {
                // The load's pace changed so much that there is no slope to take.
                let (long, short) = (long.operations, short.operations);
                flat.get_or_insert(Error::Flat { pair, long, short });
                figures.flat += 1;
                continue;
            }
            let operations = long.operations - short.operations;
            let guest = long.guest.saturating_sub(short.guest);
            let host = long.host.saturating_sub(short.host);
            let ticks = long.ticks.saturating_sub(short.ticks);
            let cost = (guest + host) as f64;
            let of_ticks = ticks as f64 * (figures.tick.guest + figures.tick.host);
            figures.cost.push(cost / operations as f64);
            figures.cost_ticks_out.push((cost - of_ticks) / operations as f64);
            figures.points.extend(Point::of(short, long, &figures.tick));
            figures.operations += operations;
            figures.interrupts += long.interrupts.saturating_sub(short.interrupts);
            figures.ticks += ticks;
            figures.bytes += long.bytes.saturating_sub(short.bytes);
            figures.packets += long.packets.saturating_sub(short.packets);
            figures.seconds += long.nanoseconds.saturating_sub(short.nanoseconds) as f64 / 1e9;
            figures.guest += guest;
            figures.host += host;
            figures.others += long.others.saturating_sub(short.others);
            figures.outer_exits += long.outer_vmruns.saturating_sub(short.outer_vmruns);
            if let (Some(long), Some(short)) = (&long.exits, &short.exits) {
                figures.injected += long.injected.saturating_sub(short.injected);
                figures.merged += long.device_merged.saturating_sub(short.device_merged);
                exits.resize(exits.len().max(long.by_reason.len()), 0);
                for (sum, (l, s)) in
                    exits.iter_mut().zip(long.by_reason.iter().zip(&short.by_reason))
                {
                    *sum += *l as i64 - *s as i64;
                }
            }
        }
        // A rare exit may fall into short windows only: as a slope that is none.
        figures.exits = exits.into_iter().map(|n| u64::try_from(n).unwrap_or(0)).collect();
        if figures.cost.is_empty() {
            return Err(flat.unwrap_or(Error::Unpaired));
        }
        if figures.interrupts == 0 {
            return Err(Error::Polled(figures.operations));
        }
        Ok(figures)
    }

    /// All exits.
    pub fn exits_total(&self) -> u64 {
        self.exits.iter().sum()
    }

    /// Exits that aren't the timer's.
    pub fn exits_ticks_out(&self) -> u64 {
        self.exits.iter().enumerate().filter(|(r, _)| !is_timer(*r)).map(|(_, n)| n).sum()
    }

    /// Exits per device interrupt, the timer's left out.
    pub fn exits_per_interrupt(&self) -> f64 {
        self.exits_ticks_out() as f64 / self.interrupts as f64
    }

    /// Exits for an assigned device's interrupt or its EOI, per device interrupt.
    pub fn delivery_exits_per_interrupt(&self) -> f64 {
        let of = |r: Reason| self.exits.get(r as usize).copied().unwrap_or(0);
        (of(Reason::DeviceInterrupt) + of(Reason::DeviceEoi)) as f64 / self.interrupts as f64
    }

    /// Instructions of the other CPUs / all instructions, those of the guest's core included.
    pub fn others_share(&self) -> f64 {
        share(self.others as f64, (self.guest + self.host) as f64)
    }

    /// All exits per operation.
    pub fn exits_per_operation(&self) -> f64 {
        self.exits_total() as f64 / self.operations as f64
    }

    /// Guest instructions / all instructions.
    pub fn guest_share(&self) -> f64 {
        share(self.guest as f64, self.host as f64)
    }

    /// The same without what the ticks cost.
    pub fn guest_share_ticks_out(&self) -> f64 {
        let ticks = self.ticks as f64;
        let guest = self.guest as f64 - ticks * self.tick.guest;
        share(guest, (self.host as f64 - ticks * self.tick.host).max(0.0))
    }

    /// Whether the plugin's count of guest entries and the ledger's are as close as they must
    /// be; none on the bare machine.
    pub fn counters_agree(&self) -> Option<bool> {
        let apart = self.vmruns.abs_diff(self.entries);
        let close = apart as f64 <= MAX_DISAGREEMENT * self.entries as f64;
        (!self.exits.is_empty()).then_some(close || apart <= self.windows)
    }

    /// Cost on the bare machine / cost here; ticks in, or taken out of both.
    pub fn fraction_of(&self, bare: &Figures, ticks_out: bool) -> Spread {
        let of = |f: &Figures| if ticks_out { &f.cost_ticks_out } else { &f.cost }.clone();
        let (bare, here) = (of(bare), of(self));
        let value = median(&bare) / median(&here);
        Spread { value, spread: value * (relative_half_range(&bare) + relative_half_range(&here)) }
    }

    /// Exits by reason that belong to operations, ticks' share taken out, per device interrupt.
    pub fn exits_of_load(&self) -> Vec<f64> {
        let of_ticks =
            |r: usize| self.tick.exits.get(r).copied().unwrap_or(0.0) * self.ticks as f64;
        let load = self.exits.iter().enumerate();
        load.map(|(r, n)| (*n as f64 - of_ticks(r)).max(0.0) / self.interrupts as f64).collect()
    }
}

/// Each long window with the short one before it.
pub fn pairs(windows: &[Window]) -> impl Iterator<Item = (&Window, &Window)> {
    windows.windows(2).filter_map(|w| match w {
        [short, long] if short.kind == Kind::Short && long.kind == Kind::Long => {
            Some((short, long))
        }
        _ => None,
    })
}

/// All spin windows together: what isn't the loop is the ticks'.
pub fn tick(windows: &[Window]) -> Result<Tick, Error> {
    let spins = windows.iter().filter(|w| w.kind == Kind::Spin);
    let ticks: u64 = spins.clone().map(|w| w.ticks).sum();
    if ticks == 0 {
        return Err(Error::Tickless);
    }
    let per = |n: u64| n as f64 / ticks as f64;
    let mut exits: Vec<u64> = Vec::new();
    for e in spins.clone().filter_map(|w| w.exits.as_ref()) {
        exits.resize(exits.len().max(e.by_reason.len()), 0);
        exits.iter_mut().zip(&e.by_reason).for_each(|(sum, n)| *sum += n);
    }
    Ok(Tick {
        guest: per(spins.clone().map(|w| w.guest.saturating_sub(w.spun)).sum()),
        host: per(spins.map(|w| w.host).sum()),
        exits: exits.into_iter().map(per).collect(),
    })
}

/// The first of the two as a part of both; 0 of nothing.
pub fn share(guest: f64, rest: f64) -> f64 {
    if guest + rest > 0.0 { guest / (guest + rest) } else { 0.0 }
}

/// The middle value, or the mean of the two middle ones; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.get(middle) {
        None => 0.0,
        Some(high) if sorted.len() % 2 == 1 => *high,
        Some(high) => (sorted[middle - 1] + high) / 2.0,
    }
}

/// Half of what lies between the least and the greatest value, relative to the median.
pub fn relative_half_range(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(values);
    if middle > 0.0 { (greatest - least) / 2.0 / middle } else { 0.0 }
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
