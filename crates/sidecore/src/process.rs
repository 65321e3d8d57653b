//! What a schedule needs besides where it is a process's: queues and VMs come while it runs, and
//! the thread sleeps. A polling core has all its places from the start and never sleeps.

use crate::queue::{Queue, State};
use crate::schedule::Schedule;
use crate::share::{Share, Vm};

impl Schedule {
    /// Places for so many queues and VMs from now on, if there were fewer. What was there stays.
    /// For callers that may allocate at any time.
    pub fn grow(&mut self, queues: usize, vms: usize) {
        let vm = Vm::new(Share::DEFAULT, &self.settings);
        let wanted = (queues.max(self.queues.len()), vms.max(self.vms.len()));
        let there = core::mem::take(&mut self.queues).into_iter();
        self.queues = there.chain(core::iter::repeat(Queue::ABSENT)).take(wanted.0).collect();
        let there = core::mem::take(&mut self.vms).into_iter();
        self.vms = there.chain(core::iter::repeat(vm)).take(wanted.1).collect();
    }

    /// When to look for work again, after [`Turn::Nothing`]: at once while a queue is polled whose
    /// VM isn't at a limit; else when the first VM of a polled queue isn't any more. None: no queue
    /// is polled, so that only a kick brings work. For callers that sleep.
    pub fn look_again_at(&self, now: u64) -> Option<u64> {
        let mut first = None;
        for queue in self.queues.iter().filter(|queue| queue.state == State::Polled) {
            let vm = &self.vms[queue.vm];
            // None can be earlier.
            if vm.is_open(now) {
                return Some(now);
            }
            let opens = vm.opens_at();
            first = Some(first.map_or(opens, |first: u64| first.min(opens)));
        }
        first
    }

    /// For so many ticks a VM saves up what its limits allow, instead of [`Settings::burst`]; until
    /// the next [`Schedule::set_share`].
    pub fn set_burst(&mut self, vm: usize, ticks: u64) {
        self.vms.get_mut(vm).into_iter().for_each(|vm| vm.burst = ticks);
    }
}
