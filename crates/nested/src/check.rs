//! What VMRUN refuses (APM vol. 2, 15.5.1), measured by what L1 was offered.
//!
//! 02 passes the CPU's own checks if it passes these: the offer is a part of what the CPU has. What
//! the CPU doesn't check isn't checked here: such a state harms L2 alone.

use crate::{Control, Offer};
use svm::{EFER_SVME, Vmcb};
use thiserror::Error;

const CR0_PE: u64 = 1 << 0;
const CR0_NW: u64 = 1 << 29;
const CR0_CD: u64 = 1 << 30;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
pub(crate) const EFER_LMA: u64 = 1 << 10;
/// Attributes of a code segment: L and D.
const LONG: u16 = 1 << 9;
const DEFAULT_32: u16 = 1 << 10;

/// Of an event.
pub(crate) const VALID: u64 = 1 << 31;
const MSR_BYTES: u64 = 8 << 10;
const PORT_BYTES: u64 = 12 << 10;

/// Why a block is refused: L1 has VMEXIT_INVALID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Illegal {
    /// EFER.SVME is clear, or a bit is set that isn't there.
    #[error("EFER is {0:#x}")]
    Efer(u64),
    /// CD is clear and NW set, or an upper bit is set.
    #[error("CR0 is {0:#x}")]
    Cr0(u64),
    /// Bits beyond the physical addresses.
    #[error("CR3 is {0:#x}")]
    Cr3(u64),
    /// A bit that isn't there.
    #[error("CR4 is {0:#x}")]
    Cr4(u64),
    /// An upper bit.
    #[error("DR6 is {0:#x}")]
    Dr6(u64),
    /// An upper bit.
    #[error("DR7 is {0:#x}")]
    Dr7(u64),
    /// Long mode without PAE or without protection, or code that is of 64 and of 32 bits.
    #[error("CR0 {0:#x}, CR4 {1:#x} and EFER {2:#x} don't go together")]
    Mode(u64, u64, u64),
    /// VMRUN isn't intercepted.
    #[error("VMRUN isn't intercepted")]
    Intercepts,
    /// The host's own.
    #[error("the address space is 0")]
    Asid,
    /// A map that ends beyond the physical addresses.
    #[error("a permission map is at {0:#x}")]
    Map(u64),
    /// An event of no kind, or an exception that is none.
    #[error("the event to inject is {0:#x}")]
    Event(u64),
    /// The root of the nested tables is beyond the physical addresses.
    #[error("the nested CR3 is {0:#x}")]
    NestedCr3(u64),
    /// AVIC without nested paging, or with a page that isn't memory.
    #[error("the backing page of AVIC is {0:#x}")]
    Avic(u64),
    /// A memory type that is none.
    #[error("the PAT is {0:#x}")]
    Pat(u64),
}

/// Checks L1's wishes.
#[inline(always)]
pub(crate) fn control(c: &mut Control, offer: &Offer) -> Result<(), Illegal> {
    if !c.keeps_vmrun() {
        return Err(Illegal::Intercepts);
    }
    if c.asid == 0 {
        return Err(Illegal::Asid);
    }
    if !c.has_right_maps {
        maps(c, offer)?;
        c.has_right_maps = true;
    }
    if !is_event(c.event_inj) {
        return Err(Illegal::Event(c.event_inj));
    }
    if c.is_avic() && !c.nested_paging() {
        return Err(Illegal::Avic(c.avic_pages[1]));
    }
    if c.nested_paging() && offer.is_beyond(c.nested_cr3) {
        return Err(Illegal::NestedCr3(c.nested_cr3));
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn maps(c: &Control, offer: &Offer) -> Result<(), Illegal> {
    let (msrs, ports) = c.maps();
    for (base, bytes) in [(msrs, MSR_BYTES), (ports, PORT_BYTES)] {
        if base.checked_add(bytes - 1).is_none_or(|last| offer.is_beyond(last)) {
            return Err(Illegal::Map(base));
        }
    }
    Ok(())
}

/// Checks the state of L2, which is in 02 already. Its PAT counts if L1 has nested paging.
#[inline(always)]
pub(crate) fn state(v: &Vmcb, nested_paging: bool, offer: &Offer) -> Result<(), Illegal> {
    let Vmcb { efer, cr0, cr3, cr4, dr6, dr7, g_pat, .. } = *v;
    if efer & EFER_SVME == 0 || efer & !offer.efer & !EFER_LMA != 0 {
        return Err(Illegal::Efer(efer));
    }
    if cr0 & (CR0_CD | CR0_NW) == CR0_NW {
        return Err(Illegal::Cr0(cr0));
    }
    if cr4 & !offer.cr4 != 0 {
        return Err(Illegal::Cr4(cr4));
    }
    if (cr0 | dr6 | dr7) >> 32 != 0 {
        return Err(match (cr0 >> 32, dr6 >> 32) {
            (0, 0) => Illegal::Dr7(dr7),
            (0, _) => Illegal::Dr6(dr6),
            _ => Illegal::Cr0(cr0),
        });
    }
    if is_long(v) {
        let is_both = v.cs.attributes & (LONG | DEFAULT_32) == LONG | DEFAULT_32;
        if cr4 & CR4_PAE == 0 || cr0 & CR0_PE == 0 || is_both {
            return Err(Illegal::Mode(cr0, cr4, efer));
        }
        if offer.is_beyond(cr3) {
            return Err(Illegal::Cr3(cr3));
        }
    }
    if nested_paging && !is_pat(g_pat) {
        return Err(Illegal::Pat(g_pat));
    }
    Ok(())
}

/// Is each byte a memory type: 0, 1, 4 to 7?
fn is_pat(pat: u64) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let is_2_or_3 = pat & (2 * EACH) & !(pat >> 1);
    pat & (0xF8 * EACH) == 0 && is_2_or_3 == 0
}

/// Long mode is on: LMA follows from the other two, whatever the block says.
pub(crate) fn is_long(v: &Vmcb) -> bool {
    v.efer & EFER_LME != 0 && v.cr0 & CR0_PG != 0
}

/// May VMRUN inject this (15.20)? Nothing counts unless V is set.
fn is_event(event: u64) -> bool {
    if event & VALID == 0 {
        return true;
    }
    let vector = event as u8;
    match event >> 8 & 7 {
        0 | 2 | 4 => true,
        // NMI isn't an exception, and those beyond 31 are none.
        3 => vector != 2 && vector < 32,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_pat;

    #[test]
    fn memory_types_are_known_in_every_byte() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                let pat = 0x0007_0406_0106_0504 & !(0xFF << (at * 8)) | u64::from(byte) << (at * 8);
                assert_eq!(is_pat(pat), matches!(byte, 0 | 1 | 4..=7), "{byte} at {at}");
            }
        }
    }
}
