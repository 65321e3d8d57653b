//! Which queues wait: by looks at all of them, or as the last of these scans says.

use super::Schedule;
use super::round::Waiting;
use crate::queue::State;
use crate::turn::{Look, elapsed};

impl Schedule {
    /// The queue that a scan would find, as the last one says, if it says that.
    #[inline]
    pub(super) fn next_of_round(&mut self, now: u64) -> Option<Waiting> {
        let Schedule { round, queues, vms, clock, settings, .. } = self;
        let time = |vm: usize| vms.get(vm).map_or(0, |vm| vm.key(*clock, settings));
        let next = round.next(|one| (time(one.vm), one.key.1))?;
        debug_assert!(queues[next.queue].turn == next.key.1);
        // A limit may hold it meanwhile.
        if !self.may_be_served(next.queue, now) || self.rests(next.queue) {
            self.round.end();
            return None;
        }
        self.clock = self.clock.max(next.key.0);
        Some(next)
    }

    /// Looks at all queues: those that wait are in the round. The one that was kicked first of
    /// those that were, and one that had nothing for long.
    pub(super) fn scan(
        &mut self,
        now: u64,
        look: &mut impl Look,
    ) -> (Option<(u64, usize)>, Option<usize>) {
        let begins = self.wait_begins();
        let Schedule { queues, vms, round, settings, clock, worked, from, .. } = self;
        let mut work: Option<(u64, usize)> = None;
        let mut idle = None;
        round.begin();
        // From behind the last turn on: they come in the order of their turns, mostly.
        for step in 0..queues.len() {
            let place = *from + step;
            let place = if place < queues.len() { place } else { place - queues.len() };
            let Some(queue) = queues.get_mut(place) else { continue };
            if queue.state != State::Polled {
                continue;
            }
            let vm = &vms[queue.vm];
            let key = (vm.key(*clock, settings), queue.turn);
            let one = Waiting { key, vm: queue.vm, queue: place };
            if vm.is_limited() && !vm.is_open(now) {
                queue.is_held(now);
                round.pass_over(one);
                continue;
            }
            // One that is known to wait isn't looked at.
            if queue.waits.is_none() {
                if look.waiting(place) == 0 {
                    queue.kicked = None;
                    if elapsed(queue.busy, now) >= settings.idle {
                        idle = idle.or(Some(place));
                    }
                    round.pass_over(one);
                    continue;
                }
                (queue.waits, queue.busy, queue.since) = (Some(begins), now, now);
            }
            if vm.rests == *worked {
                round.pass_over(one);
                continue;
            }
            round.add(one);
            let waited = queue.kicked.map(|then| elapsed(then, now));
            if let Some(waited) = waited
                && work.is_none_or(|(other, _)| waited > other)
            {
                work = Some((waited, place));
            }
        }
        (work, idle)
    }
}
