//! L2's local APIC, where L1 has it accelerated (AVIC): the host does what the CPU would, by an
//! exit that L1 isn't told.
//!
//! Guarantees: what L1, or a core of its, has put into the backing page before L2 is entered, or
//! while it rings the doorbell, is offered to L2 as its priorities let it; none is lost between
//! two exits, nor taken twice. Only registers in this page are reached.

use super::Nesting;
use super::inner_apic::{InnerApic, beside};
use super::instructions::CR8;
use super::memory::ApicMemory;
use crate::cpu::svm::SvmCpu;
use nested::Illegal;
use nested::avic::{self, Access, Avic, Waiting};
use nested::tables::Page;
use svm::Vmcb;
use svm::vmcb::int_ctl;
use vendor::{ApicAnswer, GuestPages};

/// Where an access by L2 to its registers in memory is served, wherever L1 has them.
const SERVED_AT: u64 = 0xFEE0_0000;
const PAGE: u64 = 4096;
/// The words of a map of MSRs that have an x2APIC's registers.
const X2APIC_WORDS: core::ops::Range<usize> = 0x800 * 2 / 64..0x900 * 2 / 64;
const X2APIC: core::ops::Range<u32> = 0x800..0x900;
/// By which L2 completes interrupts.
pub(super) const EOI_MSR: u32 = 0x80B;

impl Nesting {
    /// VMRUN, by a block that was checked. True: what is known of L1's tables has the registers
    /// where they no longer are, or not where they are.
    #[inline(always)]
    pub(super) fn begin_apic(
        &mut self,
        v01: &Vmcb,
        memory: &dyn GuestPages,
    ) -> Result<bool, Illegal> {
        if !self.nest.control().is_avic() && self.apic.is_none() {
            return Ok(false);
        }
        self.change_apic(v01, memory)
    }

    #[cold]
    #[inline(never)]
    fn change_apic(&mut self, v01: &Vmcb, memory: &dyn GuestPages) -> Result<bool, Illegal> {
        let wanted = self.nest.control().avic();
        if wanted.is_some() {
            self.nest.control().follow_avic(self.inner, v01);
        }
        let bar = |avic: &Avic| avic.bar;
        let before = self.apic.as_ref().and_then(|apic| apic.avic.bar);
        self.apic = match wanted {
            None => None,
            Some(avic) => {
                let page = memory.page(avic.page).ok_or(Illegal::Avic(avic.page))?;
                let page = ApicMemory(page);
                let completes = self.posts.is_some()
                    && self.nest.control().lets_write(EOI_MSR, &self.maps(memory));
                Some(InnerApic { avic, page, offered: None, told: None, completes })
            }
        };
        let moved = before != wanted.as_ref().and_then(bar);
        if moved {
            self.inner.tlb_control = 1;
        }
        Ok(moved)
    }

    /// 02 follows 01 anew.
    pub(super) fn follow_inner_apic(&mut self, v01: &Vmcb) {
        if self.apic.is_some() {
            self.nest.control().follow_avic(self.inner, v01);
        }
    }

    /// Has L2 a local APIC of its own?
    #[inline]
    pub fn has_inner_apic(&self) -> bool {
        self.apic.is_some()
    }

    /// Before an entry: offers what waits.
    #[cold]
    #[inline(never)]
    pub fn offer_to_inner(&mut self) {
        // It wasn't entered with the last one.
        self.withdraw_from_inner();
        if self.take_itself() {
            return;
        }
        let Some(apic) = &mut self.apic else { return };
        let waiting = avic::offer(&apic.page);
        let priority = u64::from(avic::task_priority(&apic.page));
        let mut offer = 0;
        if let Waiting::Offered(vector) = waiting {
            apic.offered = Some(vector);
            let (class, vector) = (u64::from(vector >> 4), u64::from(vector));
            offer =
                int_ctl::V_IRQ | class << int_ctl::PRIORITY_SHIFT | vector << int_ctl::VECTOR_SHIFT;
        }
        let kept = self.inner.int_ctl & !(int_ctl::OFFER | int_ctl::V_TPR);
        self.inner.int_ctl = kept | offer | priority;
        // What is held comes when CR8 lets it, and an emulated CPU aborts: see `svm::emulator`.
        if waiting == Waiting::Held || self.features.emulated && offer != 0 {
            self.inner.intercept_cr_write |= CR8;
        }
    }

    /// What was offered waits again: L2 wasn't entered.
    pub(super) fn withdraw_from_inner(&mut self) {
        if let Some(apic) = &mut self.apic
            && let Some(vector) = apic.offered.take()
        {
            avic::post(&apic.page, vector);
        }
    }

    /// After an exit: what was offered may have been taken. Did L2 take its interrupts itself?
    #[cold]
    #[inline(never)]
    pub(super) fn note_inner_apic(&mut self) -> bool {
        if self.end_taking() {
            self.show_priority();
            self.nest.control().leave_avic(self.inner);
            return true;
        }
        let Some(apic) = &mut self.apic else { return false };
        avic::set_task_priority(&apic.page, self.inner.int_ctl as u8 & 0xF);
        let is_taken = self.inner.int_ctl & int_ctl::V_IRQ == 0;
        match apic.offered.take() {
            Some(vector) if is_taken => avic::accept(&apic.page, vector),
            Some(vector) => avic::post(&apic.page, vector),
            None => {}
        }
        self.nest.control().leave_avic(self.inner);
        false
    }

    /// Is this physical address of L2's in the registers that L2 has in memory?
    #[inline]
    pub(super) fn is_inner_apic(&self, gpa: u64) -> bool {
        let bar = self.apic.as_ref().and_then(|apic| apic.avic.bar);
        bar == Some(gpa & !(PAGE - 1))
    }

    /// A page of L2's for this address, without the registers.
    pub(super) fn beside_inner_apic(&self, address: u64, page: Page) -> Page {
        beside(self.apic.as_ref().and_then(InnerApic::bar), address, page)
    }

    /// Where an access to them is served.
    #[inline]
    pub(super) fn apic_served_at(&self, gpa: u64) -> Option<u64> {
        let is_there = self.apic.is_some() && self.is_inner_apic(gpa);
        is_there.then_some(SERVED_AT | gpa & (PAGE - 1))
    }

    /// Is this an MSR of L2's local APIC, which isn't L1's own? Where L2 has the registers in
    /// memory it has none of these.
    pub(super) fn is_inner_register(&self, msr: u32) -> bool {
        X2APIC.contains(&msr) && self.apic.is_some()
    }

    /// Closes them in L2's map, if it was merged of L1's own that are open.
    pub(super) fn close_registers(&mut self) {
        if self.apic.is_some()
            && let Some(words) = self.msrs.get_mut(X2APIC_WORDS)
        {
            words.fill(u64::MAX);
        }
    }

    /// 02 has the task priority of the backing page. False: there is none.
    fn show_priority(&mut self) -> bool {
        if let Some(apic) = &self.apic {
            self.inner.int_ctl &= !int_ctl::V_TPR;
            self.inner.int_ctl |= u64::from(avic::task_priority(&apic.page));
        }
        self.apic.is_some()
    }

    /// L2 was served: its task priority is in the block, too, if L1 is told next.
    pub(super) fn keep_inner_priority(&mut self) {
        if self.show_priority() {
            self.nest.keep_priority(self.inner);
        }
    }

    /// Is L1 told of L2's local APIC?
    pub fn tells_of_apic(&self) -> bool {
        self.apic.as_ref().is_some_and(|apic| apic.told.is_some())
    }

    /// What L1 is told of L2's local APIC, if it is: EXITINFO1 and EXITINFO2 are in 02.
    pub(super) fn told_of_apic(&mut self) -> Option<u32> {
        let (code, info1, info2) = self.apic.as_mut()?.told.take()?;
        (self.inner.exit_info1, self.inner.exit_info2) = (info1, info2);
        Some(code)
    }
}

impl SvmCpu {
    /// While L2 is served: it accesses this register.
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn access_inner_apic(
        &mut self,
        register: u8,
        write: Option<u64>,
        by_page: bool,
    ) -> Option<ApicAnswer> {
        let nesting = self.nesting.as_deref_mut()?;
        // What L2 is to see of it.
        nesting.adopt_in_service();
        let apic = nesting.apic.as_mut()?;
        if apic.avic.bar.is_some() != by_page {
            return if by_page { None } else { Some(ApicAnswer::Refused) };
        }
        let access = match write {
            Some(value) => avic::write(&apic.page, register, value, by_page),
            None => avic::read(&apic.page, register, by_page),
        };
        Some(match access {
            Access::Value(value) => ApicAnswer::Value(value),
            Access::Done => ApicAnswer::Done,
            Access::Refused => ApicAnswer::Refused,
            Access::Trap(told) => {
                apic.told = Some(told);
                ApicAnswer::Done
            }
            Access::Fault(told) => {
                apic.told = Some(told);
                ApicAnswer::Undone
            }
        })
    }

    /// Likewise: L2 writes CR8, on an emulated CPU. False: its task priority is L1's own.
    pub(in crate::cpu::svm) fn set_inner_priority(&mut self, priority: u8) -> bool {
        let Some(nesting) = self.nesting.as_deref_mut() else { return false };
        if let Some(apic) = &nesting.apic {
            avic::set_task_priority(&apic.page, priority >> 4);
        } else if !nesting.nest.control().masks_interrupts() {
            return false;
        }
        nesting.inner.int_ctl &= !int_ctl::V_TPR;
        nesting.inner.int_ctl |= u64::from(priority >> 4);
        nesting.nest.keep_priority(nesting.inner);
        true
    }
}
