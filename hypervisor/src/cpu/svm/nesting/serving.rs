//! What L1 lets L2 do, and the host lets nobody do without an exit: it is done as L1's own, by what
//! does it for L1. For that 01 has L2's registers, and L2's memory is what L1's nested tables make
//! of L1's.
//!
//! Guarantees: L2 gets no further than L1 itself and L1's tables let it; an exception that comes of
//! it is L1's if L1 intercepts it, and so is a page that L1's tables haven't; what L2 changed of
//! L1's modes counts for L2, too, from its next entry on. Where L1 has changed its tables and
//! flushed nothing, they count as they are now.

use super::Nesting;
use super::memory::Words;
use crate::cpu::svm::SvmCpu;
use delivery::EventKind;
use nested::exchange;
use nested::tables::{Access, Miss, Walked, walk};
use svm::Vmcb;
use svm::vmcb::exit;
use vendor::{Exit, GuestPages, Inner};

/// Bits of EXITINFO1 of a nested page fault: all accesses are user's; on the way to the very
/// address, or to a page table.
const USER: u64 = 1 << 2;
const WRITE: u64 = 1 << 1;
const FINAL: u64 = 1 << 32;
const TABLE: u64 = 1 << 33;

impl Nesting {
    /// From here on 01 has L2's registers.
    #[cold]
    #[inline(never)]
    pub(super) fn serve(&mut self, v01: &mut Vmcb, exit: Exit) -> Inner {
        self.served = Some(self.inner.cr2);
        exchange(self.inner, v01);
        Inner::Own(exit)
    }

    /// What L2's TSC is ahead of the core's by, while 01 has L2's registers.
    pub fn served_tsc_offset(&self) -> Option<u64> {
        self.served.map(|_| self.inner.tsc_offset)
    }

    /// By L1's nested tables, while 01 has L2's registers. L1's own are in 02 then.
    fn walk_served(
        &self,
        memory: &dyn GuestPages,
        address: u64,
        write: bool,
    ) -> Result<Walked, Miss> {
        let (cr3, access) =
            (self.nest.control().nested_cr3(), Access { write, ..Access::default() });
        walk(&mut Words(memory), cr3 & !0xFFF, address, access, self.rules(self.inner))
    }

    /// Takes back the exception that L2 was to have, if L1 intercepts it: its exit code.
    pub(super) fn intercepted(&mut self) -> Option<u32> {
        let event = svm::pending(self.inner)?;
        let code = exit::EXCEPTION_BASE + u32::from(event.vector);
        if event.kind != EventKind::Exception || !self.nest.control().has(code) {
            return None;
        }
        self.inner.event_inj = 0;
        // Only that of #PF counts.
        self.inner.exit_info2 = self.inner.cr2;
        self.inner.exit_info1 = event.error_code.unwrap_or(0).into();
        Some(code)
    }

    /// What L1 is told after all: its exit code.
    fn told_instead(&mut self, cr2: u64) -> Option<u32> {
        if let Some(code) = self.told_of_apic() {
            return Some(code);
        }
        if let Some((info, address)) = self.lacks.take() {
            (self.inner.exit_info1, self.inner.exit_info2) = (info, address);
            self.missed = Some((self.nest.control().nested_cr3() & !0xFFF, address));
            return Some(exit::NPF);
        }
        let code = self.intercepted()?;
        self.inner.cr2 = cr2;
        Some(code)
    }
}

impl SvmCpu {
    /// Is it L2 whose registers 01 has?
    #[inline]
    pub(in crate::cpu::svm) fn serves(&self) -> bool {
        self.nesting.as_deref().is_some_and(|nesting| nesting.served.is_some())
    }

    /// Each has its own registers again, and L1 is told what it is to be.
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn end_serving(&mut self, memory: &dyn GuestPages) {
        let v01 = &mut *self.vcpu.vmcb;
        let Some(nesting) = self.nesting.as_deref_mut() else { return };
        let Some(cr2) = nesting.served.take() else { return };
        exchange(nesting.inner, v01);
        nesting.nest.follow(nesting.inner, v01);
        nesting.follow_inner_apic(v01);
        nesting.merge_maps(v01, memory);
        if v01.tlb_control != 0 {
            // It was L2 that wrote CR0 or EFER.
            nesting.flush();
        }
        nesting.keep_inner_priority();
        if let Some(code) = nesting.told_instead(cr2) {
            self.tell_late(code, None);
        }
    }

    /// Where an address of L2's is in L1's memory.
    pub(in crate::cpu::svm) fn address_of_l2(
        &self,
        memory: &dyn GuestPages,
        address: u64,
        write: bool,
    ) -> Option<u64> {
        let nesting = self.nesting.as_deref()?;
        if !nesting.nest.control().nested_paging() {
            return Some(address);
        }
        if let Some(at) = nesting.apic_served_at(address) {
            return Some(at);
        }
        nesting.walk_served(memory, address, write).ok().map(|walked| walked.gpa)
    }

    /// It isn't there. If L1 has just changed it, L2 tries again.
    #[cold]
    pub(in crate::cpu::svm) fn miss_of_l2(
        &mut self,
        memory: &dyn GuestPages,
        address: u64,
        write: bool,
        table: bool,
    ) {
        let Some(nesting) = self.nesting.as_deref_mut() else { return };
        let info = USER | if write { WRITE } else { 0 } | if table { TABLE } else { FINAL };
        let miss = nesting.walk_served(memory, address, write).err();
        nesting.lacks = miss.and_then(|miss| miss.told(info)).map(|info| (info, address));
    }

    /// The CPU may know of L1's tables what they no longer are.
    #[cold]
    pub(in crate::cpu::svm) fn forget_tables_of_l2(&mut self) {
        if let Some(nesting) = self.nesting.as_deref_mut() {
            nesting.forget_tables();
            nesting.flush();
        }
    }
}
