//! Since when what is served in a turn has been there, as far as it was seen.
//!
//! Guarantees: nothing that was seen waiting at the end of a turn counts from later than that,
//! however many turns it takes until it is served. All that one turn serves counts from the oldest
//! of it: a latency is told at most, not at least.

use blk::Token;
use std::collections::VecDeque;

/// Of one ring.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Requests, or frames, that were taken.
    taken: u64,
    /// How many of all had come at a time: both grow, and the first is beyond `taken`. So there are
    /// no more than a ring has elements.
    seen: VecDeque<(u64, u64)>,
}

impl Arrivals {
    /// A turn begins: since when what it serves has been there. It was seen waiting at `seen`.
    #[inline]
    pub fn since(&self, seen: u64) -> u64 {
        self.seen.front().map_or(seen, |(_, at)| seen.min(*at))
    }

    /// A turn ended that took so many, and left so many.
    #[inline]
    pub fn turned(&mut self, taken: u32, left: u16, now: u64) {
        self.taken += u64::from(taken);
        while self.seen.front().is_some_and(|(count, _)| *count <= self.taken) {
            self.seen.pop_front();
        }
        let all = self.taken + u64::from(left);
        if left > 0 && self.seen.back().is_none_or(|(count, _)| *count < all) {
            self.seen.push_back((all, now));
        }
    }
}

/// When requests were seen waiting that a back end has.
pub struct Begun(Box<[u64]>);

impl Begun {
    /// For a server with so many places.
    pub fn new(places: usize) -> Begun {
        Begun(vec![0; places].into())
    }

    /// It took one of them.
    #[inline]
    pub fn note(&mut self, token: Token, since: u64) {
        if let Some(begun) = self.0.get_mut(usize::from(token.slot())) {
            *begun = since;
        }
    }

    /// How long that took.
    #[inline]
    pub fn took(&self, token: Token, now: u64) -> u64 {
        let begun = self.0.get(usize::from(token.slot())).copied();
        now.saturating_sub(begun.unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_several_turns_counts_from_when_it_was_seen() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.since(5), 5);
        // Three are left at 10; one is taken each time, and one comes.
        arrivals.turned(1, 3, 10);
        assert_eq!(arrivals.since(19), 10);
        arrivals.turned(1, 3, 20);
        arrivals.turned(1, 3, 30);
        assert_eq!(arrivals.since(39), 10, "the third of them");
        arrivals.turned(1, 3, 40);
        assert_eq!(arrivals.since(49), 20);
        arrivals.turned(3, 0, 50);
        assert_eq!((arrivals.since(60), arrivals.seen.len()), (60, 0));
    }

    #[test]
    fn there_is_never_more_than_a_ring_has() {
        let mut arrivals = Arrivals::default();
        for turn in 0..10_000 {
            arrivals.turned(turn % 2, 256, turn.into());
            assert!(arrivals.seen.len() <= 256);
        }
    }
}
