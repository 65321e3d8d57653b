//! The delivery mode of a vCPU, and the virtual interrupt that is offered to it in injection mode.
//!
//! Guarantees: at most one virtual interrupt is on offer, the highest that is pending.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use delivery::{Mode, mode_for};
use proto::Policy;

impl<C: VirtualCpu> Vcpu<C> {
    /// Did the guest take the interrupt that it was offered?
    #[inline]
    pub(in crate::vm) fn note_accepted(&mut self) {
        let Some(vector) = self.mode.offered() else { return };
        if self.cpu.offer_accepted() {
            self.mode.offer(None);
            self.apic.accepted(vector);
            self.count_injected(vector);
        }
    }

    /// The host gave the guest this interrupt.
    #[inline(always)]
    pub(super) fn count_injected(&mut self, vector: u8) {
        self.ledger.injected = self.ledger.injected.wrapping_add(1);
        if self.timer.accepted(vector) {
            self.ledger.timer_injected = self.ledger.timer_injected.wrapping_add(1);
        } else if self.remote.routes.is_devices(vector) {
            self.ledger.device_injected = self.ledger.device_injected.wrapping_add(1);
        }
    }

    /// The delivery of the interrupt on offer failed: the guest took it, and gets the fault.
    pub(in crate::vm) fn offer_failed(&mut self, vector: u8) {
        if self.mode.offered() == Some(vector) {
            self.mode.offer(None);
            self.apic.accepted(vector);
        }
        self.cpu.offer_interrupt(None);
    }

    /// Before an entry: chooses the mode and offers the next virtual interrupt. A vCPU that owns
    /// its core's local APIC does until its own leaves x2APIC mode.
    pub(in crate::vm) fn prepare_delivery(&mut self) {
        if matches!(self.vm.guest.policy, Policy::Direct | Policy::Posted) {
            return self.prepare_on_its_core();
        }
        let sources = self.vm.guest.eli_gains();
        let hold = self.shadow.take_hold();
        if !sources && self.mode.current() == Mode::Injection {
            // It stays so, whatever else is.
            return self.offer();
        }
        let quiet = self.apic.exitless() && self.apic.quiet();
        let hidden = self.hide_host_vectors(quiet && sources, hold);
        let mode = mode_for(quiet, sources, hidden);
        if mode != self.mode.current() {
            self.change_mode(mode);
        }
        if mode == Mode::Injection {
            self.offer();
        } else {
            self.lend_timer();
        }
    }

    /// The same under the policies that want a core for the vCPU alone.
    #[inline(never)]
    fn prepare_on_its_core(&mut self) {
        if self.vm.guest.policy == Policy::Posted {
            self.prepare_posted();
        } else {
            self.prepare_dedicated();
        }
    }

    /// The same under `direct`.
    fn prepare_dedicated(&mut self) {
        if self.may_own_apic() {
            // The host's own vector may stand for one of the guest's, which the timer had.
            self.take_pending();
            if self.may_own_apic() {
                return self.change_mode(Mode::Passthrough);
            }
        }
        self.offer();
    }

    /// Offers the highest virtual interrupt. The CPU compares it with the task priority.
    #[inline(always)]
    pub(super) fn offer(&mut self) {
        // Most often nothing is pending.
        if self.apic.is_pending_any() || self.mode.offered().is_some() {
            self.offer_next();
        }
    }

    #[inline(never)]
    fn offer_next(&mut self) {
        let next = self.apic.deliverable();
        if next != self.mode.offered() {
            self.mode.offer(next);
            self.cpu.offer_interrupt(next);
        }
    }

    /// The vCPU is in this mode from here on.
    pub(in crate::vm) fn change_mode(&mut self, mode: Mode) {
        // What the CPU keeps for it is forgotten behind this.
        if let Some([pending, in_service]) = self.cpu.kept_interrupts() {
            pending.iter().for_each(|vector| self.apic.request(vector));
            self.apic.adopt_in_service(in_service);
        }
        // What it has in service and the guest hasn't taken is pending again behind this.
        self.cpu.set_mode(mode);
        if mode == Mode::Injection {
            self.adopt_in_service();
        }
        self.mode.set(mode);
    }

    /// Can the physical local APIC deliver this vector to the guest right now? Vectors 16 to 31 are
    /// legal for interrupts, but where ELI mode can end the host would take one that comes back
    /// to it for an exception.
    pub(in crate::vm) fn can_post(&self, vector: u8) -> bool {
        match self.mode.current() {
            Mode::Passthrough => true,
            Mode::Eli => vector >= 32 && !self.hidden_gates().contains(vector),
            Mode::Injection | Mode::Posted => false,
        }
    }
}
