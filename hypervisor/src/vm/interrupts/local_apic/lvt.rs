//! The local interrupt sources of a vCPU's core, looked over for the audit.
//!
//! Guarantees: while the guest runs each entry of the core's local vector table is masked, but the
//! timer's, which has the vector that the host expects there. No other core can read these
//! registers. So core 0 asks, without a kick, and the vCPU's own core looks when it next has an
//! exit anyway. A guest can't change an entry without an exit.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::interrupts;
use crate::vm::Vcpu;

impl<C: VirtualCpu> Vcpu<C> {
    /// At core 0's wish.
    pub(in crate::vm) fn look_over_sources(&mut self) {
        let timer = match self.timer.is_cores() {
            true => Some(self.host_timer_vector()).filter(|vector| *vector != 0),
            false => self.timer.own_vector().or(Some(interrupts::TIMER)),
        };
        let wrong = x2apic::local_sources()
            .find(|(register, value)| !delivery::is_expected(*register, *value, timer));
        if let Some((register, value)) = wrong {
            self.remote.note_wrong_source(register, value);
        }
    }
}
