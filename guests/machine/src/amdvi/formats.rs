//! What an AMD-Vi unit has in memory: entries of its device table and of page tables, commands,
//! events (AMD IOMMU spec 48882, 2.2, 2.4 and 2.5).

use crate::unit::Ask;

/// Of an entry of the device table: V and TV; IR and IW, as entries of page tables have them.
pub const VALID: u64 = 3;
/// As above.
pub const RIGHTS: u32 = 61;
/// Of the words for interrupts: IV, a table of 256 entries, IntCtl.
pub const REMAPS: u64 = 1;
/// As above.
pub const ENTRIES: u64 = 8 << 1;
/// As above.
pub const BY_TABLE: u64 = 2 << 60;
/// Of an entry of page tables: PR; the next level.
pub const PRESENT: u64 = 1;
/// As above.
pub const LEVEL: u32 = 9;
/// Levels of its tables.
pub const LEVELS: u64 = 4;
/// Of an event: its kind for page faults; PR, RW, PE.
pub const PAGE_FAULT: u32 = 2 << 28;
/// As above.
pub const WAS_PRESENT: u32 = 1 << 20;
/// As above.
pub const WROTE: u32 = 1 << 21;
/// As above.
pub const FORBIDDEN: u32 = 1 << 22;

/// The command for this (2.4).
pub fn command(what: Ask) -> [u64; 2] {
    // S, PDE, and below the highest bit of its size ones.
    let pages = |id: u16, at: u64, order: u64| {
        let some = if order == 0 { 0 } else { 1 | ((1 << (order - 1)) - 1) << 12 };
        [3 << 60 | u64::from(id) << 32, at & !((1 << (12 + order)) - 1) | some | 2]
    };
    match what {
        Ask::Device(id) => [2 << 60 | u64::from(id), 0],
        Ask::All => [8 << 60, 0],
        // As Linux says all of it.
        Ask::Domain(id) => [3 << 60 | u64::from(id) << 32, 0x7FFF_FFFF_FFFF_F000 | 3],
        Ask::Pages(id, at, order) => pages(id, at, order),
        Ask::Interrupts(source) => [5 << 60 | u64::from(source), 0],
    }
}

/// An entry of page tables that leads to a table of this level, or with 0 to a page.
pub fn entry(to: u64, level: u64, rights: u64) -> u64 {
    to | level << LEVEL | rights << RIGHTS | PRESENT
}
