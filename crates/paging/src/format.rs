//! The entry formats: what one 64-bit entry means at each level, and the processor's own. Those of
//! IOMMUs stand in [`crate::dma`].
//!
//! Tables of every format here have 512 entries, and an entry at level n (1 is the last level)
//! covers 2^(12 + 9(n-1)) bytes. A table entry always grants everything: the leaf alone decides
//! what is allowed. Guarantees that what [`Format::decode`] says is what the hardware does with an
//! entry this crate wrote; says nothing about entries others wrote (for these see [`crate::walk`]).

use bitflags::bitflags;

bitflags! {
    /// What a mapping allows, and how it is cached: write-back unless [`Access::UNCACHED`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Loads, or DMA reads.
        const READ = 1 << 0;
        /// Stores, or DMA writes.
        const WRITE = 1 << 1;
        /// Instruction fetches.
        const EXECUTE = 1 << 2;
        /// Access at CPL 3.
        const USER = 1 << 3;
        /// Memory type UC instead of WB.
        const UNCACHED = 1 << 4;
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Not present.
    Empty,
    /// Points to the table frame of the next lower level.
    Table(u64),
    /// Maps a page of the size its level has.
    Leaf {
        /// Where the page is.
        pa: u64,
        /// What the hardware allows on it.
        access: Access,
    },
}

/// One kind of page table.
///
/// An entry of zero must decode as [`Entry::Empty`] at every level, so must any 4 KiB aligned
/// address with zero below bit 12 (unused frames are chained through such words), and no entry at
/// level 1 may decode as [`Entry::Table`]. Which of the larger pages the hardware at hand has is
/// not the format's to know: see [`crate::PageSize`].
pub trait Format {
    /// Input addresses are sign-extended (canonical), not zero-extended.
    const SIGNED: bool;
    /// Width of the physical addresses an entry can hold.
    const PHYSICAL_BITS: u32;
    /// Number of levels, 1 to 5; the same for the life of the value.
    fn levels(&self) -> u32;
    /// Whether a leaf can allow `access` and no more of it. Bits which mean nothing to this
    /// hardware are accepted and don't come back from [`Format::decode`].
    ///
    /// Unless the format says otherwise a present page is always readable.
    fn accepts(&self, access: Access) -> bool {
        access.contains(Access::READ)
    }
    /// The entry at `level` (2 and up) that points to the table at `frame`.
    fn table(&self, level: u32, frame: u64) -> u64;
    /// The entry at `level` that maps the page at `pa`, for `access` that is accepted.
    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64;
    /// What `entry`, read at `level`, is.
    fn decode(&self, level: u32, entry: u64) -> Entry;
}

/// Bits 51:12: the address field of every format here.
pub(crate) const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// A leaf above level 1 (long mode: PS; VT-d: PS).
pub(crate) const PAGE_SIZE: u64 = 1 << 7;

// Long-mode entries, AMD64 APM volume 2, 5.3 and 5.4.
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

/// Four-level long-mode tables of the hypervisor itself (AMD64 APM volume 2, 5.3).
///
/// Needs EFER.NXE = 1, and PAT entries 0 = WB and 3 = UC as after reset. Accessed and dirty bits
/// are set beforehand, so the hardware never writes to a table; a page that is not writable gets
/// no dirty bit, which would make it a shadow stack (APM volume 2, chapter 18).
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// SVM nested page tables, four levels (AMD64 APM volume 2, 15.25).
///
/// As [`Host`], under the host's EFER.NXE and PAT, but every page is a user page, since the
/// hardware checks nested accesses as user accesses (15.25.5), and guest physical addresses are
/// not sign-extended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nested;

fn long_mode_table(frame: u64) -> u64 {
    (frame & ADDRESS) | PRESENT | WRITABLE | USER | ACCESSED
}

fn long_mode_leaf(level: u32, pa: u64, access: Access) -> u64 {
    let mut entry = (pa & ADDRESS) | PRESENT | ACCESSED;
    if level > 1 {
        entry |= PAGE_SIZE;
    }
    if access.contains(Access::WRITE) {
        entry |= WRITABLE | DIRTY;
    }
    if access.contains(Access::USER) {
        entry |= USER;
    }
    if access.contains(Access::UNCACHED) {
        entry |= CACHE_DISABLE | WRITE_THROUGH;
    }
    if !access.contains(Access::EXECUTE) {
        entry |= NO_EXECUTE;
    }
    entry
}

fn long_mode_decode(level: u32, entry: u64) -> Entry {
    if entry & PRESENT == 0 {
        return Entry::Empty;
    }
    if level > 1 && entry & PAGE_SIZE == 0 {
        return Entry::Table(entry & ADDRESS);
    }
    let mut access = Access::READ;
    access.set(Access::WRITE, entry & WRITABLE != 0);
    access.set(Access::USER, entry & USER != 0);
    access.set(Access::UNCACHED, entry & CACHE_DISABLE != 0);
    access.set(Access::EXECUTE, entry & NO_EXECUTE == 0);
    Entry::Leaf { pa: entry & ADDRESS, access }
}

impl Format for Host {
    const SIGNED: bool = true;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        4
    }

    fn table(&self, _level: u32, frame: u64) -> u64 {
        long_mode_table(frame)
    }

    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        long_mode_leaf(level, pa, access)
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        long_mode_decode(level, entry)
    }
}

impl Format for Nested {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        4
    }

    fn table(&self, _level: u32, frame: u64) -> u64 {
        long_mode_table(frame)
    }

    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        long_mode_leaf(level, pa, access | Access::USER)
    }

    /// The user bit is how the format is, not something granted: it isn't reported.
    fn decode(&self, level: u32, entry: u64) -> Entry {
        match long_mode_decode(level, entry) {
            Entry::Leaf { pa, access } => Entry::Leaf { pa, access: access - Access::USER },
            other => other,
        }
    }
}
