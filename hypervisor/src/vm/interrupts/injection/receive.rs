//! Physical interrupts that reach the host on a core with a vCPU: whom each is for, and what it
//! counts as.
//!
//! Guarantees: an interrupt of the vCPU's own becomes pending in its virtual local APIC; one of
//! another vCPU of the core is left in that one's inbox.

use crate::cpu::rdtsc;
use crate::cpu::vendor::VirtualCpu;
use crate::interrupts;
use crate::sched::host_core::{INNER, Slot};
use crate::sched::shared_core::Received;
use crate::vm::Vcpu;
use delivery::{Arrived, VectorSet};
use ledger::Reason;
use proto::Policy;

impl<C: VirtualCpu> Vcpu<C> {
    /// Hands on what the host's interrupt handler recorded. When a tick and a device's interrupt
    /// came together the exit is the device's: without the tick it would have been all the same.
    pub(in crate::vm) fn receive_noted(&mut self) -> Reason {
        let mut taken = VectorSet::EMPTY;
        for v in interrupts::take() {
            taken.insert(v);
        }
        let mut reason = Reason::HostInterrupt;
        for v in taken.iter() {
            let r = self.receive(v);
            if reason != Reason::DeviceInterrupt {
                reason = r;
            }
        }
        reason
    }

    /// Hands a physical interrupt, which is completed in the local APIC, to its vCPU.
    pub(in crate::vm) fn receive(&mut self, vector: u8) -> Reason {
        match self.slot() {
            Some(slot) => self.receive_shared(slot, vector),
            None => self.receive_dedicated(vector),
        }
    }

    /// Hands on what a device posts to the vCPU's guests, which an INIT leaves; forgets the rest,
    /// which was for a local APIC that is reset next.
    #[cold]
    #[inline(never)]
    pub(in crate::vm) fn receive_posted(&mut self, vector: u8) {
        if self.remote.posts() {
            self.receive_beneath(vector);
        }
    }

    /// On a core of which the vectors are those of the vCPU's guests. None: it is the host's.
    #[cold]
    #[inline(never)]
    fn receive_beneath(&mut self, vector: u8) -> Option<Reason> {
        match self.remote.routes.arrived(vector)? {
            Arrived::Of { slot: INNER, vectors } => {
                vectors.iter().for_each(|v| self.post_beneath(v));
                Some(Reason::DeviceInterrupt)
            }
            Arrived::Of { vectors, .. } => {
                vectors.iter().for_each(|v| self.request(v));
                vectors.highest().map(|v| self.reason_of(v))
            }
            Arrived::Host | Arrived::Nobody => None,
        }
    }

    fn receive_dedicated(&mut self, vector: u8) -> Reason {
        if self.remote.posts()
            && let Some(reason) = self.receive_beneath(vector)
        {
            return reason;
        }
        // By the host's vector it may have come before the guest chose one that can be its own.
        let late = vector == interrupts::TIMER && self.vm.guest.policy != Policy::Direct;
        if vector == self.host_timer_vector() || late {
            if let Some(v) = self.apic.timer_vector() {
                self.give_timer(v);
            }
            return Reason::TimerInterrupt;
        }
        match self.remote.routes.guest_vector(vector) {
            Some(v) => {
                self.request(v);
                self.reason_of(v)
            }
            None => Reason::HostInterrupt,
        }
    }

    fn receive_shared(&mut self, slot: &Slot, vector: u8) -> Reason {
        match slot.core.receive(vector, Some(slot.index)) {
            Received::Timer => {
                let now = rdtsc();
                if self.timer.deadline() <= now {
                    self.expire_timer(now);
                    Reason::TimerInterrupt
                } else if slot.core.queue.slice_is_over(&self.remote.mailbox, now) {
                    Reason::SliceEnd
                } else {
                    Reason::OtherVcpu
                }
            }
            Received::Resident(vectors) => {
                for v in vectors.iter() {
                    // It is the lent timer's, in injection mode, or a device's with its vector.
                    if self.timer.own_vector() == Some(v) {
                        self.timer.request(v);
                    }
                    self.request(v);
                }
                vectors.highest().map_or(Reason::HostInterrupt, |v| self.reason_of(v))
            }
            Received::Other => Reason::OtherVcpu,
            Received::Host => Reason::HostInterrupt,
        }
    }

    /// Makes a vector pending; notes a device's that the guest will take together with one before.
    fn request(&mut self, vector: u8) {
        if self.apic.is_pending(vector) && self.remote.routes.is_devices(vector) {
            self.ledger.device_merged = self.ledger.device_merged.wrapping_add(1);
        }
        self.apic.request(vector);
    }

    /// What an interrupt that the host took for the guest was: a device's, or one that the host
    /// had posted for the guest and that came back because ELI mode ended meanwhile.
    fn reason_of(&self, vector: u8) -> Reason {
        if self.remote.routes.is_devices(vector) {
            Reason::DeviceInterrupt
        } else if self.apic.timer_vector() == Some(vector) {
            Reason::TimerInterrupt
        } else {
            Reason::HostInterrupt
        }
    }
}
