//! VMRUN of L1: 12 is copied, checked and merged with 01 into 02 (Turtles, section 3.2).
//!
//! What L1 calls clean isn't read again, if 02 has it from the same block. If L1 lies, L2 runs with
//! what was checked before.

use crate::block::{Block, CPL, CPL_WORD, copy_in};
use crate::check::{self, EFER_LMA, Illegal};
use crate::control::{FILTER, FILTER_WORD, INTERCEPTS, clean};
use crate::{Control, Offer};
use core::mem::offset_of;
use svm::vmcb::{exit, int_ctl, misc1};
use svm::{ALWAYS_EXCEPTIONS, ALWAYS_MISC1, ALWAYS_MISC2, Vmcb};

/// What every guest exits for, as words of the intercepts. 01 may let L1 do what L2 may not: set
/// the virtual GIF, say.
const ALWAYS: [u64; 3] = [0, EVENTS, ALWAYS_MISC2 as u64];
const EVENTS: u64 = ALWAYS_EXCEPTIONS as u64 | (ALWAYS_MISC1 as u64) << 32;
/// INTR, in the second of these words.
const INTR: u64 = (misc1::INTR as u64) << 32;
/// No address of a page's.
const NONE: u64 = u64::MAX;
/// All of L2's state that VMRUN may refuse.
const CHECKED: u64 = clean::NESTED | clean::CONTROL | clean::DEBUG | clean::SEGMENTS;
/// TLB_CONTROL: drop everything.
const FLUSH_ALL: u32 = 1;
/// The parts of `int_ctl` by which a virtual interrupt waits and is let in.
const VIRTUAL_INTERRUPT: u64 = PRIORITY | int_ctl::OFFER | int_ctl::IGNORES_PRIORITY;
/// What holds it back.
const PRIORITY: u64 = int_ctl::V_TPR | int_ctl::V_INTR_MASKING;

/// What 02 has of the host's, whatever L1 wants.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Its address space, which isn't that of 01.
    pub asid: u32,
    /// Its permission maps, merged by [`crate::OpenWords`].
    pub msrpm_base: u64,
    /// As above.
    pub iopm_base: u64,
}

/// Of which address spaces translations are to be forgotten (APM vol. 2, 15.16.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// None.
    Nothing,
    /// L2's.
    Space,
    /// All that L1 has.
    All,
}

/// What is to be done before L2 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of which address spaces L1 asked for a flush: what is kept of its nested tables for these
    /// is stale. What the CPU knows is flushed, too, as it is where L1 runs L2 by other tables or
    /// in another address space than it last did: 02 says so until L2 was entered.
    pub flush: Flush,
    /// L2's address space, as L1 has it.
    pub space: u32,
    /// L1's nested tables, or none: L2's physical addresses are L1's.
    pub nested_cr3: Option<u64>,
}

/// L2 of one CPU of L1's.
#[derive(Clone, Copy, Debug)]
pub struct Nest {
    control: Control,
    /// The address of the block that 02 has its state of, or [`NONE`].
    block: u64,
    /// By which L1 last ran: its address space, none is 0, and nested tables, or [`NONE`].
    space: (u32, u64),
    /// The virtual interrupt in 02 is the host's, for L1.
    has_hosts_offer: bool,
    /// L2's RIP and RSP at the last VMRUN that injected something.
    pub(crate) injected_at: (u64, u64),
}

impl Default for Nest {
    fn default() -> Self {
        let control = Control::default();
        let (block, space, injected_at) = (NONE, (0, NONE), (0, 0));
        Nest { control, block, space, has_hosts_offer: false, injected_at }
    }
}

impl Nest {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// L1's wishes, as they were at the last VMRUN.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// 02 was used for something else, or L1 started anew: nothing is known of L2.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What 02 has of the host's from the beginning. Neither L1 nor the CPU ever changes it.
    pub fn set_up(v02: &mut Vmcb, host: &Host) {
        v02.asid = host.asid;
        v02.msrpm_base = host.msrpm_base;
        v02.iopm_base = host.iopm_base;
        v02.nested_control = 1;
        for (at, always) in INTERCEPTS.into_iter().zip(ALWAYS) {
            v02.set_word(at, always);
        }
    }

    /// Makes 02, which was [set up](Self::set_up), of the block at guest-physical address
    /// `address`, whose words are `block`, and of 01. The caller sets `nested_cr3` of 02, and
    /// merges the maps.
    ///
    /// # Errors
    ///
    /// Why VMRUN refuses it. 02 isn't to be run.
    pub fn enter<B: Block>(
        &mut self,
        v02: &mut Vmcb,
        v01: &Vmcb,
        offer: &Offer,
        (address, block): (u64, &B),
    ) -> Result<Entry, Illegal> {
        let known = self.block == address;
        self.block = NONE;
        let clean = if known { block.read(offset_of!(Vmcb, clean)) } else { 0 };
        self.control.copy(block, clean, offer);
        copy_state(v02, block, clean);
        if !self.control.nested_paging() {
            // One PAT for both of them (15.25.8).
            v02.g_pat = v01.g_pat;
        } else if clean & clean::NESTED == 0 {
            v02.g_pat = block.read(offset_of!(Vmcb, g_pat));
        }
        // Where the CPU switches it, which L1 isn't told: to L1 it is an MSR like others, and L2
        // starts with its value.
        v02.spec_ctrl = v01.spec_ctrl;
        check::control(&mut self.control, offer)?;
        // What is clean was right, and what the CPU made of it is, too.
        if clean & CHECKED != CHECKED {
            check::state(v02, self.control.nested_paging(), offer)?;
        }
        let lma = if check::is_long(v02) { EFER_LMA } else { 0 };
        v02.efer = v02.efer & !EFER_LMA | lma;
        self.has_hosts_offer =
            !self.control.masks_interrupts() && v01.int_ctl & int_ctl::V_IRQ != 0;
        self.merge(v02, v01);

        self.block = address;
        let control = &self.control;
        let nested_cr3 = control.nested_paging().then_some(control.nested_cr3 & !0xFFF);
        let space = (control.asid, nested_cr3.unwrap_or(NONE));
        let other = self.space.0 != space.0 || self.space.1 != space.1;
        self.space = space;
        let flush = match control.tlb_control {
            0 => Flush::Nothing,
            // With global pages or without: of physical addresses there are none.
            3 | 7 => Flush::Space,
            _ => Flush::All,
        };
        if other || flush != Flush::Nothing {
            // Taken back by the entry alone, which may be long after: until then frames of tables
            // that were given up are those of others, and the CPU may know them as they were.
            v02.tlb_control = FLUSH_ALL;
        }
        Ok(Entry { flush, space: space.0, nested_cr3 })
    }

    /// The control area of 02.
    #[inline(always)]
    fn merge(&mut self, v02: &mut Vmcb, v01: &Vmcb) {
        let c = &self.control;
        let [registers, _, instructions] = INTERCEPTS;
        v02.set_word(registers, v01.word(registers) | c.intercepts[0]);
        // 01 has no others of these.
        v02.set_word(instructions, c.intercepts[2] | u64::from(c.instructions()));
        v02.other_virtualization = if c.nested_paging() { c.loads } else { 0 };
        v02.set_word(FILTER_WORD, c.filter & FILTER);
        self.follow(v02, v01);
        v02.interrupt_shadow = c.interrupt_shadow & 1;
        v02.event_inj = c.event_inj;
        if c.event_inj & check::VALID != 0 {
            // Where INT n, INT3 and INTO return to (15.20).
            v02.next_rip = c.next_rip;
            self.injected_at = (v02.rip, v02.rsp);
        }
    }

    /// What in 02 follows from 01's modes, task priority and TSC, which L2 may have changed if L1
    /// lets it.
    #[inline(always)]
    pub fn follow(&self, v02: &mut Vmcb, v01: &Vmcb) {
        let (c, events) = (&self.control, INTERCEPTS[1]);
        // Where the CPU keeps L1's flag L1 exits for interrupts, which are L2's if L1 says so.
        let kept = v01.int_ctl & int_ctl::V_GIF_ENABLE != 0;
        let own = v01.word(events) & !if kept { INTR } else { 0 };
        v02.set_word(events, own | c.intercepts[1] | EVENTS);
        v02.tsc_offset = v01.tsc_offset.wrapping_add(c.tsc_offset);
        // Without V_INTR_MASKING L2's IF and task priority are L1's: what the host has on offer to
        // L1 is on offer to L2.
        v02.int_ctl = c.int_ctl & c.flag
            | if c.masks_interrupts() {
                c.int_ctl & VIRTUAL_INTERRUPT
            } else if self.has_hosts_offer {
                v01.int_ctl & VIRTUAL_INTERRUPT
            } else {
                v01.int_ctl & PRIORITY | c.int_ctl & VIRTUAL_INTERRUPT & !PRIORITY
            };
    }

    /// After each exit of L2, before anything else: what L1 and L2 share goes back to 01, and what
    /// the CPU made of the virtual interrupt to whose it is.
    #[inline(always)]
    pub fn left(&mut self, v02: &mut Vmcb, v01: &mut Vmcb) {
        if v02.exit_code as u32 == exit::INVALID {
            // Not entered, so perhaps not flushed.
            v02.tlb_control = FLUSH_ALL;
        }
        v01.spec_ctrl = v02.spec_ctrl;
        if !self.control.nested_paging() {
            v01.g_pat = v02.g_pat;
        }
        self.keep_offer(v02, v01);
    }

    /// L2's task priority was written for it: L1 finds it in its block.
    pub fn keep_priority(&mut self, v02: &Vmcb) {
        let own = self.control.int_ctl & !int_ctl::V_TPR;
        self.control.int_ctl = own | v02.int_ctl & int_ctl::V_TPR;
    }

    fn keep_offer(&mut self, v02: &Vmcb, v01: &mut Vmcb) {
        let masks = self.control.masks_interrupts();
        let own = &mut self.control.int_ctl;
        let taken = |own: u64, changed: u64| own & !changed | v02.int_ctl & changed;
        let flag = self.control.flag & int_ctl::V_GIF;
        if masks {
            *own = taken(*own, flag | int_ctl::V_IRQ | int_ctl::V_TPR);
            return;
        }
        *own = taken(*own, flag);
        v01.int_ctl = v01.int_ctl & !int_ctl::V_TPR | v02.int_ctl & int_ctl::V_TPR;
        let offer = if self.has_hosts_offer { &mut v01.int_ctl } else { &mut self.control.int_ctl };
        *offer = *offer & !int_ctl::V_IRQ | v02.int_ctl & int_ctl::V_IRQ;
    }
}

/// The state that VMRUN loads, but for PAT.
#[inline(always)]
fn copy_state<B: Block>(v: &mut Vmcb, block: &B, clean: u64) {
    if clean & clean::SEGMENTS == 0 {
        // ES, CS, SS, DS.
        copy_in(v, block, offset_of!(Vmcb, es), 8);
        v.set_word(CPL_WORD, block.read(CPL_WORD) & CPL);
    }
    if clean & clean::TABLES == 0 {
        copy_in(v, block, offset_of!(Vmcb, gdtr), 2);
        copy_in(v, block, offset_of!(Vmcb, idtr), 2);
    }
    if clean & clean::CONTROL == 0 {
        v.efer = block.read(offset_of!(Vmcb, efer));
        // CR4, CR3, CR0.
        copy_in(v, block, offset_of!(Vmcb, cr4), 3);
    }
    if clean & clean::DEBUG == 0 {
        copy_in(v, block, offset_of!(Vmcb, dr7), 2);
    }
    if clean & clean::CR2 == 0 {
        v.cr2 = block.read(offset_of!(Vmcb, cr2));
    }
    copy_in(v, block, offset_of!(Vmcb, rflags), 2);
    v.rsp = block.read(offset_of!(Vmcb, rsp));
    v.rax = block.read(offset_of!(Vmcb, rax));
}
