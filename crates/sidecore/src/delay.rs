//! A queue whose requests wait for a fixed time before they can be served: stands for a device that
//! takes as long for each, however many are under way.
//!
//! Guarantees: a request is ready when it was first seen `ticks` ago, and not before; requests get
//! ready in the order in which they were seen. Whatever the counts and times are, it doesn't panic
//! and is bounded; time that goes backwards counts as none. It can't know when a request came, only
//! when it was seen. A request that is served in pieces waits before each.

use crate::elapsed;
use alloc::boxed::Box;

/// The requests of one queue, by when they were first seen.
#[derive(Clone, Debug)]
pub struct Delay {
    ticks: u64,
    /// Those that may be served.
    ready: u16,
    /// Those that may not, first seen at these times: a ring that begins at `first`.
    young: Box<[(u16, u64)]>,
    first: usize,
    used: usize,
}

impl Delay {
    /// Of so many ticks, for a queue of at most `size` requests. Nothing is allocated after this.
    pub fn new(ticks: u64, size: usize) -> Self {
        let young = (0..size.max(1)).map(|_| (0, 0)).collect();
        Delay { ticks, ready: 0, young, first: 0, used: 0 }
    }

    /// Those that are ready, of `waiting` in the queue. Fewer than were seen: it is another queue.
    pub fn ready(&mut self, waiting: u16, now: u64) -> u16 {
        let young = (0..self.used).map(|i| u64::from(self.young[self.place(i)].0)).sum::<u64>();
        match u64::from(waiting).checked_sub(u64::from(self.ready) + young) {
            None => {
                (self.ready, self.used) = (0, 0);
                self.see(waiting, now);
            }
            Some(more) => self.see(more as u16, now),
        }
        while self.used > 0 {
            let (count, since) = self.young[self.first];
            if elapsed(since, now) < self.ticks {
                break;
            }
            self.ready = self.ready.saturating_add(count);
            (self.first, self.used) = (self.place(1), self.used - 1);
        }
        self.ready
    }

    /// One that was ready is served.
    pub fn served(&mut self) {
        self.ready = self.ready.saturating_sub(1);
    }

    fn see(&mut self, count: u16, now: u64) {
        if count == 0 {
            return;
        }
        let place = self.place(self.used);
        if self.used < self.young.len() {
            self.young[place] = (count, now);
            self.used += 1;
        } else {
            // More than the queue has: all that came since wait with the youngest.
            let last = self.place(self.used - 1);
            self.young[last] = (self.young[last].0.saturating_add(count), now);
        }
    }

    fn place(&self, index: usize) -> usize {
        (self.first + index) % self.young.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_request_waits_for_its_time() {
        let mut delay = Delay::new(10, 4);
        assert_eq!(delay.ready(2, 100), 0);
        assert_eq!(delay.ready(3, 105), 0);
        assert_eq!(delay.ready(3, 110), 2);
        delay.served();
        assert_eq!(delay.ready(2, 114), 1);
        assert_eq!(delay.ready(2, 115), 2);
        // Another queue: nothing of it was seen before.
        assert_eq!(delay.ready(1, 116), 0);
        assert_eq!(delay.ready(1, 126), 1);
        // Time that goes backwards is none.
        assert_eq!(delay.ready(2, 50), 1);
        assert_eq!(delay.ready(2, 40), 1);
    }

    proptest! {
        #[test]
        fn anything_goes(steps in prop::collection::vec((any::<u16>(), any::<u64>(), any::<bool>()), 0..200), size in 0usize..5) {
            let mut delay = Delay::new(7, size);
            for (waiting, now, served) in steps {
                let ready = delay.ready(waiting, now);
                prop_assert!(ready <= waiting);
                if served {
                    delay.served();
                }
            }
        }

        /// In a steady stream each is ready exactly a delay after it came.
        #[test]
        fn as_many_are_ready_as_came_a_delay_ago(came in prop::collection::vec(0u16..3, 1..100)) {
            let mut delay = Delay::new(5, 256);
            let mut sum = 0;
            for (now, more) in came.iter().enumerate() {
                sum += more;
                let old: u16 = came.iter().take((now + 1).saturating_sub(5)).sum();
                prop_assert_eq!(delay.ready(sum, now as u64), old);
            }
        }
    }
}
