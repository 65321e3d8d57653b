//! The guest's device table, and the page tables that its entries lead to (AMD IOMMU spec 48882,
//! 2.2.2 and 2.2.3).
//!
//! Guarantees: an entry's halves, of which one decides about DMA and one about interrupts, are each
//! read at once.

use crate::walk::{Entry, Format, Root};
use crate::{Domain, PAGE};
use window::Window;

const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// Bytes of an entry of the device table.
const BYTES: u64 = 32;

/// V, TV, GV.
const VALID: u64 = 1 << 0;
const TRANSLATION_VALID: u64 = 1 << 1;
const GUEST_VALID: u64 = 1 << 55;
/// Mode.
const MODE: u32 = 9;
/// IR and IW, in this order, of an entry of the device table and of each entry of page tables.
const RIGHTS: u32 = 61;

/// A domain that passes through, by its number. Else that has the domain id in bits 15:0, the root
/// in 55:16, the mode in 58:56, IR and IW in 60:59.
const BYPASS: u64 = 1 << 63;
const NUMBER_MODE: u32 = 56;
const NUMBER_RIGHTS: u32 = 59;

/// What a device's entry says of its DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dma {
    /// It is in this domain, which may be one that passes through.
    In(Domain),
    /// It is blocked, by an entry with this domain id.
    Blocked(u16),
    /// It is blocked: the entry isn't one.
    Illegal,
}

impl Dma {
    /// The domain.
    pub fn domain(self) -> Option<Domain> {
        match self {
            Dma::In(domain) => Some(domain),
            Dma::Blocked(_) | Dma::Illegal => None,
        }
    }
}

/// A half of a device's entry in the table that this register names; `None`: there is none.
fn half(window: &Window, register: u64, id: u16, high: bool) -> Option<[u64; 2]> {
    let offset = BYTES * u64::from(id);
    // Bits 8:0: pages of the table less one.
    let pages = (register & 0x1FF) + 1;
    let at = (register & ADDRESS).checked_add(offset + if high { 16 } else { 0 })?;
    let span = window.span(at, 16).filter(|_| offset < pages * PAGE)?;
    span.load_u64_pair(0).ok()
}

/// What a device's entry says of DMA.
pub fn dma(window: &Window, register: u64, id: u16) -> Dma {
    let Some([low, high]) = half(window, register, id, false) else { return Dma::Illegal };
    let (mode, rights, id) = (low >> MODE & 7, low >> RIGHTS & 3, high & 0xFFFF);
    let passes = Domain { number: BYPASS | id, bypass: true, blocked: false };
    if low & VALID == 0 {
        return Dma::In(passes);
    }
    // Version 2 isn't offered.
    if mode == 7 || low & GUEST_VALID != 0 {
        return Dma::Illegal;
    }
    match mode {
        _ if low & TRANSLATION_VALID == 0 || rights == 0 => Dma::Blocked(id as u16),
        0 if rights == 3 => Dma::In(passes),
        0 => Dma::Blocked(id as u16),
        _ => {
            let how = mode << NUMBER_MODE | rights << NUMBER_RIGHTS;
            let number = how | (low & ADDRESS) << 4 | id;
            Dma::In(Domain { number, bypass: false, blocked: true })
        }
    }
}

/// What a device's entry says of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// They pass as they are.
    Pass,
    /// They are blocked.
    Blocked,
    /// By the table here, of so many entries.
    Table(u64, u32),
}

/// What a device's entry says of its fixed and arbitrated interrupts.
pub fn interrupts(window: &Window, register: u64, id: u16) -> Interrupts {
    let Some([low, _]) = half(window, register, id, true) else { return Interrupts::Blocked };
    // IV; IntCtl: 01 passes, 10 is by the table; IntTabLen: 0 to 11 are powers of two.
    match (low & 1, low >> 60 & 3, low >> 1 & 0xF) {
        (0, ..) | (_, 1, _) => Interrupts::Pass,
        (_, 2, length @ 0..=11) => Interrupts::Table(low & 0x000F_FFFF_FFFF_FFC0, 1 << length),
        _ => Interrupts::Blocked,
    }
}

/// Page tables of version 1.
#[derive(Debug)]
pub enum HostTables {}

impl Format for HostTables {
    fn root(domain: u64, _: u64) -> Root {
        Root {
            table: domain >> 4 & ADDRESS,
            level: (domain >> NUMBER_MODE & 7).max(1) as u32,
            rights: domain >> NUMBER_RIGHTS & 3,
        }
    }

    fn entry(word: u64, level: u32) -> Entry {
        let (rights, to) = (word >> RIGHTS & 3, word & ADDRESS);
        // PR, and the next level.
        match (word & 1, (word >> 9 & 7) as u32) {
            (0, _) => Entry::Nothing,
            (_, 0) => Entry::Leaf(translates(level), to, rights),
            (_, 7) => {
                // The lowest bit that is clear says how many pages.
                let bytes = (2 * PAGE) << (to >> 12).trailing_ones();
                if bytes < translates(level) {
                    return Entry::Nothing;
                }
                Entry::Leaf(bytes, to, rights)
            }
            (_, next) if next < level => Entry::Table(next, to, rights),
            _ => Entry::Nothing,
        }
    }
}

/// Bytes that an entry of a table of this level translates: 1 to 6.
fn translates(level: u32) -> u64 {
    PAGE << (9 * (level.clamp(1, 6) - 1))
}
