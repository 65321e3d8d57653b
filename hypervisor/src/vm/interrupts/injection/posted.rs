//! Policy `posted`: the CPU keeps the guest's local APIC, and delivers what is pending there.
//!
//! Guarantees: before each entry, what others posted and what the host has for the guest is handed
//! to the CPU, if the guest's local APIC is in x2APIC mode and enabled; else it is offered as under
//! `trap`. What is posted behind this look is told to the core by an interrupt that stays pending
//! until the entry: the host lets none in before it.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use delivery::{Mode, VectorSet};
use ledger::Reason;

/// A register of the local APIC; vector 0 stands for each that no interrupt can have.
const SELF_IPI: u8 = 0x3F;

impl<C: VirtualCpu> Vcpu<C> {
    /// Before an entry.
    pub(super) fn prepare_posted(&mut self) {
        if let Some(words) = self.remote.posting.and_then(|posting| posting.take()) {
            (0..).zip(words).for_each(|(index, bits)| self.apic.request_word(index, bits));
        }
        if !self.apic.exitless() {
            return self.offer();
        }
        if self.mode.current() != Mode::Posted {
            self.change_mode(Mode::Posted);
        }
        if !self.apic.quiet() {
            self.hand_over();
        }
    }

    /// The guest sent itself an interrupt that none can have, by the register for that.
    #[cold]
    #[inline(never)]
    pub(in crate::vm) fn sent_itself(&mut self) -> Reason {
        self.write_apic(SELF_IPI, 0).unwrap_or(Reason::MsrWrite)
    }

    /// The guest completed an interrupt of which that was to be told.
    #[inline(never)]
    pub(in crate::vm) fn completed_itself(&mut self, vector: u8) -> Reason {
        self.completed(Some(vector))
    }

    /// All that the virtual local APIC has is the CPU's from here on. The IOAPIC is told of
    /// completions while it waits for one.
    #[inline(never)]
    fn hand_over(&mut self) {
        let [pending, in_service] = self.apic.hand_over();
        let awaited = self.vm.guest.completion_awaited();
        let watched = if awaited { pending.union(&in_service) } else { VectorSet::EMPTY };
        self.cpu.keep_interrupts(&pending, &in_service, &watched);
        pending.iter().for_each(|vector| self.count_injected(vector));
    }
}
