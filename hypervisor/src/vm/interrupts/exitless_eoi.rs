//! Exitless EOI (paper 4.4): who completes an interrupt, the guest by itself or the host for it.
//!
//! The guest may do it by the map of MSRs of each mode (`crates/svm`, `maps`): in ELI mode and
//! in passthrough mode the local APIC's EOI register is open, and no file of ours has a part in a
//! completion. Here is the rest: the EOIs that exit, in injection mode and under `eli-delivery`,
//! and the way from the one to the other.
//!
//! Guarantees: each interrupt is completed once, in the physical local APIC or in the virtual one.
//! When the vCPU comes to injection mode, what it has in service in the physical one is in service
//! in the virtual one from then on, where its EOIs, which exit now, find it (paper 4.5).

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::vm::Vcpu;
use crate::vm::interrupts::local_apic::this_core::in_service;
use delivery::{Mode, VectorSet};
use ledger::Reason;

impl<C: VirtualCpu> Vcpu<C> {
    /// EOI in ELI mode, where it exits (policy `eli-delivery`): done for the guest.
    fn complete_physical(&self) -> Option<u8> {
        if self.mode.current() != Mode::Eli {
            return None;
        }
        let vector = in_service().highest()?;
        x2apic::eoi();
        self.remote.routes.guest_vector(vector)
    }

    /// The guest's EOI, which exited; `vector`: what it completed in the virtual local APIC.
    #[inline(always)]
    pub(in crate::vm) fn completed(&mut self, vector: Option<u8>) -> Reason {
        let Some(vector) = vector.or_else(|| self.complete_physical()) else {
            return Reason::OtherEoi;
        };
        let vm = self.vm;
        if vm.guest.completion_awaited() {
            self.slot.forget_completion();
            self.with_pc(|pc, _| pc.board_mut().completed(&vm.guest, vector));
        }
        if self.apic.timer_vector() == Some(vector) {
            Reason::TimerEoi
        } else if self.remote.routes.is_devices(vector) {
            Reason::DeviceEoi
        } else {
            Reason::OtherEoi
        }
    }

    /// On the way to injection mode: interrupts that the guest took itself and hasn't completed are
    /// completed here, and owed by the guest to the virtual APIC from now on. All that is in
    /// service now is the guest's: the host completes its own at once.
    #[inline]
    pub(in crate::vm) fn adopt_in_service(&mut self) {
        let mine = in_service();
        for _ in mine.iter() {
            x2apic::eoi();
        }
        let own = self.mode.current() == Mode::Passthrough;
        self.apic.adopt_in_service(if own { mine } else { self.to_guest(mine) });
    }

    /// Physical vectors as the guest knows them.
    fn to_guest(&self, physical: VectorSet) -> VectorSet {
        let mut guest = VectorSet::EMPTY;
        for v in physical.iter() {
            if let Some(g) = self.remote.routes.guest_vector(v) {
                guest.insert(g);
            }
        }
        guest
    }
}
