//! Physical interrupts that reach the host on a core with a vCPU: whom each is for, and what it
//! counts as.
//!
//! Guarantees: an interrupt of the vCPU's own becomes pending in its virtual local APIC; one of
//! another vCPU of the core is left in that one's inbox.

use crate::cpu::rdtsc;
use crate::cpu::vendor::VirtualCpu;
use crate::interrupts;
use crate::iommu::fault_interrupt;
use crate::sched::host_core::Slot;
use crate::sched::shared_core::SharedCore;
use crate::vm::Vcpu;
use delivery::{Arrived, VectorSet};
use ledger::Reason;

impl<C: VirtualCpu> Vcpu<C> {
    /// Hands on what the host's interrupt handler recorded. When a tick and a device's interrupt
    /// came together the exit is the device's: without the tick it would have been all the same.
    pub(in crate::vm) fn receive_taken(&mut self) -> Reason {
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

    fn receive_dedicated(&mut self, vector: u8) -> Reason {
        if vector == self.host_timer_vector() {
            if let Some(v) = self.apic.timer_vector() {
                self.give_timer(v);
            }
            return Reason::TimerInterrupt;
        }
        match self.remote.routes.guest_vector(vector) {
            Some(v) => {
                self.apic.request(v);
                self.reason_of(v)
            }
            None => Reason::HostInterrupt,
        }
    }

    fn receive_shared(&mut self, slot: &Slot, vector: u8) -> Reason {
        let SharedCore { queue, routes } = slot.core;
        match routes.arrived(vector) {
            Arrived::Host if vector == interrupts::TIMER => {
                queue.fired();
                let now = rdtsc();
                if self.timer.deadline() <= now {
                    self.expire_timer(now);
                    Reason::TimerInterrupt
                } else if queue.slice_is_over(&self.remote.mailbox, now) {
                    Reason::SliceEnd
                } else {
                    Reason::OtherVcpu
                }
            }
            Arrived::Host => {
                if vector == interrupts::FAULTS {
                    fault_interrupt::arrived();
                }
                Reason::HostInterrupt
            }
            Arrived::Of { slot: of, vectors } if of == slot.index => {
                vectors.iter().for_each(|v| self.apic.request(v));
                vectors.highest().map_or(Reason::HostInterrupt, |v| self.reason_of(v))
            }
            Arrived::Of { slot: of, vectors } => {
                queue.post(of, vectors.iter());
                Reason::OtherVcpu
            }
            Arrived::Nobody => {
                routes.note_stray();
                Reason::HostInterrupt
            }
        }
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
