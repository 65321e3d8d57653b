//! The state of the processor in the control block: what the rest of the hypervisor reads of it and
//! changes in it, as the CPU itself would.

use crate::Vcpu;
use crate::events;
use crate::vmcb::Vmcb;
use decode::Mode;
use delivery::Event;
use paging::walk::Paging;

/// EFER: SVM is on. VMRUN wants it set; the guest doesn't see it.
pub const EFER_SVME: u64 = 1 << 12;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const CR0_PG: u64 = 1 << 31;
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_RF: u64 = 1 << 16;
/// DR6: a single step.
const SINGLE_STEP: u64 = 1 << 14;
const DEBUG: u8 = 1;
/// Attributes of a code segment: 64-bit code, 32-bit code.
const LONG: u16 = 1 << 9;
const DEFAULT_32: u16 = 1 << 10;

impl Vmcb {
    /// Is the guest in long mode?
    #[inline]
    pub fn long_mode(&self) -> bool {
        self.efer & EFER_LMA != 0
    }

    /// Is the code 64 bits wide?
    #[inline]
    fn code_is_long(&self) -> bool {
        self.cs.attributes & LONG != 0 && self.long_mode()
    }

    /// The width code runs at.
    #[inline]
    pub fn code_mode(&self) -> Mode {
        if self.code_is_long() {
            Mode::Bits64
        } else if self.cs.attributes & DEFAULT_32 != 0 {
            Mode::Bits32
        } else {
            Mode::Bits16
        }
    }

    /// The end of an instruction, as the CPU would have it (APM vol. 2, 13.1.4): the guest goes on
    /// at `next`, unless what the instruction did raises an event first.
    #[inline]
    pub fn advance(&mut self, next: u64) {
        self.rip = if self.code_is_long() { next } else { next & 0xFFFF_FFFF };
        self.interrupt_shadow &= !1;
        if self.rflags & (RFLAGS_RF | RFLAGS_TF) != 0 {
            self.end_traced();
        }
    }

    /// The rest of it, where the guest is debugged.
    #[cold]
    fn end_traced(&mut self) {
        self.rflags &= !RFLAGS_RF;
        if self.rflags & RFLAGS_TF != 0 && !events::injects(self) {
            self.dr6 |= SINGLE_STEP;
            self.event_inj = events::injected(Event::exception(DEBUG, None));
        }
    }

    /// Sets EFER, but for LMA, as the guest wrote it. True: cached translations may be other ones
    /// now.
    pub fn set_efer(&mut self, value: u64) -> bool {
        let before = self.efer;
        self.efer = value & !EFER_LMA | before & EFER_LMA | EFER_SVME;
        self.efer != before
    }

    /// CS.L, whatever the mode.
    pub fn cs_long(&self) -> bool {
        self.cs.attributes & LONG != 0
    }

    /// Sets CR0, which may begin or end long mode.
    pub fn set_cr0(&mut self, value: u64) {
        let long = self.efer & EFER_LME != 0 && value & CR0_PG != 0;
        self.cr0 = value;
        self.efer = self.efer & !EFER_LMA | if long { EFER_LMA } else { 0 };
    }

    /// The registers that a walk of the guest's page tables needs.
    #[inline]
    pub fn paging(&self) -> Paging {
        let efer = self.efer & !EFER_SVME;
        Paging { cr0: self.cr0, cr3: self.cr3, cr4: self.cr4, efer, pointers: None }
    }

    /// Does the guest let interrupts in?
    pub fn interrupts_enabled(&self) -> bool {
        self.rflags & RFLAGS_IF != 0
    }
}

impl Vcpu {
    /// After an exit for an instruction: the address of the next one, if the CPU tells it.
    #[inline]
    pub fn next_rip(&self) -> Option<u64> {
        self.features.next_rip.then_some(self.vmcb.next_rip)
    }

    /// After a nested page fault of a load or store: the bytes of the instruction, if the CPU tells
    /// them.
    pub fn instruction_bytes(&self) -> Option<&[u8]> {
        let length = usize::from(self.vmcb.bytes_fetched & 15);
        let bytes = self.vmcb.instruction.get(..length)?;
        (self.features.decode_assists && length != 0).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    fn at(rip: u64, efer: u64, attributes: u16) -> Box<Vmcb> {
        let mut v = Box::new(Vmcb::new_zeroed());
        (v.rip, v.efer, v.cs.attributes) = (rip, efer, attributes);
        v
    }

    #[test]
    fn the_code_segment_decides_in_long_mode_alone() {
        let mode = |efer, attributes| at(0, efer, attributes).code_mode();
        assert_eq!(mode(EFER_LMA, LONG), Mode::Bits64);
        assert_eq!(mode(EFER_LMA, DEFAULT_32), Mode::Bits32);
        assert_eq!(mode(EFER_LMA, 0), Mode::Bits16);
        assert_eq!(mode(EFER_LME, LONG), Mode::Bits16);
        assert_eq!(mode(0, DEFAULT_32), Mode::Bits32);
    }

    #[test]
    fn interrupts_come_in_by_if_alone() {
        let mut v = at(0, 0, 0);
        for (flags, enabled) in [(0, false), (0x200, true), (!0x200, false), (u64::MAX, true)] {
            v.rflags = flags;
            assert_eq!(v.interrupts_enabled(), enabled, "{flags:#x}");
        }
    }

    #[test]
    fn rip_is_as_wide_as_the_code() {
        const END: u64 = 0xFFFF_FFFE;
        for (efer, attributes, rip) in [
            (EFER_LMA, LONG, 0x1_0000_0001),
            (EFER_LMA, DEFAULT_32, 1),
            (0, DEFAULT_32, 1),
            (0, 0, 1),
        ] {
            let mut v = at(END, efer, attributes);
            v.advance(END + 3);
            assert_eq!(v.rip, rip, "{efer:#x} {attributes:#x}");
        }
    }

    #[test]
    fn an_instruction_ends_its_shadow_and_traps() {
        let mut v = at(0, EFER_LMA, LONG);
        (v.interrupt_shadow, v.rflags, v.dr6) = (0b11, RFLAGS_RF | 2, 0xFFFF_0FF0);
        v.advance(2);
        assert_eq!((v.interrupt_shadow, v.rflags), (0b10, 2));
        assert_eq!((v.event_inj, v.dr6), (0, 0xFFFF_0FF0));
        v.rflags |= RFLAGS_TF;
        v.advance(4);
        assert_eq!((v.event_inj, v.dr6), (0x8000_0301, 0xFFFF_4FF0));
        // An exception of the instruction's own goes first.
        (v.event_inj, v.dr6) = (0x8000_0B0D, 0);
        v.advance(6);
        assert_eq!((v.event_inj, v.dr6), (0x8000_0B0D, 0));
    }

    #[test]
    fn a_change_of_efer_flushes() {
        let mut v = at(0, EFER_SVME, 0);
        assert!(!v.set_efer(0), "none");
        assert!(v.set_efer(1 << 11), "NXE");
        assert!(!v.set_efer(1 << 11));
        assert!(v.set_efer(1 << 11 | EFER_LME));
        assert_eq!(v.efer, 1 << 11 | EFER_LME | EFER_SVME);
        assert!(!v.set_efer(1 << 11 | EFER_LME | EFER_LMA), "LMA is CR0's");
        assert!(!v.long_mode());
    }

    #[test]
    fn paging_begins_and_ends_long_mode() {
        let mut v = at(0, EFER_SVME | EFER_LME, 0);
        v.set_cr0(CR0_PG | 1);
        assert!(v.long_mode());
        v.set_cr0(1);
        assert!(!v.long_mode());
        v.efer = EFER_SVME;
        v.set_cr0(CR0_PG | 1);
        assert!(!v.long_mode());
        assert_eq!(v.paging().efer, 0, "SVME isn't the guest's");
        assert!(!v.cs_long());
        v.cs.attributes = LONG;
        assert!(v.cs_long() && v.code_mode() == Mode::Bits16, "outside of long mode, too");
    }

    proptest! {
        #[test]
        fn advancing_touches_flags_alone(rip: u64, next: u64, flags: u64) {
            let mut v = at(rip, EFER_LMA, LONG);
            v.rflags = flags;
            v.advance(next);
            prop_assert_eq!(v.rip, next);
            prop_assert_eq!(v.rflags, flags & !RFLAGS_RF);
        }
    }
}
