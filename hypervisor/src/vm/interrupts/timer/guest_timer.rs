//! The state of a vCPU's local APIC timer: the core's own, or a virtual one.

use crate::cpu::{self, rdtsc};
use delivery::{Taken, TimerSetup, VirtualTimer};
use mailbox::NEVER;

/// The most ticks a second that a periodic timer gets where several vCPUs share the core, and each
/// tick has to go through the host's deadlines: between two of them the guest must come to execute
/// something.
const SHORTEST_SHARED_PERIOD_HZ: u64 = 5_000;

/// The timer of one vCPU.
pub struct GuestTimer {
    /// `None`: the core's own timer runs for the guest.
    shared: Option<VirtualTimer>,
    /// The guest's vector, if the core's timer interrupts by it: for good, or lent.
    own_vector: Option<u8>,
    /// The count that the host started it from when it was last lent.
    lent_from: Option<u32>,
    /// The vector under which its last interrupt waits in the virtual APIC.
    requested: Option<u8>,
    /// What [`GuestTimer::deadline`] gives: it is asked several times an exit, and changes with
    /// few.
    due: u64,
}

impl GuestTimer {
    /// Of a vCPU that has its core to itself.
    pub fn of_core() -> Self {
        let (own_vector, lent_from, requested) = (None, None, None);
        GuestTimer { shared: None, own_vector, lent_from, requested, due: NEVER }
    }

    /// Of a vCPU of a shared core.
    pub fn of_slot() -> Self {
        let shortest = cpu::tsc_hz() / SHORTEST_SHARED_PERIOD_HZ;
        let timer = VirtualTimer::new(cpu::tsc_hz(), cpu::timer_hz(), shortest);
        GuestTimer { shared: Some(timer), ..GuestTimer::of_core() }
    }

    /// As after INIT. It isn't lent.
    pub fn reset(&mut self) {
        (self.requested, self.own_vector, self.lent_from) = (None, None, None);
        if let Some(timer) = &mut self.shared {
            timer.reset();
        }
        self.note_due();
    }

    /// When a virtual timer expires, in TSC ticks; [`NEVER`] if it doesn't run.
    #[inline]
    pub fn deadline(&self) -> u64 {
        self.due
    }

    /// After each change of the virtual timer.
    fn note_due(&mut self) {
        self.due = self.shared.as_ref().and_then(VirtualTimer::deadline).unwrap_or(NEVER);
    }

    /// The current count of a virtual timer; `None`: the core's has it.
    pub fn count(&self) -> Option<u32> {
        let shared = self.shared.as_ref().filter(|_| self.lent_from.is_none());
        shared.map(|timer| timer.count(rdtsc()))
    }

    /// Is the core's timer lent to a vCPU of a shared core?
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.lent_from.is_some()
    }

    /// The count that the guest set the core's timer to, by what its register has; `None`: the host
    /// did.
    pub fn written(&self, initial: u32) -> Option<u32> {
        (self.own_vector.is_some() && self.lent_from != Some(initial)).then_some(initial)
    }

    /// A virtual one goes on as the core's, by this vector of the guest's: from the count that it
    /// gives. `None`: it can't.
    pub fn lend(&mut self, vector: u8, now: u64) -> Option<u32> {
        let count = self.shared.as_mut()?.lend(now)?;
        (self.own_vector, self.lent_from) = (Some(vector), Some(count));
        self.note_due();
        Some(count)
    }

    /// Takes the core's timer back by `take`, which is given its vector and the count that it was
    /// lent with; the virtual one goes on. Gives the count that the guest last set it to, if it
    /// did.
    pub fn take_back(&mut self, take: impl FnOnce(u8, u32) -> Taken) -> Option<u32> {
        let (timer, vector) = (self.shared.as_mut()?, self.own_vector?);
        let taken = take(vector, self.lent_from?);
        timer.give_back(taken, rdtsc());
        (self.own_vector, self.lent_from) = (None, None);
        self.note_due();
        taken.written
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
    #[inline]
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
    #[inline]
    pub fn expired(&mut self, now: u64) -> bool {
        self.due <= now && self.expire(now)
    }

    #[cold]
    fn expire(&mut self, now: u64) -> bool {
        let expired = self.shared.as_mut().is_some_and(|timer| timer.expired(now));
        self.note_due();
        expired
    }

    /// Sets a virtual timer; false: there is none, and the core's own is to be set.
    pub fn set_virtual(&mut self, setup: TimerSetup) -> bool {
        let Some(timer) = &mut self.shared else { return false };
        timer.set(setup, rdtsc());
        self.note_due();
        true
    }
}
