//! The guest's state (SDM vol. 3, 27.3.1), but for its segments.

use super::{Look, Refusal};
use crate::controls::{entry, pin, secondary};
use crate::{Area, Delivered, Kind, field};

const PE: u64 = 1 << 0;
const WP: u64 = 1 << 16;
const PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_PCIDE: u64 = 1 << 17;
const CR4_CET: u64 = 1 << 23;
/// SCE, LME, LMA, NXE.
const EFER: u64 = 1 | LME | LMA | 1 << 11;
const LME: u64 = 1 << 8;
const LMA: u64 = 1 << 10;
/// LBR, BTF, and what traces and counts.
const DEBUGCTL: u64 = 0xFFC3;
const BTF: u64 = 1 << 1;
const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const VM: u64 = 1 << 17;
const RFLAGS_RESERVED: u64 = !0x3F_7FD7;
const RFLAGS_ONE: u64 = 1 << 1;

/// Five levels aren't offered.
const LINEAR_BITS: u32 = 48;

const BY_STI: u64 = 1 << 0;
const BY_MOV_SS: u64 = 1 << 1;
const BY_SMI: u64 = 1 << 2;
const BY_NMI: u64 = 1 << 3;
const INTERRUPTIBILITY: u64 = BY_STI | BY_MOV_SS | BY_SMI | BY_NMI;

const ACTIVE: u64 = 0;
const HLT: u64 = 1;

/// Breakpoints, one that is enabled, a single step.
const PENDING_DEBUG: u64 = 0xF | 1 << 12 | SINGLE_STEP;
const SINGLE_STEP: u64 = 1 << 14;

impl<A: Area> Look<'_, A> {
    pub(super) fn guest(&self) -> Result<(), Refusal> {
        let long_mode = self.at_entry(entry::LONG_MODE);
        self.control_registers(long_mode)?;
        self.registers(long_mode)?;
        let flags = self.get(field::GUEST_RFLAGS);
        self.segments(long_mode, flags & VM != 0)?;
        let rip = self.get(field::GUEST_RIP);
        if long_mode && self.code_is_long() {
            // The highest bit of a linear address is free: a jump there faults by itself.
            let same = matches!(rip >> LINEAR_BITS, 0 | 0xFFFF);
            self.must(field::GUEST_RIP, "bits 63:48 must be the same", same)?;
        } else {
            self.must(field::GUEST_RIP, "must have 32 bits", rip >> 32 == 0)?;
        }
        let must = |rule, holds| self.must(field::GUEST_RFLAGS, rule, holds);
        must("reserved bits must be 0", flags & RFLAGS_RESERVED == 0)?;
        must("bit 1 must be 1", flags & RFLAGS_ONE != 0)?;
        let protected = self.get(field::GUEST_CR0) & PE != 0;
        let virtual_8086 = flags & VM != 0;
        must("must not be in virtual-8086 mode", !virtual_8086 || protected && !long_mode)?;
        let event = Delivered::pending(self.area).map(|event| event.kind);
        let raised = event == Some(Kind::Interrupt);
        must("must let in the interrupt that is raised", !raised || flags & IF != 0)?;
        self.state(flags, event)
    }

    fn control_registers(&self, long_mode: bool) -> Result<(), Refusal> {
        let can = self.capabilities;
        let unrestricted = self.secondary(secondary::UNRESTRICTED);
        let cr0 = self.get(field::GUEST_CR0);
        let free = if unrestricted { PE | PG } else { 0 };
        let must = |rule, holds| self.must(field::GUEST_CR0, rule, holds);
        must("must have what VMX wants of it", can.cr0.allows(cr0 | can.cr0.ones & free))?;
        must("must have PE with PG", cr0 & PG == 0 || cr0 & PE != 0)?;
        let cr4 = self.get(field::GUEST_CR4);
        let must4 = |rule, holds| self.must(field::GUEST_CR4, rule, holds);
        must4("must have what VMX wants of it", can.cr4.allows(cr4))?;
        must4("must have no CET without write protection", cr4 & CR4_CET == 0 || cr0 & WP != 0)?;
        must("must have PG in long mode", !long_mode || cr0 & PG != 0)?;
        must4("must have PAE in long mode", !long_mode || cr4 & CR4_PAE != 0)?;
        must4("must have no PCIDs outside long mode", long_mode || cr4 & CR4_PCIDE == 0)?;
        let cr3 = self.get(field::GUEST_CR3) & can.beyond() == 0;
        self.must(field::GUEST_CR3, "must be within the CPU's physical addresses", cr3)
    }

    /// Debug registers and MSRs.
    fn registers(&self, long_mode: bool) -> Result<(), Refusal> {
        if self.at_entry(entry::LOAD_DEBUG) {
            let defined = self.get(field::GUEST_DEBUGCTL) & !DEBUGCTL == 0;
            self.must(field::GUEST_DEBUGCTL, "reserved bits must be 0", defined)?;
            let narrow = self.get(field::GUEST_DR7) >> 32 == 0;
            self.must(field::GUEST_DR7, "must have 32 bits", narrow)?;
        }
        self.canonical(field::GUEST_SYSENTER_ESP)?;
        self.canonical(field::GUEST_SYSENTER_EIP)?;
        if self.at_entry(entry::LOAD_PAT) {
            self.pat(field::GUEST_PAT)?;
        }
        if self.at_entry(entry::LOAD_EFER) {
            let efer = self.get(field::GUEST_EFER);
            let must = |rule, holds| self.must(field::GUEST_EFER, rule, holds);
            must("reserved bits must be 0", efer & !EFER == 0)?;
            must("LMA must be what the entry is into", (efer & LMA != 0) == long_mode)?;
            let paging = self.get(field::GUEST_CR0) & PG != 0;
            let same = (efer & LMA != 0) == (efer & LME != 0);
            must("LME must be as LMA with paging", !paging || same)?;
        }
        Ok(())
    }

    /// What isn't in registers (SDM vol. 3, 27.3.1.5). `event`: what is raised.
    fn state(&self, flags: u64, event: Option<Kind>) -> Result<(), Refusal> {
        let activity = self.get(field::GUEST_ACTIVITY);
        let blocking = self.get(field::GUEST_INTERRUPTIBILITY);
        let shadow = blocking & (BY_STI | BY_MOV_SS) != 0;
        let must = |rule, holds| self.must(field::GUEST_ACTIVITY, rule, holds);
        let sleeps = activity == HLT && self.capabilities.sleeps();
        must("must be active, or asleep in HLT", activity == ACTIVE || sleeps)?;
        must("must be active behind STI and MOV SS", !shadow || activity == ACTIVE)?;
        if sleeps {
            must("must be of level 0 to sleep", self.stack_level() == 0)?;
            let wakes = event.is_none_or(|event| match event {
                Kind::Interrupt | Kind::Nmi => true,
                // #DB and #MC.
                Kind::Exception => matches!(self.get(field::ENTRY_INTERRUPTION) as u8, 1 | 18),
                _ => false,
            });
            must("must be active for what is raised", wakes)?;
        }
        let must = |rule, holds| self.must(field::GUEST_INTERRUPTIBILITY, rule, holds);
        must("reserved bits must be 0", blocking & !INTERRUPTIBILITY == 0)?;
        let both = BY_STI | BY_MOV_SS;
        must("must be behind STI or MOV SS, not both", blocking & both != both)?;
        must("must let interrupts in behind STI", blocking & BY_STI == 0 || flags & IF != 0)?;
        must(
            "must let in the interrupt that is raised",
            event != Some(Kind::Interrupt) || !shadow,
        )?;
        must("must not be in system management mode", blocking & BY_SMI == 0)?;
        let shadows = BY_STI | BY_MOV_SS;
        let kept = if self.pin(pin::VIRTUAL_NMIS) { BY_NMI } else { 0 };
        // Behind STI some CPUs take it and some don't.
        let closed = blocking & (shadows | kept) != 0;
        must("must let in the NMI that is raised", event != Some(Kind::Nmi) || !closed)?;
        let pending = self.get(field::GUEST_PENDING_DEBUG);
        let must = |rule, holds| self.must(field::GUEST_PENDING_DEBUG, rule, holds);
        must("reserved bits must be 0", pending & !PENDING_DEBUG == 0)?;
        let steps = flags & TF != 0 && self.get(field::GUEST_DEBUGCTL) & BTF == 0;
        let held = !shadow && !sleeps || (pending & SINGLE_STEP != 0) == steps;
        must("must have a step that is held back, and no other", held)?;
        let link = self.get(field::VMCS_LINK_POINTER) == u64::MAX;
        self.must(field::VMCS_LINK_POINTER, "must be all ones", link)
    }
}
