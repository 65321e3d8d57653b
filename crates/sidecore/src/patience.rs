//! For how long a queue without requests is polled on, if that follows how soon they come.
//!
//! As KVM decides it of a vCPU that halts (`halt_poll_ns` with its defaults: it grows by two and
//! shrinks to nothing). A kick that came within the longest time says that to poll on would have
//! seen its request, and later ones are polled for longer. A kick that came after that says that
//! to poll was in vain: the next ones are slept for at once. So who asks seldom costs no polling,
//! and a guest that needs the core to ask at all has it.
//!
//! Guarantees: it is the longest time at most, whatever the kicks and the clock do.

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
