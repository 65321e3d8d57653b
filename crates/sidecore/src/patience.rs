//! For how long a queue without requests is polled on, if that follows how soon they come.
//!
//! As KVM decides it of a vCPU that halts (`halt_poll_ns` with its defaults: it grows by two and
//! shrinks to nothing). A kick that came within the longest time says that to poll on would have
//! seen its request, and later ones are polled for longer. A kick that came after that says that
//! to poll was in vain: the next ones are slept for at once. So who asks seldom costs no polling,
//! and a guest that needs the core to ask at all has it.
//!
//! Where the system took the core away while it polled, others want it: a thread that polls uses
//! its share up, and waits for milliseconds when there is work. For a while nothing is polled that
//! has nothing, and for twice as long where that comes again soon.
//!
//! Guarantees: it is the longest time at most, whatever the kicks and the clock do; and a second at
//! most in which nothing is polled for, by one time that the core was taken.

use crate::turn::{elapsed, is_due};

/// What it grows to first, as a part of the longest time.
const FIRST: u64 = 16;

/// In ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(u64);

impl Patience {
    /// What a queue begins with, of which nothing is known.
    pub const fn new(longest: u64) -> Patience {
        Patience(longest)
    }

    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// A request came `after` the queue last had something, and it wasn't polled any more.
    pub fn missed(&mut self, after: u64, longest: u64) {
        let more = self.0.saturating_mul(2).max(longest / FIRST);
        self.0 = if after <= longest { more.min(longest) } else { 0 };
    }
}

/// For how long nothing is polled that has nothing, at first and at most, in parts of a second.
const SHORTEST: u64 = 10;
const LONGEST: u64 = 1;

/// Whether others want the core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yielding {
    /// Until when, and for how long that was. No time: not yet.
    until: u64,
    length: u64,
}

impl Yielding {
    /// The core was taken away while it polled, until `now`.
    pub fn preempted(&mut self, now: u64, ticks_per_second: u64) {
        let [shortest, longest] = [SHORTEST, LONGEST].map(|part| ticks_per_second / part);
        let is_soon = elapsed(self.until, now) < self.length.saturating_mul(2);
        let length = if is_soon { self.length.saturating_mul(2) } else { 0 };
        self.length = length.clamp(shortest, longest);
        self.until = now.wrapping_add(self.length);
    }

    /// Is nothing polled for now?
    pub const fn is_on(&self, now: u64) -> bool {
        self.length != 0 && !is_due(self.until, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_grows_by_kicks_that_come_soon_and_ends_by_one_that_comes_late() {
        let mut patience = Patience::new(160);
        let mut missed = |after| {
            patience.missed(after, 160);
            patience.ticks()
        };
        assert_eq!([161, 160, 0, 9, 160, 1, 161].map(&mut missed), [0, 10, 20, 40, 80, 160, 0]);
        assert_eq!([u64::MAX, 3].map(missed), [0, 10]);
    }

    #[test]
    fn a_core_that_others_want_is_left_to_them_for_longer_each_time() {
        let mut yielding = Yielding::default();
        assert!(!yielding.is_on(0) && !yielding.is_on(u64::MAX));
        let mut now = 5_000;
        for length in [100, 200, 400, 800, 1000, 1000] {
            yielding.preempted(now, 1000);
            assert!(yielding.is_on(now) && yielding.is_on(now + length - 1));
            now += length;
            assert!(!yielding.is_on(now));
            // In less than twice the time.
            now += 2 * length - 1;
        }
        yielding.preempted(now + 1 + 1000, 1000);
        assert!(yielding.is_on(now + 1100) && !yielding.is_on(now + 1101));
    }

    proptest! {
        #[test]
        fn it_is_never_longer_than_may_be(kicks: Vec<u64>, longest: u64) {
            let mut patience = Patience::new(longest);
            for after in kicks {
                patience.missed(after, longest);
                prop_assert!(patience.ticks() <= longest);
            }
        }
    }
}
