//! What a unit can do (48882, 3.4.2), and whether that is enough.

use super::registers::{EFR, EFR_INVALIDATE_ALL, EFR_WIDE_ENTRIES, EFR_X2APIC};
use crate::{Error, Registers, Remapping};

/// What a unit can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it remaps interrupts, as it was asked to.
    pub remapping: Remapping,
    /// The page-table levels that it can walk (EFR.HATS): bit n for n.
    pub(super) levels: u8,
    /// It forgets everything by one command (EFR.IASup).
    pub(super) invalidates_all: bool,
    /// It knows x2APIC ids (EFR.XTSup).
    pub(super) x2apic: bool,
}

impl Capabilities {
    /// Whether page tables of this many levels can be walked.
    pub fn supports_levels(&self, levels: u8) -> bool {
        levels < 8 && self.levels & 1 << levels != 0
    }
}

/// Reads what the unit can do; refuses it if that isn't enough.
pub fn probe(registers: &mut impl Registers, remapping: Remapping) -> Result<Capabilities, Error> {
    let value = registers.read64(EFR);
    if value == u64::MAX {
        return Err(Error::Absent { read: u32::MAX });
    }
    let need = |present: bool, feature| match present {
        true => Ok(()),
        false => Err(Error::Lacks { feature, register: "EFR", value }),
    };
    if remapping == Remapping::On {
        need(value & EFR_X2APIC != 0, "x2APIC interrupt destinations (XTSup)")?;
        need(value & EFR_WIDE_ENTRIES != 0, "interrupt entries of 128 bits (GASup)")?;
    }
    // 4 levels and up to 2 more; the last value says that it has none of these tables.
    let more = value >> 10 & 3;
    need(more < 3, "host page tables (HATS)")?;
    Ok(Capabilities {
        remapping,
        levels: 0b1_1110 | (0b110_0000 & ((1 << (5 + more)) - 1)),
        invalidates_all: value & EFR_INVALIDATE_ALL != 0,
        x2apic: value & EFR_X2APIC != 0,
    })
}
