//! Which queues wait: by looks at all of them, or as the last of these scans says.

use super::Schedule;
use super::round::Waiting;
use crate::queue::State;
use crate::turn::{Look, elapsed};

/// From so many that wait on a round is worth it: with fewer another scan costs less.
const MANY: usize = 4;

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

    /// Looks at all queues: which one's turn it is; the one that was kicked first of those that
    /// were, and one that had nothing for long. If many wait, a round has the next ones.
    pub(super) fn scan(&mut self, now: u64, look: &mut impl Look) -> Found {
        let begins = self.wait_begins();
        let Schedule { queues, vms, settings, clock, worked, .. } = self;
        let mut found = Found { first: None, kicked: None, idle: None };
        let mut waiting = 0;
        for (place, queue) in queues.iter_mut().enumerate() {
            if queue.state != State::Polled {
                continue;
            }
            let vm = &vms[queue.vm];
            if vm.is_limited() && !vm.is_open(now) {
                queue.is_held(now);
                continue;
            }
            // One that is known to wait isn't looked at.
            if queue.waits.is_none() {
                if look.waiting(place) == 0 {
                    queue.kicked = None;
                    if elapsed(queue.busy, now) >= settings.idle {
                        found.idle = found.idle.or(Some(place));
                    }
                    continue;
                }
                (queue.waits, queue.busy, queue.since) = (Some(begins), now, now);
            }
            if vm.rests == *worked {
                continue;
            }
            waiting += 1;
            let key = (vm.key(*clock, settings), queue.turn);
            if found.first.is_none_or(|first| key < first.key) {
                found.first = Some(Waiting { key, vm: queue.vm, queue: place });
            }
            let waited = queue.kicked.map(|then| elapsed(then, now));
            if let Some(waited) = waited
                && found.kicked.is_none_or(|(other, _)| waited > other)
            {
                found.kicked = Some((waited, place));
            }
        }
        if waiting < MANY {
            self.round.end();
        } else {
            self.fill(now);
        }
        found
    }

    /// Has those in the round that a scan just found waiting; the first of them has its turn.
    #[inline(never)]
    fn fill(&mut self, now: u64) {
        let Schedule { queues, vms, round, settings, clock, worked, from, .. } = self;
        round.begin();
        // From behind the last turn on: they come in the order of their turns, mostly.
        let (before, after) = queues.split_at((*from).min(queues.len()));
        let places = (*from..).zip(after).chain((0..).zip(before));
        for (place, queue) in places.filter(|(_, queue)| queue.state == State::Polled) {
            let vm = &vms[queue.vm];
            let one =
                Waiting { key: (vm.key(*clock, settings), queue.turn), vm: queue.vm, queue: place };
            let is_held = vm.is_limited() && !vm.is_open(now);
            if is_held || queue.waits.is_none() || vm.rests == *worked {
                round.pass_over(one);
            } else {
                round.add(one);
            }
        }
        round.first();
    }
}

/// What a scan found.
pub(super) struct Found {
    pub first: Option<Waiting>,
    /// Since when it was kicked, and the queue.
    pub kicked: Option<(u64, usize)>,
    pub idle: Option<usize>,
}
