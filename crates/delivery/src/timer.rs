//! The timer of a local APIC (SDM vol. 3, 11.5.4) for a vCPU that shares its core: the guest's
//! registers as they would be at a TSC reading, and the reading at which it expires next.
//!
//! The counter starts at the initial count and goes down at the timer's rate over the divider. A
//! one-shot timer stops at 0; a periodic one starts again from the initial count, in phase however
//! late it is looked at. A masked one counts on, and what expires then is lost. An expiry that was
//! due when the guest wrote a register is still reported, as hardware would have it pending.
//! TSC-deadline mode isn't offered.
//!
//! Guarantees: no drift, as nothing is rounded but what is shown; a period is no shorter than
//! the caller says. Time that goes backwards is taken for standing still.

use crate::{Taken, TimerSetup};

/// The timer of one vCPU.
#[derive(Clone, Debug)]
pub struct VirtualTimer {
    tsc_hz: u64,
    timer_hz: u64,
    shortest_period: u64,
    /// The divider's binary logarithm.
    shift: u8,
    periodic: bool,
    masked: bool,
    initial: u32,
    /// The count at `origin`, from which everything is reckoned; 0: stopped.
    first: u32,
    /// A TSC reading.
    origin: u64,
    /// Expiries since `origin` that are reported, or lost to the mask.
    seen: u128,
    /// The TSC reading of one that was due when a register was written.
    owed: Option<u64>,
    /// What `next` gives: it is asked at every exit, and changes with few.
    next: Option<u64>,
}

impl VirtualTimer {
    /// Stopped, as after reset. `timer_hz`: counts a second at divider 1; `shortest_period`: TSC
    /// ticks that a period is made to have at least, if the largest count has as many.
    pub const fn new(tsc_hz: u64, timer_hz: u64, shortest_period: u64) -> Self {
        VirtualTimer {
            tsc_hz: if tsc_hz == 0 { 1 } else { tsc_hz },
            timer_hz: if timer_hz == 0 { 1 } else { timer_hz },
            shortest_period,
            shift: 1,
            periodic: false,
            masked: true,
            initial: 0,
            first: 0,
            origin: 0,
            seen: 0,
            owed: None,
            next: None,
        }
    }

    /// The guest wrote one of its registers.
    pub fn set(&mut self, setup: TimerSetup, now: u64) {
        let due = self.deadline();
        if self.pass(now) || self.owed.is_some() {
            self.owed = due;
        }
        let shift = shift_of(setup.divide);
        if let Some(initial) = setup.initial {
            self.initial = initial;
            (self.shift, self.periodic) = (shift, setup.periodic);
            self.start(if initial == 0 { 0 } else { self.reload() }, now);
        } else if (shift, setup.periodic) != (self.shift, self.periodic) {
            let counted = self.counted(now);
            let left = self.count(now);
            let when = if shift == self.shift { self.when(counted) } else { now };
            (self.shift, self.periodic) = (shift, setup.periodic);
            self.start(left, when);
        }
        self.masked = setup.masked;
        self.next = self.next();
    }

    /// The current count register.
    pub fn count(&self, now: u64) -> u32 {
        let counted = self.counted(now);
        let first = u128::from(self.first);
        if counted < first {
            (first - counted) as u32
        } else if self.periodic && self.first != 0 {
            let period = u128::from(self.reload());
            (period - (counted - first) % period) as u32
        } else {
            0
        }
    }

    /// The TSC reading of the next expiry that is to be reported, which may be past; the last
    /// reading of all if it lies beyond that. None if the timer doesn't run or is masked.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        self.owed.or(self.next)
    }

    /// Did it expire at or before `now`, unreported so far? Once, however many periods passed.
    #[inline]
    pub fn expired(&mut self, now: u64) -> bool {
        // Asked before each entry, and most often nothing is due.
        if self.owed.is_none() && self.next.is_none_or(|at| now < at) {
            return false;
        }
        self.expire(now)
    }

    fn expire(&mut self, now: u64) -> bool {
        let owed = self.owed.take().is_some();
        // A masked timer is brought up to date when a register is written.
        if self.next.is_none_or(|at| now < at) {
            return owed;
        }
        let fresh = self.pass(now);
        self.next = self.next();
        owed || fresh
    }

    /// Expiries up to `now` are seen: was there one to report?
    fn pass(&mut self, now: u64) -> bool {
        let expiries = self.expiries(now);
        let fresh = expiries > self.seen;
        self.seen = self.seen.max(expiries);
        fresh && !self.masked
    }

    /// Hands the running count over to the core's own timer, which goes on from there: the count to
    /// start it from, 0 if it doesn't run. From here on this one is stopped. `None`: it isn't to be
    /// had, since it is periodic (its first period would be another) or masked, or an expiry isn't
    /// reported yet.
    pub fn lend(&mut self, now: u64) -> Option<u32> {
        let due = self.owed.is_some() || self.next.is_some_and(|at| at <= now);
        if self.periodic || self.masked || due {
            return None;
        }
        let rest = self.count(now);
        self.start(0, now);
        self.next = None;
        Some(rest)
    }

    /// Goes on from what the core's own timer had left. A count that is shown stands for a last one
    /// that has begun: each change of hands makes an expiry later by less than a count, and never
    /// earlier.
    pub fn give_back(&mut self, taken: Taken, now: u64) {
        if let Some(initial) = taken.written {
            self.initial = initial;
        }
        self.start(taken.rest, now);
        self.owed = taken.owed.then_some(now);
        self.next = self.next();
    }

    /// Stopped, as after reset.
    pub fn reset(&mut self) {
        *self = VirtualTimer::new(self.tsc_hz, self.timer_hz, self.shortest_period);
    }

    fn start(&mut self, first: u32, now: u64) {
        (self.first, self.origin, self.seen) = (first, now, 0);
    }

    /// What a periodic timer starts from, never 0: no period is shorter than the shortest.
    fn reload(&self) -> u32 {
        let least = if self.periodic { self.counts(self.shortest_period, true) } else { 0 };
        (u128::from(self.initial).max(least).max(1)).min(u128::from(u32::MAX)) as u32
    }

    fn next(&self) -> Option<u64> {
        if self.first == 0 || self.masked || !self.periodic && self.seen != 0 {
            return None;
        }
        let further = self.seen.saturating_mul(u128::from(self.reload()));
        Some(self.when(further.saturating_add(u128::from(self.first))))
    }

    /// Expiries from `origin` to `now`.
    fn expiries(&self, now: u64) -> u128 {
        match self.counted(now).checked_sub(u128::from(self.first)) {
            Some(further) if self.first != 0 => {
                1 + if self.periodic { further / u128::from(self.reload()) } else { 0 }
            }
            _ => 0,
        }
    }

    /// How often the counter went down from `origin` to `now`.
    fn counted(&self, now: u64) -> u128 {
        self.counts(now.saturating_sub(self.origin), false)
    }

    /// Counts in so many TSC ticks.
    fn counts(&self, ticks: u64, up: bool) -> u128 {
        // Both fit nearly always, and a division of 128 bits is many instructions.
        match (ticks.checked_mul(self.timer_hz), u64::try_from(self.ticks_times_hz())) {
            (Some(product), Ok(per)) if up => product.div_ceil(per).into(),
            (Some(product), Ok(per)) => (product / per).into(),
            _ => {
                let product = u128::from(ticks) * u128::from(self.timer_hz);
                let per = self.ticks_times_hz();
                if up { product.div_ceil(per) } else { product / per }
            }
        }
    }

    /// The first TSC reading at which the counter went down so often since `origin`.
    fn when(&self, counts: u128) -> u64 {
        let product = counts.saturating_mul(self.ticks_times_hz());
        let ticks = match u64::try_from(product) {
            Ok(product) => product.div_ceil(self.timer_hz),
            Err(_) => {
                let ticks = product.div_ceil(self.timer_hz.into());
                u64::try_from(ticks).unwrap_or(u64::MAX)
            }
        };
        self.origin.saturating_add(ticks)
    }

    /// TSC ticks of a count, times `timer_hz`.
    fn ticks_times_hz(&self) -> u128 {
        u128::from(self.tsc_hz) << self.shift
    }
}

/// The divide configuration register's bits 0, 1 and 3: 000 is 2, 110 is 128, 111 is 1.
const fn shift_of(divide: u32) -> u8 {
    let code = divide & 3 | divide >> 1 & 4;
    (code as u8 + 1) & 7
}

#[cfg(test)]
#[path = "timer_tests.rs"]
mod tests;
