//! Queues and VMs that come and go: their places, kicks, shares, and what they owe when they move.
//!
//! Guarantees: whoever comes, goes or falls asleep ends the round that was found without it.

use super::Schedule;
use crate::patience::Patience;
use crate::queue::{Queue, State};
use crate::share::{Debt, Share, Vm};
use crate::turn::{Look, is_due};

impl Schedule {
    /// A VM begins at this place with this share; what was at its place before is
    /// forgotten. Not for a VM that only resets: it would be rid of its debts.
    pub fn set_share(&mut self, vm: usize, share: Share) {
        self.settle();
        self.round.end();
        if let Some(place) = self.vms.get_mut(vm) {
            *place = Vm::new(share, &self.settings);
        }
        self.is_limited = self.vms.iter().any(Vm::is_limited);
    }

    /// The queue is this VM's from now on, and its kicks are on. False if there are no such places.
    /// A queue that is there already begins anew.
    pub fn join(&mut self, queue: usize, vm: usize) -> bool {
        self.leave(queue);
        match self.queues.get_mut(queue) {
            Some(place) if vm < self.vms.len() => {
                let patience = Patience::new(self.settings.idle);
                *place = Queue { state: State::Notifies, vm, patience, ..Queue::ABSENT };
                true
            }
            _ => false,
        }
    }

    /// As [`Schedule::join`], but the queue is polled at once, and counts as not kicked. It is for
    /// a caller that never waits for kicks, and for guests that make their queues begin anew as
    /// often as they like: that gains them no turn out of order. Nothing changes if the VM's queue
    /// is polled already.
    pub fn poll(&mut self, queue: usize, vm: usize, now: u64) -> bool {
        let polled = |place: &Queue| place.state == State::Polled && place.vm == vm;
        if self.queues.get(queue).is_some_and(polled) {
            return true;
        }
        // How soon its requests come is known of one that sleeps.
        let sleeping = |place: &&Queue| place.state == State::Notifies && place.vm == vm;
        let known = self.queues.get(queue).filter(sleeping).map(|place| place.patience);
        let joined = self.join(queue, vm);
        if let Some(place) = self.queues.get_mut(queue).filter(|_| joined) {
            (place.state, place.busy) = (State::Polled, now);
            place.patience = known.unwrap_or(place.patience);
            let patience = place.patience.ticks();
            self.sleeps_before(now, patience);
        }
        joined
    }

    /// The queue is gone: its device was reset or is broken, or the VM ended.
    pub fn leave(&mut self, queue: usize) {
        self.end(queue);
        if let Some(place) = self.queues.get_mut(queue) {
            *place = Queue::ABSENT;
        }
    }

    /// The queue was kicked. True: it is polled from now on, its kicks are to be suppressed. False:
    /// nothing changed, since it is polled already or isn't there; a kick gains a guest nothing.
    pub fn kicked(&mut self, queue: usize, now: u64) -> bool {
        match self.queues.get_mut(queue) {
            Some(place) if place.state == State::Notifies => {
                self.round.end();
                place.missed(now, &self.settings);
                (place.state, place.kicked) = (State::Polled, Some(now));
                let patience = place.patience.ticks();
                self.sleeps_before(now, patience);
                true
            }
            _ => false,
        }
    }

    /// The kicks of the queue were re-armed after [`Turn::Sleep`], with the fence that virtio 1.2,
    /// 2.7.10.1 asks for. True: it isn't polled any more. False: something came in between, it is
    /// polled on, and its kicks are to be suppressed again.
    pub fn sleep(&mut self, queue: usize, now: u64, look: &mut impl Look) -> bool {
        let Some(place) = self.queues.get_mut(queue).filter(|place| place.state == State::Polled)
        else {
            return true;
        };
        if look.waiting(queue) > 0 {
            place.missed(now, &self.settings);
            return false;
        }
        (place.state, place.kicked, place.waits) = (State::Notifies, None, None);
        self.end(queue);
        true
    }

    /// The system took the core away while the last pass found nothing, until now: others want it.
    /// It is for a thread of a system, where [`Settings::adapts`](crate::Settings::adapts).
    pub fn preempted(&mut self, now: u64) {
        if self.settings.adapts {
            self.yielding.preempted(now, self.settings.ticks_per_second);
            self.sleeps_at = now;
        }
    }

    /// A queue that is polled from now on may be to sleep after so many ticks.
    fn sleeps_before(&mut self, now: u64, patience: u64) {
        let patience = if self.yielding.is_on(now) { 0 } else { patience };
        let at = now.wrapping_add(patience);
        if is_due(at, self.sleeps_at) {
            self.sleeps_at = at;
        }
    }

    /// Is it polled, so that nobody needs its kicks?
    pub fn is_polled(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|place| place.state == State::Polled)
    }

    /// What a VM had beyond its share, and what its limits have it wait for: to go along with a
    /// queue that moves to another core.
    pub fn debt(&mut self, vm: usize) -> Debt {
        self.settle();
        self.vms.get(vm).map(|vm| vm.debt(self.clock)).unwrap_or_default()
    }

    /// A queue of this VM came with a debt. The larger one stands: to move gains nothing.
    pub fn owe(&mut self, vm: usize, debt: Debt) {
        self.settle();
        if let Some(vm) = self.vms.get_mut(vm) {
            vm.owe(self.clock, debt);
        }
    }
}
