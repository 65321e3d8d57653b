//! Whether a queue that waits has waited for so long that the turn of another ends: ELVIS' two
//! limits of being stuck, after each piece.

use super::{Schedule, key_of};
use crate::queue::State;
use crate::settings::Settings;
use crate::turn::{Look, elapsed};

impl Schedule {
    /// Looks at so many other queues than the one that was `served`.
    #[inline(always)]
    pub(super) fn is_another_stuck(
        &mut self,
        served: usize,
        mut looks: u64,
        now: u64,
        look: &mut impl Look,
    ) -> bool {
        let count = self.queues.len();
        let mut place = self.looked;
        for _ in 0..count {
            place = if place + 1 < count { place + 1 } else { 0 };
            let queue = &mut self.queues[place];
            if place == served || queue.state != State::Polled {
                continue;
            }
            looks -= 1;
            // Most have nothing, which takes the one load.
            let waiting = look.waiting(place);
            if waiting == 0 {
                queue.backlog.0 = 0;
            } else if self.is_stuck(place, waiting, now, look) {
                self.looked = place;
                return true;
            }
            if looks == 0 {
                break;
            }
        }
        self.looked = place;
        false
    }

    /// Has this queue, where so many chains wait, waited for long enough to have the turn?
    #[inline(never)]
    fn is_stuck(&mut self, place: usize, waiting: u16, now: u64, look: &mut impl Look) -> bool {
        self.settle();
        let begins = self.wait_begins();
        if !self.may_be_served(place, now) || self.rests_meanwhile(place) {
            return false;
        }
        // It wasn't there at the last scan, or waits for long.
        self.round.end();
        let queue = &mut self.queues[place];
        let Settings { work_stuck, queue_stuck, .. } = self.settings;
        if queue.waits.is_none() {
            (queue.waits, queue.since) = (Some(begins), now);
        }
        queue.busy = now;
        if queue.kicked.is_some_and(|then| elapsed(then, now) > work_stuck) {
            return true;
        }
        let backlog = look.backlog(place, waiting, queue.backlog.0);
        if backlog != queue.backlog.0 {
            queue.backlog = (backlog, now);
            return false;
        }
        let own = self.running.map(|running| key_of(running.time, running.turn));
        elapsed(queue.backlog.1, now) >= queue_stuck && own.is_some_and(|own| self.key(place) < own)
    }
}
