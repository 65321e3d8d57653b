//! A vCPU's local APIC timer: the core's own, or a virtual one where vCPUs share the core.
//!
//! Guarantees: a periodic timer has no period so short that the guest doesn't come to execute something
//! between two of its interrupts. A virtual timer expires in time or, if the vCPU hasn't the core then,
//! when it has it again at the latest.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, rdtsc};
use crate::interrupts;
use crate::sched::run_queue::NEVER;
use crate::vm::Vcpu;
use delivery::{TimerSetup, VirtualTimer};
use proto::Policy;

/// The most ticks a second that a periodic timer of a guest's gets.
const SHORTEST_PERIOD_HZ: u64 = 100_000;
/// The same where several vCPUs share the core, and each tick has to go through the host's
/// deadlines: between two of them the guest must come to execute something.
const SHORTEST_SHARED_PERIOD_HZ: u64 = 5_000;

/// The timer of one vCPU.
pub struct GuestTimer {
    /// `None`: the core's own timer runs for the guest.
    shared: Option<VirtualTimer>,
    /// The vector under which its last interrupt waits in the virtual APIC.
    requested: Option<u8>,
}

impl GuestTimer {
    /// Of a vCPU that has its core to itself.
    pub fn of_core() -> Self {
        GuestTimer { shared: None, requested: None }
    }

    /// Of a vCPU of a shared core.
    pub fn of_slot() -> Self {
        let shortest = cpu::tsc_hz() / SHORTEST_SHARED_PERIOD_HZ;
        let timer = VirtualTimer::new(cpu::tsc_hz(), cpu::timer_hz(), shortest);
        GuestTimer { shared: Some(timer), requested: None }
    }

    /// As after INIT.
    pub fn reset(&mut self) {
        self.requested = None;
        if let Some(timer) = &mut self.shared {
            timer.reset();
        }
    }

    /// When a virtual timer expires, in TSC ticks; [`NEVER`] if it doesn't run.
    pub fn deadline(&self) -> u64 {
        self.shared.as_ref().and_then(VirtualTimer::deadline).unwrap_or(NEVER)
    }

    /// The current count of a virtual timer.
    pub fn count(&self) -> Option<u32> {
        self.shared.as_ref().map(|timer| timer.count(rdtsc()))
    }

    /// Does the core's own timer run for the guest?
    pub fn is_cores(&self) -> bool {
        self.shared.is_none()
    }

    /// No interrupt of it waits any more.
    pub fn forget(&mut self) {
        self.requested = None;
    }

    /// The guest took the interrupt with this vector: was it the timer's?
    pub fn accepted(&mut self, vector: u8) -> bool {
        let mine = self.requested == Some(vector);
        if mine {
            self.requested = None;
        }
        mine
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// The guest's timer fired. In direct mode the physical local APIC gives it to the guest
    /// with the guest's own vector (SELF_IPI): it takes and completes it like a device's, without
    /// the exit for the EOI and without the time in injection mode, in which devices' interrupts
    /// exit too. The paper's hardware had no x2APIC to do that with.
    pub(in crate::vm) fn give_timer(&mut self, vector: u8) {
        if self.can_post(vector) {
            x2apic::self_ipi(vector);
            self.ledger.injected = self.ledger.injected.wrapping_add(1);
            self.ledger.timer_injected = self.ledger.timer_injected.wrapping_add(1);
        } else {
            self.timer.requested = Some(vector);
            self.apic.request(vector);
        }
    }

    /// Gives the guest the interrupt of its virtual timer, if that is due.
    pub(in crate::vm) fn expire_timer(&mut self, now: u64) {
        if self.timer.shared.as_mut().is_some_and(|timer| timer.expired(now))
            && let Some(vector) = self.apic.timer_vector()
        {
            self.give_timer(vector);
        }
    }

    /// The vector by which the host takes the core's timer, of a vCPU that has its core to itself.
    pub(in crate::vm) fn host_timer_vector(&self) -> u8 {
        match self.vm.policy {
            Policy::Trap | Policy::EliDelivery | Policy::Eli => interrupts::TIMER,
            // No interrupt comes by vector 0.
            Policy::Direct => self.own_timer_vector().unwrap_or(0),
        }
    }

    /// Applies what the guest wrote to its timer: with its own vector where the timer is its own,
    /// else with the host's.
    pub(in crate::vm) fn program_timer(&mut self, setup: TimerSetup) {
        if let Some(timer) = &mut self.timer.shared {
            return timer.set(setup, rdtsc());
        }
        let vector = match self.vm.policy {
            Policy::Trap | Policy::EliDelivery | Policy::Eli => interrupts::TIMER,
            // A vector below 16 is none: the entry stays masked.
            Policy::Direct => self.own_timer_vector().unwrap_or(0),
        };
        let masked = setup.masked || vector == 0;
        program_core_timer(TimerSetup { masked, ..setup }, vector);
        if self.vm.policy == Policy::Direct {
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
