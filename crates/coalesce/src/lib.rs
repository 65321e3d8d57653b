//! Which completions of a queue or device are told to the guest by an interrupt: vIC (Ahmad, Gulati
//! and Mashtizadeh, "vIC: Interrupt Coalescing for Virtual Machine Storage Device IO", USENIX ATC
//! 2011), with the gap closed that its listings leave.
//!
//! Of `skip_up` completions the first `count_up - 1` and the last are delivered. The ratio follows
//! from the commands in flight, once an epoch; it is 1/1 while few commands are in flight or few
//! are completed a second.
//!
//! Guarantees:
//! - A completion is withheld for [`Settings::longest`] at most, if the caller delivers whenever
//!   [`Coalescer::due`] says so; what the caller is late by comes on top. The paper claims this
//!   bound ("strictly bound by the 1/iopsThreshold"), but its listings don't keep it: with R = 1/8
//!   at 2,000 I/Os a second they withhold for 3.5 ms, and if I/O stops within an epoch, for ever.
//! - With fewer than [`Settings::cif_threshold`] commands in flight nothing more is withheld.
//! - As long as nothing is due, the verdicts of [`Map::Paper`] are those of the paper's listings.
//! - Nothing that the guest, time or the settings do makes it panic or overflow. Time that goes
//!   backwards counts as none.
//!
//! It decides about interrupts alone: completions are published in the used ring whatever it says.
//! It knows no clock and no hardware: times are TSC ticks that the caller reads.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod adapt;
pub mod throttle;

use adapt::Adaptation;

/// The parameters of the paper (sections 3.2 and 3.3), in ticks where they are times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ticks of the clock in a second.
    pub ticks_per_second: u64,
    /// With fewer completions a second nothing is withheld (iopsThreshold).
    pub iops_threshold: u64,
    /// With fewer commands in flight nothing is withheld (cifThreshold, T). 0 counts as 1.
    pub cif_threshold: u16,
    /// Ticks after which the ratio is computed again (epochPeriod).
    pub epoch: u64,
    /// Ticks since the last interrupt within which an IPI may be left out (section 3.3).
    pub ipi_deferral: u64,
    /// How the ratio follows from the commands in flight.
    pub map: Map,
}

/// The map from commands in flight to a ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Map {
    /// As the paper prints it.
    #[default]
    Paper,
    /// Interrupts are spread further where that costs the load no completions.
    Adapted,
}

impl Settings {
    /// The paper's: 2,000 I/Os a second, T = 4, 200 ms, 100 µs.
    pub const fn paper(ticks_per_second: u64) -> Self {
        Settings {
            ticks_per_second,
            iops_threshold: 2_000,
            cif_threshold: 4,
            epoch: ticks_per_second / 5,
            ipi_deferral: ticks_per_second / 10_000,
            map: Map::Paper,
        }
    }

    /// Nothing is withheld: no virtqueue has as many commands in flight as the threshold asks for.
    pub const fn all_told(ticks_per_second: u64) -> Self {
        Settings { cif_threshold: u16::MAX, ..Self::paper(ticks_per_second) }
    }

    /// The ticks for which a completion is withheld at most: 1/iopsThreshold, or a second if the
    /// threshold is 0.
    pub const fn longest(&self) -> u64 {
        let ticks = match self.iops_threshold {
            0 => self.ticks_per_second,
            threshold => self.ticks_per_second / threshold,
        };
        if ticks > FURTHEST { FURTHEST } else { ticks }
    }
}

/// An instant is before another one if the other is at most so far ahead of it: of two instants
/// that are half a turn of the counter apart, neither is before the other.
const FURTHEST: u64 = i64::MAX as u64;

/// What becomes of a completion's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest is told now, of this completion and of all that were withheld.
    Deliver,
    /// It is told with a later one, or when [`Coalescer::due`] says so.
    Withhold,
}

/// R: of `skip_up` completions `count_up` are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The numerator, at least 1.
    pub count_up: u32,
    /// The denominator, at least `count_up`.
    pub skip_up: u32,
}

impl Ratio {
    /// Nothing is withheld.
    pub const ALL: Ratio = Ratio { count_up: 1, skip_up: 1 };

    /// Algorithm 1 (IntrCoalesceRecalc) where the rate is high enough. As in the paper it has no
    /// lower end; the paper's 1/16 is what 128 commands in flight give.
    pub const fn of(in_flight: u32, threshold: u32) -> Self {
        let (count_up, skip_up) = match in_flight / threshold {
            0 => (1, 1),
            1 => (4, 5),
            2 => (3, 4),
            3 => (2, 3),
            _ => (1, in_flight / (2 * threshold)),
        };
        Ratio { count_up, skip_up }
    }

    /// As far as the adapted map may go. `within`: completions in the bound of the delay, at the
    /// rate that there is.
    pub fn furthest(in_flight: u32, threshold: u32, within: u64) -> Self {
        adapt::ratio(in_flight, threshold, adapt::MOST, within)
    }
}

/// The state of one queue, or of a device whose queues share an interrupt.
#[derive(Clone, Debug)]
pub struct Coalescer {
    settings: Settings,
    /// T, at least 1.
    threshold: u32,
    longest: u64,
    ratio: Ratio,
    counter: u32,
    epoch_start: u64,
    /// Completions since `epoch_start`.
    completions: u64,
    /// When what is withheld has to be delivered.
    deadline: Option<u64>,
    last_interrupt: Option<u64>,
    adaptation: Adaptation,
}

impl Coalescer {
    /// For a device that was reset. Everything is delivered until the first epoch is over.
    pub const fn new(settings: Settings, now: u64) -> Self {
        let threshold = match settings.cif_threshold {
            0 => 1,
            threshold => threshold as u32,
        };
        Coalescer {
            settings,
            threshold,
            longest: settings.longest(),
            ratio: Ratio::ALL,
            counter: 1,
            epoch_start: now,
            completions: 0,
            deadline: None,
            last_interrupt: None,
            adaptation: Adaptation::new(),
        }
    }

    /// A command was completed. `in_flight` (CIF): those that the guest has made available and that
    /// aren't completed, without this one; they wait in the ring or are in the back end.
    ///
    /// After [`Verdict::Deliver`] the caller says what it did by [`Coalescer::delivered`],
    /// [`Coalescer::settled`] or [`Coalescer::defer_ipi`]. If several completions are published
    /// together, one `Deliver` among their verdicts is enough, and one interrupt.
    pub fn completed(&mut self, now: u64, in_flight: u32) -> Verdict {
        self.completions = self.completions.saturating_add(1);
        let ticks = elapsed(self.epoch_start, now);
        if ticks > self.settings.epoch {
            self.recalculate(ticks, in_flight);
            // The paper's listing forgets this.
            (self.epoch_start, self.completions) = (now, 0);
        }
        let verdict = self.count(in_flight);
        if verdict == Verdict::Withhold {
            if self.due(now) {
                self.counter = 1;
                return Verdict::Deliver;
            }
            self.hold_until(now.wrapping_add(self.longest));
        }
        verdict
    }

    /// So many commands were completed at this instant, as by [`Coalescer::completed`] one by one,
    /// with as many in flight. Gives whether one of them is delivered, and how many are withheld.
    #[inline]
    pub fn completed_together(&mut self, count: u32, now: u64, in_flight: u32) -> (bool, u32) {
        // As where requests come one by one. Time that went backwards is a long one here.
        let ticks = now.wrapping_sub(self.epoch_start);
        if count > 0 && in_flight < self.threshold && ticks <= self.settings.epoch {
            self.completions = self.completions.saturating_add(count.into());
            self.counter = 1;
            return (true, 0);
        }
        self.completed_together_by_ratio(count, now, in_flight)
    }

    #[inline(never)]
    fn completed_together_by_ratio(&mut self, count: u32, now: u64, in_flight: u32) -> (bool, u32) {
        let Some(mut left) = count.checked_sub(1) else { return (false, 0) };
        let mut deliver = self.completed(now, in_flight) == Verdict::Deliver;
        let mut withheld = u32::from(!deliver);
        // After the first it is the same epoch.
        if left > 0 && (in_flight < self.threshold || self.ratio == Ratio::ALL) {
            self.completions = self.completions.saturating_add(left.into());
            self.counter = 1;
            return (true, withheld);
        }
        // What is withheld may be due at once: then it is one by one.
        while left > 0 && (self.due(now) || self.longest == 0) {
            match self.completed(now, in_flight) {
                Verdict::Deliver => deliver = true,
                Verdict::Withhold => withheld += 1,
            }
            left -= 1;
        }
        self.completions = self.completions.saturating_add(left.into());
        let Ratio { count_up, skip_up } = self.ratio;
        while left > 0 {
            let run = if self.counter >= skip_up {
                self.counter = 1;
                deliver = true;
                1
            } else if self.counter < count_up {
                let run = left.min(count_up - self.counter);
                self.counter += run;
                deliver = true;
                run
            } else {
                let run = left.min(skip_up - self.counter);
                self.counter += run;
                withheld += run;
                self.hold_until(now.wrapping_add(self.longest));
                run
            };
            left -= run;
        }
        (deliver, withheld)
    }

    /// By when what is withheld must be delivered; none if nothing is withheld.
    pub const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Must what is withheld be delivered now?
    pub const fn due(&self, now: u64) -> bool {
        match self.deadline {
            Some(deadline) => !is_before(now, deadline),
            None => false,
        }
    }

    /// May the interrupt that was to be sent now be left out, since the guest had one less than
    /// [`Settings::ipi_deferral`] ago? If so it is withheld until [`Coalescer::deadline`] at most.
    ///
    /// It pays where the guest's core comes to see by itself what is pending, as the paper's does.
    /// The paper leaves it at that; here the deadline holds if the core doesn't come.
    pub fn defer_ipi(&mut self, now: u64) -> bool {
        let Some(last) = self.last_interrupt else {
            return false;
        };
        let passed = elapsed(last, now);
        if self.due(now) || passed >= self.settings.ipi_deferral {
            return false;
        }
        let rest = self.settings.ipi_deferral - passed;
        self.hold_until(now.wrapping_add(rest.min(self.longest)));
        true
    }

    /// An interrupt was sent: nothing is withheld any more.
    pub const fn delivered(&mut self, now: u64) {
        if self.due(now) {
            // It stands for the one that the ratio would have sent.
            self.counter = 1;
        }
        self.last_interrupt = Some(now);
        self.settled();
    }

    /// Nothing is withheld any more, though no interrupt was sent: the driver wants none, or the
    /// guest saw by itself what was published.
    pub const fn settled(&mut self) {
        self.deadline = None;
    }

    /// The ratio of this epoch.
    pub const fn ratio(&self) -> Ratio {
        self.ratio
    }

    /// Algorithm 1, at the end of an epoch that took these ticks.
    fn recalculate(&mut self, ticks: u64, in_flight: u32) {
        let settings = &self.settings;
        // currIOPS = completions ÷ ticks × ticks per second, without the division.
        let have = u128::from(self.completions) * u128::from(settings.ticks_per_second);
        let need = u128::from(settings.iops_threshold) * u128::from(ticks);
        let busy = have >= need;
        self.ratio = match self.settings.map {
            _ if !busy => Ratio::ALL,
            Map::Paper => Ratio::of(in_flight, self.threshold),
            Map::Adapted => self.adapted(ticks, in_flight),
        };
        if !busy {
            self.adaptation.forget();
        }
    }

    /// The ratio after such an epoch by the map that is tried out.
    fn adapted(&mut self, ticks: u64, in_flight: u32) -> Ratio {
        // Not 0: an epoch without completions isn't busy, or has no threshold and some ticks.
        let ticks = u128::from(ticks.max(1));
        let of = |per: u64| {
            let count = u128::from(self.completions) * u128::from(per) / ticks;
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        let (rate, within) = (of(self.settings.ticks_per_second), of(self.longest));
        let stretch = self.adaptation.epoch(rate);
        adapt::ratio(in_flight, self.threshold, stretch, within)
    }

    /// Algorithm 2 behind its look at the epoch.
    const fn count(&mut self, in_flight: u32) -> Verdict {
        if in_flight < self.threshold {
            self.counter = 1;
        } else if self.counter < self.ratio.count_up {
            self.counter += 1;
        } else if self.counter >= self.ratio.skip_up {
            self.counter = 1;
        } else {
            self.counter += 1;
            return Verdict::Withhold;
        }
        Verdict::Deliver
    }

    /// The deadline is this instant, unless it is an earlier one.
    const fn hold_until(&mut self, instant: u64) {
        match self.deadline {
            Some(deadline) if is_before(deadline, instant) => {}
            _ => self.deadline = Some(instant),
        }
    }
}

/// Ticks from `then` to `now`; none if time went backwards.
const fn elapsed(then: u64, now: u64) -> u64 {
    if is_before(now, then) { 0 } else { now.wrapping_sub(then) }
}

const fn is_before(this: u64, that: u64) -> bool {
    that.wrapping_sub(this).wrapping_sub(1) < FURTHEST
}

#[cfg(test)]
mod tests;
