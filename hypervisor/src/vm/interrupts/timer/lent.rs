//! The core's own timer, lent to the vCPU of a shared core that takes its interrupts itself.
//!
//! Guarantees: while it is lent, the vCPU owns the core's vectors, the timer is one-shot and its
//! interrupt is one that may arrive by itself; core 0's alarm takes the core back when the host
//! needs it. Before another vCPU has the core, and before the host does anything else to the
//! timer's registers, it is taken back (`delivery::take_back`): what is left of it is virtual
//! again.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc, x2apic};
use crate::sched::clock;
use crate::vm::Vcpu;
use delivery::{CoreTimer, Taken, take_back};
use proto::Policy;

/// The timer of this core, with this vector.
struct Lent {
    vector: u8,
    /// Another is to have the core. Else what is late finds its guest there still.
    leaves: bool,
    /// It is late to notice that it has expired, and forgets that if it is set first.
    forgets: bool,
}

impl CoreTimer for Lent {
    fn initial(&self) -> u32 {
        x2apic::timer_initial()
    }

    fn count(&self) -> u32 {
        x2apic::timer_count()
    }

    fn mask(&mut self) {
        x2apic::timer_lvt(self.vector, x2apic::TimerMode::OneShot, true);
    }

    fn is_pending(&self) -> bool {
        x2apic::requested(self.vector >> 5) >> (self.vector & 31) & 1 != 0
    }

    fn settle(&mut self) -> bool {
        if !self.leaves {
            return true;
        }
        if self.forgets {
            return clock::pass(|| self.is_pending());
        }
        let (began, ticks) = (rdtsc(), cpu::tsc_hz() / 1_000_000 * x2apic::MESSAGE_US);
        while !self.is_pending() && rdtsc().wrapping_sub(began) < ticks {
            core::hint::spin_loop();
        }
        true
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Before an entry in ELI mode: lends it the timer of a core that it shares, if that can be.
    #[inline]
    pub(in crate::vm) fn lend_timer(&mut self) {
        if self.slot().is_some() && !self.timer.is_lent() && self.vm.guest.policy == Policy::Eli {
            self.try_lend_timer();
        }
    }

    fn try_lend_timer(&mut self) {
        let Some(slot) = self.slot() else { return };
        let own = self.apic.timer_vector().filter(|v| self.remote.routes.keep(*v));
        let Some(vector) = own else { return };
        let now = rdtsc();
        self.expire_timer(now);
        if let Some(count) = self.timer.lend(vector, now) {
            slot.core.queue.lend_timer(vector, self.apic.timer().divide, count);
            self.cpu.lend_timer(true);
        }
    }

    /// Takes it back, if it is lent. `leaves`: another is to have the core.
    #[inline]
    pub(in crate::vm) fn take_timer(&mut self, leaves: bool) {
        if self.timer.is_lent() {
            self.take_lent_timer(leaves);
        }
    }

    fn take_lent_timer(&mut self, leaves: bool) {
        let forgets = self.cpu.timer_forgets();
        let take =
            |vector, lent| -> Taken { take_back(&mut Lent { vector, leaves, forgets }, lent) };
        if let Some(initial) = self.timer.take_back(take) {
            self.apic.adopt_timer(initial, self.apic.timer().divide);
        }
        if let Some(slot) = self.slot() {
            slot.core.queue.take_timer();
        }
        self.cpu.lend_timer(false);
    }
}
