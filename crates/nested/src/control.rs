//! The control area of 12: what L1 wants of the CPU while L2 runs.
//!
//! A copy, as it was at the last VMRUN: nothing of it changes while L2 runs, whatever L1's other
//! CPUs write.

use crate::Offer;
use crate::avic::Avic;
use crate::block::Block;
use crate::check::VALID;
use core::mem::offset_of;
use svm::vmcb::{int_ctl, misc1, misc2};
use svm::{ALWAYS_MISC2, Vmcb};

/// The groups of fields that L1 may say are unchanged (APM vol. 2, 15.15.3).
pub(crate) mod clean {
    /// Intercepts, the offset of the TSC, the pause filter.
    pub const INTERCEPTS: u64 = 1 << 0;
    /// The permission maps' addresses.
    pub const MAPS: u64 = 1 << 1;
    /// The address space.
    pub const ASID: u64 = 1 << 2;
    /// Nested paging and its PAT.
    pub const NESTED: u64 = 1 << 4;
    /// CR0, CR3, CR4, EFER.
    pub const CONTROL: u64 = 1 << 5;
    /// DR6, DR7.
    pub const DEBUG: u64 = 1 << 6;
    /// GDTR, IDTR.
    pub const TABLES: u64 = 1 << 7;
    /// CS, DS, SS, ES and CPL.
    pub const SEGMENTS: u64 = 1 << 8;
    /// CR2.
    pub const CR2: u64 = 1 << 9;
}

const RFLAGS_IF: u64 = 1 << 9;
/// The bits of an address in the fields of AVIC.
const AVIC_PAGE: u64 = 0x000F_FFFF_FFFF_F000;
/// Bit 0 of `nested_control`.
const NESTED_PAGING: u64 = 1;
/// Where the words of the intercepts are: registers, events, instructions.
pub(crate) const INTERCEPTS: [usize; 3] = [
    offset_of!(Vmcb, intercept_cr_read),
    offset_of!(Vmcb, intercept_exceptions),
    offset_of!(Vmcb, intercept_misc2),
];
/// The word of the pause filter's two halves.
pub(crate) const FILTER_WORD: usize = offset_of!(Vmcb, pause_filter_threshold) & !7;
pub(crate) const FILTER: u64 = 0xFFFF_FFFF << 32;

/// L1's wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub(crate) intercepts: [u64; 3],
    pub(crate) filter: u64,
    pub(crate) iopm_base: u64,
    pub(crate) msrpm_base: u64,
    /// These two were checked.
    pub(crate) has_right_maps: bool,
    pub(crate) tsc_offset: u64,
    pub(crate) asid: u32,
    pub(crate) tlb_control: u8,
    pub(crate) int_ctl: u64,
    /// Of `int_ctl`: the virtual GIF, if L1 may use it.
    pub(crate) flag: u64,
    /// VMLOAD and VMSAVE by the CPU, if L1 uses it.
    pub(crate) loads: u64,
    pub(crate) interrupt_shadow: u64,
    pub(crate) nested_control: u64,
    pub(crate) event_inj: u64,
    pub(crate) next_rip: u64,
    pub(crate) nested_cr3: u64,
    /// Of `int_ctl`: AVIC and x2AVIC, if L1 uses it.
    pub(crate) avic: u64,
    /// Where L2 has its registers by it, and the backing page.
    pub(crate) avic_pages: [u64; 2],
}

impl Control {
    /// Copies what isn't `clean`.
    #[inline(always)]
    pub(crate) fn copy<B: Block>(&mut self, block: &B, clean: u64, offer: &Offer) {
        if clean & clean::INTERCEPTS == 0 {
            self.intercepts = INTERCEPTS.map(|at| block.read(at));
            self.filter = block.read(FILTER_WORD);
            self.tsc_offset = block.read(offset_of!(Vmcb, tsc_offset));
        }
        if clean & clean::MAPS == 0 {
            let ports = block.read(offset_of!(Vmcb, iopm_base));
            let msrs = block.read(offset_of!(Vmcb, msrpm_base));
            if self.iopm_base != ports || self.msrpm_base != msrs {
                (self.iopm_base, self.msrpm_base, self.has_right_maps) = (ports, msrs, false);
            }
        }
        let space = block.read(offset_of!(Vmcb, asid));
        if clean & clean::ASID == 0 {
            self.asid = space as u32;
        }
        self.tlb_control = (space >> 32) as u8;
        if clean & clean::NESTED == 0 {
            self.nested_control = block.read(offset_of!(Vmcb, nested_control));
            self.nested_cr3 = block.read(offset_of!(Vmcb, nested_cr3));
        }
        // The CPU changes these itself, so that no VMM calls them clean.
        self.int_ctl = block.read(offset_of!(Vmcb, int_ctl));
        self.flag = offer.flag;
        self.avic = self.int_ctl & offer.avic;
        if self.is_avic() {
            self.copy_avic(block);
        }
        self.loads = block.read(offset_of!(Vmcb, other_virtualization)) & offer.loads;
        self.interrupt_shadow = block.read(offset_of!(Vmcb, interrupt_shadow));
        self.event_inj = block.read(offset_of!(Vmcb, event_inj));
        if self.event_inj & VALID != 0 {
            self.next_rip = block.read(offset_of!(Vmcb, next_rip));
        }
    }

    #[cold]
    #[inline(never)]
    fn copy_avic<B: Block>(&mut self, block: &B) {
        // L2's interrupts are its own then, whatever else L1 says.
        self.int_ctl |= int_ctl::V_INTR_MASKING;
        let places = [offset_of!(Vmcb, avic_bar), offset_of!(Vmcb, avic_backing_page)];
        self.avic_pages = places.map(|at| block.read(at) & AVIC_PAGE);
    }

    /// 02 as AVIC wants it, after [`Nest::enter`](crate::Nest::enter) and
    /// [`Nest::follow`](crate::Nest::follow): what waits is in the backing page, and whoever enters
    /// offers it; L1 never hears that one could be taken.
    pub fn follow_avic(&self, v02: &mut Vmcb, v01: &Vmcb) {
        v02.int_ctl = self.int_ctl & (self.flag | int_ctl::V_TPR) | int_ctl::V_INTR_MASKING;
        v02.intercept_misc1 &= !misc1::VINTR | v01.intercept_misc1;
    }

    /// What the host has on offer to L2 by AVIC isn't L1's: before
    /// [`Nest::left`](crate::Nest::left).
    pub fn leave_avic(&self, v02: &mut Vmcb) {
        v02.int_ctl = v02.int_ctl & !int_ctl::V_IRQ | self.int_ctl & int_ctl::V_IRQ;
    }

    /// Is VMRUN intercepted?
    pub(crate) fn keeps_vmrun(&self) -> bool {
        self.intercepts[2] as u32 & misc2::VMRUN != 0
    }

    /// Does L1 have L2's physical addresses translated?
    pub fn nested_paging(&self) -> bool {
        self.nested_control & NESTED_PAGING != 0
    }

    /// The intercepts of word 4 that L2 has whatever L1 wants: those of CLGI and STGI but where the
    /// CPU keeps a flag for L2, those of VMLOAD and VMSAVE but where it translates for them, which
    /// it does by the nested tables.
    #[inline(always)]
    pub(crate) fn instructions(&self) -> u32 {
        let kept = self.int_ctl & self.flag & int_ctl::V_GIF_ENABLE != 0;
        let loads = self.loads != 0 && self.nested_paging();
        let open = |yes, intercepts: u32| if yes { intercepts } else { 0 };
        let flag = open(kept, misc2::CLGI | misc2::STGI);
        ALWAYS_MISC2 & !(flag | open(loads, misc2::VMLOAD | misc2::VMSAVE))
    }

    /// The root of the tables by which L1 translates L2's physical addresses.
    pub fn nested_cr3(&self) -> u64 {
        self.nested_cr3
    }

    /// Where those are, and L2's address space.
    pub fn tables(&self) -> (u64, u32) {
        (self.nested_cr3 & !0xFFF, self.asid)
    }

    /// The debug registers of which L1 intercepts writes, a bit each.
    pub fn dr_writes(&self) -> u16 {
        (self.intercepts[0] >> 48) as u16
    }

    /// The guest-physical addresses of L1's permission maps: of MSRs, of ports.
    pub fn maps(&self) -> (u64, u64) {
        (self.msrpm_base & !0xFFF, self.iopm_base & !0xFFF)
    }

    /// Does a physical interrupt of L1's wait, where it would leave L2? With V_INTR_MASKING it is
    /// L1's IF that lets it, else L2's (15.21.1).
    pub fn holds_interrupts(&self, v01: &Vmcb, v02: &Vmcb) -> bool {
        let flags = if self.masks_interrupts() { v01.rflags } else { v02.rflags };
        flags & RFLAGS_IF == 0
    }

    /// Are L2's IF and task priority its own, and none of L1's?
    pub fn masks_interrupts(&self) -> bool {
        self.int_ctl & int_ctl::V_INTR_MASKING != 0
    }

    /// L2's local APIC, if L1 has it accelerated.
    #[inline]
    pub fn avic(&self) -> Option<Avic> {
        let ([bar, page], x2apic) = (self.avic_pages, self.avic & int_ctl::X2AVIC != 0);
        self.is_avic().then_some(Avic { page, bar: (!x2apic).then_some(bar) })
    }

    /// Has L1 L2's local APIC accelerated?
    #[inline(always)]
    pub fn is_avic(&self) -> bool {
        self.avic & int_ctl::AVIC != 0
    }
}
