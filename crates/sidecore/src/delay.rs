//! A queue whose requests can be served one after the other alone, each a fixed time after the one
//! before: stands for a device that takes as long for each.
//!
//! Guarantees: a request is ready no earlier than `ticks` after it was first seen, and after the
//! one before it was; at most one gets ready at a look, however late that comes, so that nothing
//! makes bursts of them. Whatever the counts and times are, it doesn't panic; time that goes
//! backwards counts as none. It can't know when a request came, only when it was seen.

use crate::turn::elapsed;

/// The device before one queue.
#[derive(Clone, Debug)]
pub struct Delay {
    ticks: u64,
    /// Requests that may be served.
    ready: u16,
    /// When it began with the next one, if there is one.
    since: Option<u64>,
}

impl Delay {
    /// So many ticks for each request.
    pub const fn new(ticks: u64) -> Self {
        Delay { ticks, ready: 0, since: None }
    }

    /// As at first: it is before another queue.
    pub const fn reset(&mut self) {
        (self.ready, self.since) = (0, None);
    }

    /// How many are ready, of `waiting` in the queue.
    pub fn ready(&mut self, waiting: u16, now: u64) -> u16 {
        // Fewer than there were: it is another queue.
        self.ready = self.ready.min(waiting);
        match self.since {
            _ if waiting == self.ready => self.since = None,
            None => self.since = Some(now),
            Some(since) if elapsed(since, now) >= self.ticks => {
                self.ready += 1;
                self.since = (waiting > self.ready).then_some(now);
            }
            Some(_) => {}
        }
        self.ready
    }

    /// One that was ready is served.
    pub const fn served(&mut self) {
        self.ready = self.ready.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_request_takes_its_time() {
        let mut delay = Delay::new(10);
        assert_eq!(delay.ready(2, 100), 0);
        assert_eq!(delay.ready(3, 109), 0);
        assert_eq!(delay.ready(3, 110), 1);
        assert_eq!(delay.ready(3, 119), 1);
        // However late: one.
        assert_eq!(delay.ready(3, 150), 2);
        delay.served();
        assert_eq!(delay.ready(2, 159), 1);
        assert_eq!(delay.ready(2, 160), 2);
        // One that comes when there is none takes its time from then on.
        assert_eq!(delay.ready(2, 200), 2);
        assert_eq!(delay.ready(3, 201), 2);
        assert_eq!(delay.ready(3, 210), 2);
        assert_eq!(delay.ready(3, 211), 3);
        let mut again = delay.clone();
        again.reset();
        assert_eq!((again.ready(3, 220), again.ready(3, 230)), (0, 1));
        // Another queue, and time that goes backwards.
        assert_eq!(delay.ready(1, 300), 1);
        assert_eq!(delay.ready(2, 300), 1);
        assert_eq!(delay.ready(2, 10), 1);
    }

    proptest! {
        #[test]
        fn anything_goes(
            steps in prop::collection::vec((any::<u16>(), any::<u64>(), any::<bool>()), 0..200),
        ) {
            let mut delay = Delay::new(7);
            let mut before = 0;
            for (waiting, now, served) in steps {
                let ready = delay.ready(waiting, now);
                prop_assert!(ready <= waiting && ready <= before + 1);
                before = ready;
                if served {
                    delay.served();
                    before = ready.saturating_sub(1);
                }
            }
        }
    }
}
