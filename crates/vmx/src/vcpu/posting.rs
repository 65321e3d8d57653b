//! Posted mode: the CPU keeps the guest's local APIC, and takes what others post.
//!
//! Guarantees: in this mode, and in no other, the registers that the CPU keeps are the guest's; at
//! its end they are empty. Nobody is entered asleep with an interrupt that he would take at once.
//! An interrupt whose completion is watched tells of one completion. While the mode can be,
//! interrupts that exit are taken from the local APIC by the exit, in other modes too
//! ([`Vcpu::acknowledged`]).

use super::{ACTIVE, Vcpu};
use crate::controls::{Controls, pin};
use crate::posted::{Descriptor, Registers, status};
use crate::{Area, Field, exits, field};
use delivery::{Mode, VectorSet, class};

/// What posted mode needs of memory.
#[derive(Clone, Copy, Debug)]
pub struct Posting {
    /// The registers that the CPU keeps: the page that the control structure has as the virtual
    /// APIC's.
    pub registers: &'static Registers,
    /// To what others post.
    pub descriptor: &'static Descriptor,
    /// Its physical address.
    pub at: u64,
}

/// Which completions exit, 64 vectors a field.
const EOI_EXITS: [Field; 4] =
    [field::EOI_EXITS0, field::EOI_EXITS1, field::EOI_EXITS2, field::EOI_EXITS3];

impl<A: Area> Vcpu<A> {
    pub(super) fn set_up_posting(&mut self) {
        let Some(posting) = self.setup.posting else { return };
        let vector = posting.descriptor.notification().vector;
        self.area.write(field::POSTED_VECTOR, vector.into());
        self.area.write(field::POSTED_DESCRIPTOR, posting.at);
        self.area.write(field::GUEST_INTERRUPT_STATUS, 0);
        EOI_EXITS.into_iter().for_each(|field| self.area.write(field, 0));
    }

    /// Posted mode, with nothing pending and nothing in service; the task priority stays where it
    /// is in injection mode.
    pub fn set_posted(&mut self) {
        self.set_pin(pin::POSTED, true);
        self.offer(None);
        self.set_secondary(self.controls.secondary | Controls::POSTED.secondary);
        self.load_map(Mode::Posted);
    }

    /// Is it in posted mode?
    #[inline]
    pub fn in_posted(&self) -> bool {
        self.controls.pin & pin::POSTED != 0
    }

    pub(super) fn end_posted(&mut self) {
        if self.in_posted() {
            self.set_pin(pin::POSTED, false);
            self.open_window(false);
            self.set_secondary(self.controls.secondary & !Controls::POSTED.secondary);
            EOI_EXITS.into_iter().for_each(|field| self.area.write(field, 0));
            self.set_kept([&VectorSet::EMPTY; 2]);
        }
    }

    /// What the CPU keeps for the guest: what is pending, and what is in service.
    pub fn kept(&self) -> Option<[VectorSet; 2]> {
        let posting = self.setup.posting.filter(|_| self.in_posted());
        posting.map(|posting| posting.registers.interrupts())
    }

    /// These are pending and in service there, too; completions of those in `watched` exit.
    pub fn keep(&mut self, pending: &VectorSet, in_service: &VectorSet, watched: &VectorSet) {
        let Some([had, serves]) = self.kept() else { return };
        self.set_kept([&had.union(pending), &serves.union(in_service)]);
        for (index, field) in (0..).zip(EOI_EXITS) {
            let (low, high) = (watched.register(2 * index), watched.register(2 * index + 1));
            let more = u64::from(low) | u64::from(high) << 32;
            if more != 0 {
                self.area.write(field, self.area.read(field) | more);
            }
        }
        if self.is_due() {
            self.area.write(field::GUEST_ACTIVITY, ACTIVE);
        }
    }

    /// Is something pending that the guest takes at once? Who is entered asleep is woken by it on a
    /// processor, and not on Bochs 3.0 (`handleWaitForEvent`), nor is who falls asleep meanwhile:
    /// so HLT exits in this mode, and with such a thing pending nobody is entered asleep.
    pub(super) fn is_due(&self) -> bool {
        let status = self.area.read(field::GUEST_INTERRUPT_STATUS);
        let [pending, in_service] = [status as u8, (status >> 8) as u8].map(class);
        pending > in_service.max(class(self.virtual_priority())) && self.interrupts_enabled()
    }

    fn set_kept(&mut self, interrupts: [&VectorSet; 2]) {
        if let Some(posting) = self.setup.posting {
            posting.registers.set_interrupts(interrupts);
            self.area.write(field::GUEST_INTERRUPT_STATUS, status(interrupts));
        }
    }

    /// This interrupt's completion was told.
    pub(super) fn end_watch(&mut self, vector: u8) {
        if let Some(field) = EOI_EXITS.get(usize::from(vector >> 6)) {
            let watched = self.area.read(*field) & !(1 << (vector & 63));
            self.area.write(*field, watched);
        }
    }

    /// The interrupt that the exit took from the local APIC.
    pub fn acknowledged(&self) -> Option<u8> {
        self.setup.posting.and_then(|_| exits::acknowledged(&self.area))
    }
}

#[cfg(test)]
#[path = "posting_tests.rs"]
mod tests;
