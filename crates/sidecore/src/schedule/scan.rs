//! Which queues wait: by looks at all of them, or as the last of these scans says.

use super::round::Waiting;
use super::{Schedule, key_of, time_of};
use crate::queue::State;
use crate::turn::{Look, elapsed};

impl Schedule {
    /// The queue that a scan would find, as the last one says, if it says that.
    #[inline]
    pub(super) fn next_of_round(&mut self, now: u64) -> Option<Waiting> {
        let Schedule { round, queues, vms, clock, settings, .. } = self;
        let time = |vm: usize| vms.get(vm).map_or(0, |vm| vm.key(*clock, settings));
        let next = round.next(|one| key_of(time(one.vm), one.key as u64))?;
        debug_assert!(queues[next.queue].turn == next.key as u64);
        // A limit may hold it meanwhile.
        if !self.may_be_served(next.queue, now) || self.rests(next.queue) {
            self.round.end();
            return None;
        }
        self.clock = self.clock.max(time_of(next.key));
        Some(next)
    }

    /// Looks at all queues: which one's turn it is; the one that was kicked first of those that
    /// were, and one that had nothing for long. The round has those that wait; the first of them
    /// has its turn.
    pub(super) fn scan(&mut self, now: u64, look: &mut impl Look) -> Found {
        let begins = self.wait_begins();
        let Schedule { queues, vms, settings, clock, worked, round, from, .. } = self;
        let mut found = Found { first: None, kicked: None, delayed: false, idle: None };
        round.begin();
        // From behind the last turn on: they come in the order of their turns, mostly.
        let (before, after) = queues.split_at_mut((*from).min(queues.len()));
        for (from, queues) in [(before.len(), after), (0, before)] {
            for (queue, place) in queues.iter_mut().zip(from..) {
                if queue.state != State::Polled {
                    continue;
                }
                let vm = &vms[queue.vm];
                let key = key_of(vm.key(*clock, settings), queue.turn);
                let one = Waiting { key, vm: queue.vm, queue: place };
                if vm.is_limited() && !vm.is_open(now) {
                    queue.is_held(now);
                    found.delayed |= queue.kicked.is_some();
                    round.pass_over(one);
                    continue;
                }
                // One that is known to wait isn't looked at.
                if queue.waits.is_none() {
                    if look.waiting(place) == 0 {
                        queue.kicked = None;
                        if elapsed(queue.busy, now) >= settings.idle {
                            found.idle = found.idle.or(Some(place));
                        }
                        round.pass_over(one);
                        continue;
                    }
                    (queue.waits, queue.busy, queue.since) = (Some(begins), now, now);
                }
                if vm.rests == *worked {
                    found.delayed |= queue.kicked.is_some();
                    round.pass_over(one);
                    continue;
                }
                round.add(one);
                let waited = queue.kicked.map(|then| elapsed(then, now));
                if let Some(waited) = waited
                    && found.kicked.is_none_or(|(other, _)| waited > other)
                {
                    found.kicked = Some((waited, place));
                }
            }
        }
        found.first = round.first();
        found
    }
}

/// What a scan found.
pub(super) struct Found {
    pub first: Option<Waiting>,
    /// For how long it has waited since it was kicked, and the queue.
    pub kicked: Option<(u64, usize)>,
    /// Another one was kicked, and can't be served yet: its VM is at a limit, or others are to come
    /// before it.
    pub delayed: bool,
    pub idle: Option<usize>,
}
