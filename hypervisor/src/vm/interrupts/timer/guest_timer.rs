//! The state of a vCPU's local APIC timer: the core's own, or a virtual one.

use crate::cpu::{self, rdtsc};
use delivery::{TimerSetup, VirtualTimer};
use mailbox::NEVER;

/// The most ticks a second that a periodic timer gets where several vCPUs share the core, and each
/// tick has to go through the host's deadlines: between two of them the guest must come to execute
/// something.
const SHORTEST_SHARED_PERIOD_HZ: u64 = 5_000;

/// The timer of one vCPU.
pub struct GuestTimer {
    /// `None`: the core's own timer runs for the guest.
    shared: Option<VirtualTimer>,
    /// The guest's vector, if the core's timer interrupts by it.
    own_vector: Option<u8>,
    /// The vector under which its last interrupt waits in the virtual APIC.
    requested: Option<u8>,
}

impl GuestTimer {
    /// Of a vCPU that has its core to itself.
    pub fn of_core() -> Self {
        GuestTimer { shared: None, own_vector: None, requested: None }
    }

    /// Of a vCPU of a shared core.
    pub fn of_slot() -> Self {
        let shortest = cpu::tsc_hz() / SHORTEST_SHARED_PERIOD_HZ;
        let timer = VirtualTimer::new(cpu::tsc_hz(), cpu::timer_hz(), shortest);
        GuestTimer { shared: Some(timer), own_vector: None, requested: None }
    }

    /// As after INIT.
    pub fn reset(&mut self) {
        (self.requested, self.own_vector) = (None, None);
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

    /// The guest's vector, if the core's timer interrupts by it.
    pub fn own_vector(&self) -> Option<u8> {
        self.own_vector
    }

    /// The core's timer interrupts by this vector of the guest's from here on, or by the host's.
    pub fn set_own_vector(&mut self, vector: Option<u8>) {
        self.own_vector = vector;
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

    /// An interrupt of it waits in the virtual APIC.
    pub fn request(&mut self, vector: u8) {
        self.requested = Some(vector);
    }

    /// Has a virtual timer expired? Asked once for each time.
    pub fn expired(&mut self, now: u64) -> bool {
        self.shared.as_mut().is_some_and(|timer| timer.expired(now))
    }

    /// Sets a virtual timer; false: there is none, and the core's own is to be set.
    pub fn set_virtual(&mut self, setup: TimerSetup) -> bool {
        let Some(timer) = &mut self.shared else { return false };
        timer.set(setup, rdtsc());
        true
    }
}
