//! A vCPU's local APIC timer: the core's own, or a virtual one where vCPUs share the core.
//!
//! Guarantees: a periodic timer has no period so short that the guest doesn't come to execute
//! something between two of its interrupts. A virtual timer expires in time or, if the vCPU hasn't
//! the core then, when it has it again at the latest.

use crate::cpu;
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic::{self, TimerMode};
use crate::interrupts;
use crate::vm::Vcpu;
use delivery::TimerSetup;
use proto::Policy;

/// The most ticks a second that a periodic timer of a guest's gets.
const SHORTEST_PERIOD_HZ: u64 = 100_000;
impl<C: VirtualCpu> Vcpu<C> {
    /// The guest's timer fired. In ELI mode the physical local APIC gives it to the guest
    /// with the guest's own vector (SELF_IPI): it takes and completes it like a device's, without
    /// the exit for the EOI and without the time in injection mode, in which devices' interrupts
    /// exit too. The paper's hardware had no x2APIC to do that with.
    pub(in crate::vm) fn give_timer(&mut self, vector: u8) {
        if self.can_post(vector) {
            x2apic::self_ipi(vector);
            self.ledger.injected = self.ledger.injected.wrapping_add(1);
            self.ledger.timer_injected = self.ledger.timer_injected.wrapping_add(1);
        } else {
            self.timer.request(vector);
            self.apic.request(vector);
        }
    }

    /// Gives the guest the interrupt of its virtual timer, if that is due.
    #[inline]
    pub(in crate::vm) fn expire_timer(&mut self, now: u64) {
        if self.timer.expired(now)
            && let Some(vector) = self.apic.timer_vector()
        {
            self.give_timer(vector);
        }
    }

    /// The vector by which the host takes the core's timer, of a vCPU that has its core to itself.
    pub(in crate::vm) fn host_timer_vector(&self) -> u8 {
        match self.vm.guest.policy {
            Policy::Trap | Policy::EliDelivery | Policy::Posted => interrupts::TIMER,
            Policy::Eli => self.timer.own_vector().unwrap_or(interrupts::TIMER),
            // A vector below 16 is none: no interrupt comes by it; the timer's entry stays masked.
            Policy::Direct => self.own_timer_vector().unwrap_or(0),
        }
    }

    /// Where the guest sets the core's timer in ELI mode: it may have, and the host is asked for
    /// the count that it started from.
    pub(in crate::vm) fn note_timer_initial(&mut self) {
        if let Some(initial) = self.timer.written(x2apic::timer_initial()) {
            self.apic.adopt_timer(initial, self.apic.timer().divide);
        }
    }

    /// Applies what the guest wrote to its timer: with its own vector where the timer is its own,
    /// else with the host's.
    pub(in crate::vm) fn program_timer(&mut self, setup: TimerSetup) {
        if self.timer.set_virtual(setup) {
            return;
        }
        if self.vm.guest.policy == Policy::Eli && setup.initial.is_none() {
            let own = self.apic.timer_vector().filter(|v| self.remote.routes.keep(*v));
            self.timer.set_own_vector(own);
            self.cpu.lend_timer(own.is_some() && !setup.periodic);
        }
        let vector = self.host_timer_vector();
        let masked = setup.masked || vector == 0;
        program_core_timer(TimerSetup { masked, ..setup }, vector);
        if self.vm.guest.policy == Policy::Direct {
            self.cpu.open_timer(!setup.periodic);
        }
    }
}

/// Runs the core's own timer with the guest's values. Starting it is the frequent case, and its
/// mode was set when the guest set it.
fn program_core_timer(setup: TimerSetup, vector: u8) {
    // Divide configuration (SDM vol. 3, figure 11-10): bits 3, 1, 0 count 2, 4 … 128, 1.
    let code = setup.divide & 0b11 | setup.divide >> 1 & 0b100;
    let shift = (code + 1) as u8 & 7;
    // A period shorter than the host's handler would never let the core out of it.
    let shortest =
        if setup.periodic { (cpu::timer_hz() / SHORTEST_PERIOD_HZ) as u32 >> shift } else { 0 };
    if let Some(count) = setup.initial {
        return x2apic::timer_start(if count == 0 { 0 } else { count.max(shortest) });
    }
    x2apic::timer_divide_shift(shift);
    if (1..shortest).contains(&x2apic::timer_initial()) {
        x2apic::timer_start(shortest);
    }
    let mode = if setup.periodic { TimerMode::Periodic } else { TimerMode::OneShot };
    x2apic::timer_lvt(vector, mode, setup.masked);
}
