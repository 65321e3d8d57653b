//! What a CPU's VMX can, by its capability MSRs (SDM vol. 3, appendix A), and what of it Exitless
//! needs.
//!
//! Guarantees: [`Capabilities::suffice`] says yes only if all of [`NEEDED`] and [`AT_TIMES`] can be
//! set, nothing of [`OPEN`] is set for good, and nested paging and its flushes are as
//! `crates/paging` writes tables. Else it names the first that is lacking.
//!
//! [`NEEDED`]: crate::Controls::NEEDED
//! [`AT_TIMES`]: crate::Controls::AT_TIMES
//! [`OPEN`]: crate::Controls::OPEN

use crate::controls::{entry, exit, pin, primary, secondary};
use core::fmt;

const BASIC: u32 = 0x480;
const PIN: u32 = 0x481;
const PRIMARY: u32 = 0x482;
const EXIT: u32 = 0x483;
const ENTRY: u32 = 0x484;
const MISC: u32 = 0x485;
const CR0_FIXED: [u32; 2] = [0x486, 0x487];
const CR4_FIXED: [u32; 2] = [0x488, 0x489];
const SECONDARY: u32 = 0x48B;
const EPT_VPID: u32 = 0x48C;
/// The same four words, without bits that are set for old software's sake.
const TRUE: [u32; 4] = [0x48D, 0x48E, 0x48F, 0x490];

/// What bits of a word may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    must_be_one: u32,
    may_be_one: u32,
}

impl Range {
    /// As a capability MSR has it: in the low half what must be 1, in the high half what may be.
    pub const fn new(msr: u64) -> Range {
        Range { must_be_one: msr as u32, may_be_one: (msr >> 32) as u32 }
    }

    /// The bits that may be 1.
    pub const fn may_be_one(self) -> u32 {
        self.may_be_one
    }

    /// The bits that can't be 0.
    pub const fn must_be_one(self) -> u32 {
        self.must_be_one
    }

    /// These bits, and those that can't be 0.
    pub const fn with(self, bits: u32) -> u32 {
        bits | self.must_be_one
    }

    /// Is the word allowed?
    pub const fn allows(self, word: u32) -> bool {
        word & self.must_be_one == self.must_be_one && word & !self.may_be_one == 0
    }
}

/// What bits of a control register must and may be while VMX is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Must be 1.
    pub ones: u64,
    /// May be 1.
    pub may: u64,
}

impl Fixed {
    /// Is the value allowed?
    pub const fn allows(self, value: u64) -> bool {
        value & self.ones == self.ones && value & !self.may == 0
    }
}

/// What a CPU's VMX can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What the first word of the regions of VMXON and of a control structure has to be.
    pub revision: u32,
    /// Controls, pin-based.
    pub pin: Range,
    /// Processor-based, the first word.
    pub primary: Range,
    /// The second word; none without [`primary::SECONDARY`].
    pub secondary: Range,
    /// At an exit.
    pub exit: Range,
    /// At an entry.
    pub entry: Range,
    /// CR0; of a guest's, PE and PG are its own.
    pub cr0: Fixed,
    /// CR4.
    pub cr4: Fixed,
    /// Width of the CPU's physical addresses.
    pub physical_bits: u32,
    basic: u64,
    misc: u64,
    ept_vpid: u64,
}

/// Something that is needed and that the CPU lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    what: &'static str,
    msr: u32,
    bit: u32,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lack { what, msr, bit } = self;
        let end =
            if what.starts_with("always") { "it must be able not to" } else { "that is needed" };
        write!(f, "the CPU's VMX {what} (MSR {msr:#x}, bit {bit}); {end}")
    }
}

impl core::error::Error for Lack {}

/// What a bit of a word of controls is to be, and what a CPU can't that doesn't have it so.
type Word = &'static [(u32, &'static str)];

const PIN_WORDS: Word = &[
    (pin::EXTERNAL_INTERRUPT, "can't exit for interrupts"),
    (pin::NMI, "can't exit for NMIs"),
    (pin::VIRTUAL_NMIS, "has no virtual NMIs"),
    (pin::PREEMPTION_TIMER, "has no preemption timer"),
];
const PRIMARY_WORDS: Word = &[
    (primary::INTERRUPT_WINDOW, "can't exit when a guest lets interrupts in"),
    (primary::TSC_OFFSETTING, "has no TSC offset"),
    (primary::HLT, "can't exit for HLT"),
    (primary::MWAIT, "can't exit for MWAIT"),
    (primary::RDPMC, "can't exit for RDPMC"),
    (primary::TPR_SHADOW, "has no TPR shadow"),
    (primary::NMI_WINDOW, "can't exit when a guest could take an NMI"),
    (primary::IO_BITMAPS, "has no map of ports"),
    (primary::MSR_BITMAPS, "has no map of MSRs"),
    (primary::MONITOR, "can't exit for MONITOR"),
    (primary::SECONDARY, "has no secondary controls"),
];
const SECONDARY_WORDS: Word = &[
    (secondary::EPT, "has no nested paging (EPT)"),
    (secondary::DESCRIPTOR_TABLES, "can't exit for LIDT and SIDT"),
    (secondary::VPID, "has no VPIDs"),
    (secondary::WBINVD, "can't exit for WBINVD"),
    (secondary::UNRESTRICTED, "can't run real mode (unrestricted guest)"),
];
const EXIT_WORDS: Word = &[
    (exit::SAVE_DEBUG, "can't save debug controls at an exit"),
    (exit::HOST_64, "can't exit to 64-bit mode"),
    (exit::SAVE_PAT, "can't save the PAT at an exit"),
    (exit::LOAD_PAT, "can't load the PAT at an exit"),
    (exit::SAVE_EFER, "can't save EFER at an exit"),
    (exit::LOAD_EFER, "can't load EFER at an exit"),
];
const ENTRY_WORDS: Word = &[
    (entry::LOAD_DEBUG, "can't load debug controls at an entry"),
    (entry::LONG_MODE, "can't enter long mode"),
    (entry::LOAD_PAT, "can't load the PAT at an entry"),
    (entry::LOAD_EFER, "can't load EFER at an entry"),
];

/// Those that must stay 0.
const OPEN_PIN: Word = &[(pin::EXTERNAL_INTERRUPT, "always exits for interrupts")];
const OPEN_PRIMARY: Word = &[
    (primary::INVLPG, "always exits for INVLPG"),
    (primary::RDTSC, "always exits for RDTSC"),
    (primary::CR3_LOAD, "always exits for MOV to CR3"),
    (primary::CR3_STORE, "always exits for MOV from CR3"),
    (primary::CR8_LOAD, "always exits for MOV to CR8"),
    (primary::CR8_STORE, "always exits for MOV from CR8"),
    (primary::MOV_DR, "always exits for debug registers"),
    (primary::UNCONDITIONAL_IO, "always exits for ports"),
    (primary::PAUSE, "always exits for PAUSE"),
];
const OPEN_SECONDARY: Word = &[
    (secondary::VIRTUALIZE_APIC, "always has a virtual page of the local APIC"),
    (secondary::VIRTUALIZE_X2APIC, "always has virtual MSRs of the local APIC"),
];
const OPEN_EXIT: Word = &[(exit::ACKNOWLEDGE, "always acknowledges interrupts at an exit")];
const OPEN_ENTRY: Word = &[
    (entry::TO_SMM, "always enters system management mode"),
    (entry::DEACTIVATE_DUAL, "always ends the dual-monitor treatment"),
];

/// Those of posted mode.
const POSTED_PIN: Word = &[(pin::POSTED, "has no posted interrupts")];
const POSTED_SECONDARY: Word = &[
    (secondary::VIRTUALIZE_X2APIC, "has no virtual MSRs of the local APIC"),
    (secondary::APIC_REGISTERS, "has no virtual registers of the local APIC"),
    (secondary::VIRTUAL_DELIVERY, "has no virtual-interrupt delivery"),
];
const POSTED_EXIT: Word = &[(exit::ACKNOWLEDGE, "can't acknowledge interrupts at an exit")];

/// Of `EPT_VPID`: what nested tables are made of, and how they and a guest's translations are
/// dropped.
const NESTED: &[(u32, &str)] = &[
    (6, "has no nested tables of four levels"),
    (14, "can't read nested tables by write-back"),
    (16, "has no nested pages of 2 MiB"),
    (17, "has no nested pages of 1 GiB"),
    (20, "has no INVEPT"),
    (25, "has no INVEPT of a single context"),
    (32, "has no INVVPID"),
    (41, "has no INVVPID of a single context"),
];
/// Of `MISC`.
const HLT_STATE: u32 = 6;
const NO_LENGTH: u32 = 30;
/// Of `BASIC`.
const WIDTH_32: u32 = 48;
const TRUE_CONTROLS: u32 = 55;
const ANY_ERROR_CODE: u32 = 56;

/// Can all of these be set?
fn can(wanted: Word, range: Range, msr: u32) -> Result<(), Lack> {
    match wanted.iter().find(|(bit, _)| range.may_be_one & bit == 0) {
        Some((bit, what)) => Err(Lack { what, msr, bit: 32 + bit.trailing_zeros() }),
        None => Ok(()),
    }
}

impl Capabilities {
    /// Reads them; `physical_bits`: of CPUID 8000_0008. Only registers that the CPU has are read.
    pub fn read(physical_bits: u32, msr: impl Fn(u32) -> u64) -> Capabilities {
        let basic = msr(BASIC);
        let [p, q, x, e] =
            if basic >> TRUE_CONTROLS & 1 != 0 { TRUE } else { [PIN, PRIMARY, EXIT, ENTRY] };
        let primary = Range::new(msr(q));
        let second = primary.may_be_one & primary::SECONDARY != 0;
        let secondary = Range::new(if second { msr(SECONDARY) } else { 0 });
        let nests = secondary.may_be_one & (secondary::EPT | secondary::VPID) != 0;
        let fixed = |[ones, may]: [u32; 2]| Fixed { ones: msr(ones), may: msr(may) };
        Capabilities {
            revision: basic as u32 & 0x7FFF_FFFF,
            pin: Range::new(msr(p)),
            primary,
            secondary,
            exit: Range::new(msr(x)),
            entry: Range::new(msr(e)),
            cr0: fixed(CR0_FIXED),
            cr4: fixed(CR4_FIXED),
            physical_bits,
            basic,
            misc: msr(MISC),
            ept_vpid: if nests { msr(EPT_VPID) } else { 0 },
        }
    }

    /// The MSR of a word of controls, of which there may be a newer one.
    fn named(&self, old: u32, new: usize) -> u32 {
        if self.basic >> TRUE_CONTROLS & 1 != 0 { TRUE[new] } else { old }
    }

    /// Is all of posted mode there, beside what Exitless needs anyway?
    pub fn posts(&self) -> Result<(), Lack> {
        can(POSTED_PIN, self.pin, self.named(PIN, 0))?;
        can(POSTED_SECONDARY, self.secondary, SECONDARY)?;
        can(POSTED_EXIT, self.exit, self.named(EXIT, 2))
    }

    /// Is all that Exitless needs there?
    pub fn suffice(&self) -> Result<(), Lack> {
        let words = [
            (PIN_WORDS, OPEN_PIN, self.pin, self.named(PIN, 0)),
            (PRIMARY_WORDS, OPEN_PRIMARY, self.primary, self.named(PRIMARY, 1)),
            (SECONDARY_WORDS, OPEN_SECONDARY, self.secondary, SECONDARY),
            (EXIT_WORDS, OPEN_EXIT, self.exit, self.named(EXIT, 2)),
            (ENTRY_WORDS, OPEN_ENTRY, self.entry, self.named(ENTRY, 3)),
        ];
        for (wanted, open, range, msr) in words {
            can(wanted, range, msr)?;
            let closed = open.iter().find(|(bit, _)| range.must_be_one & bit != 0);
            if let Some((bit, what)) = closed {
                return Err(Lack { what, msr, bit: bit.trailing_zeros() });
            }
        }
        if let Some((bit, what)) = NESTED.iter().find(|(bit, _)| self.ept_vpid >> bit & 1 == 0) {
            return Err(Lack { what, msr: EPT_VPID, bit: *bit });
        }
        if !self.sleeps() {
            return Err(Lack { what: "can't enter a guest that sleeps in HLT", msr: MISC, bit: 6 });
        }
        if self.basic >> WIDTH_32 & 1 != 0 {
            let what = "wants its regions below 4 GiB";
            return Err(Lack { what, msr: BASIC, bit: WIDTH_32 });
        }
        Ok(())
    }

    /// May a guest be entered that sleeps in HLT?
    pub fn sleeps(&self) -> bool {
        self.misc >> HLT_STATE & 1 != 0
    }

    /// May any exception be raised with an error code, or without?
    pub fn any_error_code(&self) -> bool {
        self.basic >> ANY_ERROR_CODE & 1 != 0
    }

    /// May an event of an instruction's be raised with a length of 0?
    pub fn no_length(&self) -> bool {
        self.misc >> NO_LENGTH & 1 != 0
    }

    /// The preemption timer counts down when this bit of the TSC changes.
    pub fn timer_shift(&self) -> u32 {
        (self.misc & 0x1F) as u32
    }

    /// The bits of a physical address that the CPU hasn't.
    pub fn beyond(&self) -> u64 {
        u64::MAX.checked_shl(self.physical_bits).unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "capabilities_tests.rs"]
pub(crate) mod tests;
