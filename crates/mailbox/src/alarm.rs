//! Alarms: core 0 takes a core back at a given time, to the tick of its own timer.
//!
//! A core whose timer is its guest's has none of its own. It sets an alarm for when it has
//! something to do for others, and core 0 sets its timer for the first of all alarms.
//!
//! Guarantees: an alarm that was set is seen before core 0 sleeps beyond it, or [`Alarm::set`] says
//! that core 0 is to be woken. Both store, pass a fence, and look at what the other stored: the
//! core at the time that core 0 is set for, core 0 at the alarms once more. It rings once each time
//! that it is set, and again after a while if it isn't set anew: the NMI may be lost.

use crate::NEVER;
use sync::{AtomicU64, Ordering, fence};

/// The alarm of a core.
#[derive(Debug)]
pub struct Alarm(AtomicU64);

/// The timer of core 0.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Alarm {
    /// It isn't set.
    pub fn new() -> Self {
        Alarm(AtomicU64::new(NEVER))
    }

    /// On the core, before each entry: it is to ring at this time, or not at all ([`NEVER`]). True:
    /// core 0 has to be woken for it.
    #[inline]
    #[must_use]
    pub fn set(&self, clock: &Clock, at: u64) -> bool {
        // If it rings just now, the NMI makes another entry.
        if self.0.load(Ordering::Relaxed) == at {
            return false;
        }
        self.0.store(at, Ordering::Release);
        if at == NEVER {
            return false;
        }
        fence(Ordering::SeqCst);
        at < clock.0.load(Ordering::Relaxed)
    }

    /// The time that it is set for.
    pub fn at(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Core 0: does it ring? If the core doesn't set it anew, it does so again after so many ticks.
    #[must_use]
    pub fn rings(&self, now: u64, again: u64) -> bool {
        let at = self.at();
        let later = now.saturating_add(again);
        at <= now && self.0.compare_exchange(at, later, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Clock {
    /// Of a core 0 that looks at no alarm yet.
    pub fn new() -> Self {
        Clock(AtomicU64::new(0))
    }

    /// Core 0: the time to set its timer for, which is what `first` gives: the first of all alarms
    /// and of what else it has to do. Each turn takes an alarm that was set for earlier meanwhile.
    pub fn set(&self, first: impl Fn() -> u64) -> u64 {
        let mut at = first();
        loop {
            self.0.store(at, Ordering::Release);
            fence(Ordering::SeqCst);
            let now = first();
            if now >= at {
                return at;
            }
            at = now;
        }
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm::new()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn it_rings_once_each_time_that_it_is_set() {
        let (alarm, clock) = (Alarm::new(), Clock::new());
        assert_eq!((alarm.at(), alarm.rings(u64::MAX - 1, 10)), (NEVER, false));
        assert!(!alarm.set(&clock, 100), "core 0 looks at it first");
        assert!(!alarm.rings(99, 10) && alarm.rings(100, 10));
        assert!(!alarm.rings(109, 10), "it has rung");
        assert!(alarm.rings(110, 10), "and does so again, as nobody has come");
        assert!(!alarm.set(&clock, 100), "the same anew, as the NMI was early");
        assert!(alarm.rings(111, 10));
        assert!(!alarm.set(&clock, NEVER) && !alarm.rings(u64::MAX - 1, 10));
    }

    #[test]
    fn core_0_is_woken_for_one_that_is_earlier_than_it_is_set_for() {
        let (alarm, clock) = (Alarm::new(), Clock::new());
        assert_eq!(clock.set(|| alarm.at().min(50)), 50);
        assert!(alarm.set(&clock, 49) && !alarm.set(&clock, 49), "once");
        assert!(!alarm.set(&clock, 50) && !alarm.set(&clock, NEVER));
        assert!(!alarm.set(&clock, 40) || clock.set(|| alarm.at().min(50)) == 40);
    }
}
