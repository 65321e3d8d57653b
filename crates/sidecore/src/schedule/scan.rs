//! Which queues wait: by looks at all of them, or as the last of these scans says.

use super::round::Waiting;
use super::{Schedule, key_of, time_of};
use crate::queue::State;
use crate::turn::{Look, elapsed, is_due};

impl Schedule {
    /// The queue that a scan would find, as the last one says, if it is as it was: its VM had
    /// nothing meanwhile, and no other queue comes before it.
    ///
    /// It needs no other look. Whoever changes whether it is polled, or gives its VM's turns to
    /// others, ends the round; limits are looked at elsewhere. The clock has come to the times of
    /// those that were before it at most, so it doesn't change its key.
    #[inline(always)]
    pub(super) fn next_of_order(&mut self) -> Option<Waiting> {
        let next = self.round.in_order().filter(|_| !self.is_limited)?;
        let time = time_of(next.key);
        if self.vms[next.vm].time() > time {
            return None;
        }
        debug_assert!(self.queues[next.queue].turn == next.key as u64);
        debug_assert!(self.queues[next.queue].state == State::Polled && !self.rests(next.queue));
        debug_assert!(self.key(next.queue) == next.key);
        self.round.has_its_turn();
        self.clock = self.clock.max(time);
        Some(next)
    }

    /// The queue that a scan would find, as the last one says, if it says that.
    pub(super) fn next_of_round(&mut self, now: u64) -> Option<Waiting> {
        let Schedule { round, queues, vms, clock, .. } = self;
        let time = |vm: usize| vms.get(vm).map_or(0, |vm| vm.key(*clock));
        let turn = |queue: usize| queues.get(queue).map_or(0, |queue| queue.turn);
        let next = round.next(|one| key_of(time(one.vm), turn(one.queue)))?;
        debug_assert!(queues[next.queue].turn == next.key as u64);
        // A limit may hold it meanwhile.
        if !self.may_be_served(next.queue, now) || self.rests(next.queue) {
            self.round.end();
            return None;
        }
        self.clock = self.clock.max(time_of(next.key));
        Some(next)
    }

    /// Looks at all queues: which one's turn it is, and the one that was kicked first of those that
    /// were. The round has those that wait; the first of them has its turn.
    pub(super) fn scan(&mut self, now: u64, look: &mut impl Look) -> Found {
        let begins = self.wait_begins();
        let Schedule { queues, vms, round, from, .. } = self;
        // None of it changes meanwhile.
        let (clock, worked, is_limited) = (self.clock, self.worked, self.is_limited);
        let mut found = Found { first: None, kicked: None, delayed: false };
        let mut others = false;
        round.begin();
        // From behind the last turn on: they come in the order of their turns, mostly.
        let (before, after) = queues.split_at_mut((*from).min(queues.len()));
        for (first, queues) in [(before.len(), after), (0, before)] {
            for (place, queue) in (first..).zip(queues) {
                if queue.state != State::Polled {
                    continue;
                }
                // Most have nothing: what they are of isn't looked at where nobody has limits.
                if is_limited && !vms[queue.vm].is_open(now) {
                    queue.is_held(now);
                    found.delayed |= queue.kicked.is_some();
                    others = true;
                    continue;
                }
                // One that is known to wait isn't looked at.
                if queue.waits.is_none() {
                    if look.waiting(place) == 0 {
                        queue.kicked = None;
                        others = true;
                        continue;
                    }
                    (queue.waits, queue.busy, queue.since) = (Some(begins), now, now);
                }
                let vm = &vms[queue.vm];
                if vm.rests == worked {
                    found.delayed |= queue.kicked.is_some();
                    others = true;
                    continue;
                }
                let key = key_of(vm.key(clock), queue.turn);
                round.add(key, queue.vm, place);
                if let Some(then) = queue.kicked {
                    found.kicked(elapsed(then, now), place);
                }
            }
        }
        found.first = round.first();
        if others && round.is_left() {
            self.pass_over_others();
        }
        found
    }

    /// One that had nothing for long, where a scan has found that none may be served.
    #[inline]
    pub(super) fn find_idle(&mut self, now: u64) -> Option<usize> {
        if is_due(self.sleeps_at, now) { self.look_for_idle(now) } else { None }
    }

    #[inline(never)]
    fn look_for_idle(&mut self, now: u64) -> Option<usize> {
        let Schedule { queues, vms, settings, from, yielding, .. } = self;
        let (from, yields) = ((*from).min(queues.len()), yielding.is_on(now));
        let mut soonest = settings.idle;
        for place in (from..queues.len()).chain(0..from) {
            let queue = &queues[place];
            if queue.state != State::Polled {
                continue;
            }
            if queue.waits.is_some() || !vms[queue.vm].is_open(now) {
                // As soon as it has had its turn, or may have it.
                soonest = soonest.min(queue.patience(yields));
                continue;
            }
            let Some(left) = queue.sleeps_after(now, yields) else { return Some(place) };
            soonest = soonest.min(left);
        }
        self.sleeps_at = now.wrapping_add(soonest);
        None
    }

    /// Tells a round of those that aren't to have a turn of it: mostly there is none, and none that
    /// would have to know their keys.
    #[inline(never)]
    fn pass_over_others(&mut self) {
        let Schedule { queues, vms, clock, worked, round, .. } = self;
        for (place, queue) in queues.iter().enumerate() {
            let vm = &vms[queue.vm];
            let is_other = queue.waits.is_none() || vm.rests == *worked;
            if queue.state == State::Polled && is_other {
                let key = key_of(vm.key(*clock), queue.turn);
                round.pass_over(Waiting { key, vm: queue.vm, queue: place });
            }
        }
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
}

impl Found {
    /// This one was kicked so long ago.
    #[inline(never)]
    fn kicked(&mut self, waited: u64, place: usize) {
        if self.kicked.is_none_or(|(other, _)| waited > other) {
            self.kicked = Some((waited, place));
        }
    }
}
