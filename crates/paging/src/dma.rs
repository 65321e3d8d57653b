//! The entry formats of IOMMUs, for DMA: VT-d's and AMD-Vi's, and one type for whichever is at
//! hand.
//!
//! DMA is read or written, nothing else: execute, user and cache type mean nothing here, and no
//! format has accessed or dirty bits. Guarantees and limits are those of [`Format`].

use crate::format::{ADDRESS, Access, Entry, Format, PAGE_SIZE};

/// DMA of either kind.
const BOTH: Access = Access::READ.union(Access::WRITE);

/// VT-d second-level (second-stage) tables (VT-d specification 3.7 and 9.8), with as many levels
/// as the domain's adjusted guest address width asks for.
///
/// SNP (bit 11) is clear, so devices may use no-snoop transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VtdSecondLevel {
    /// 39-bit addresses: CAP_REG.SAGAW bit 1, context entry AW = 1.
    ThreeLevels,
    /// 48-bit addresses: CAP_REG.SAGAW bit 2, context entry AW = 2.
    FourLevels,
}

const DMA_READ: u64 = 1 << 0;
const DMA_WRITE: u64 = 1 << 1;

impl Format for VtdSecondLevel {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        match self {
            Self::ThreeLevels => 3,
            Self::FourLevels => 4,
        }
    }

    /// An entry with neither right is not present.
    fn accepts(&self, access: Access) -> bool {
        access.intersects(BOTH)
    }

    fn table(&self, _level: u32, frame: u64) -> u64 {
        (frame & ADDRESS) | DMA_READ | DMA_WRITE
    }

    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        let mut entry = pa & ADDRESS;
        if level > 1 {
            entry |= PAGE_SIZE;
        }
        if access.contains(Access::READ) {
            entry |= DMA_READ;
        }
        if access.contains(Access::WRITE) {
            entry |= DMA_WRITE;
        }
        entry
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & (DMA_READ | DMA_WRITE) == 0 {
            return Entry::Empty;
        }
        if level > 1 && entry & PAGE_SIZE == 0 {
            return Entry::Table(entry & ADDRESS);
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry & DMA_READ != 0);
        access.set(Access::WRITE, entry & DMA_WRITE != 0);
        Entry::Leaf { pa: entry & ADDRESS, access }
    }
}

/// AMD-Vi host page tables, version 1 (AMD IOMMU specification 48882, 2.2.3), with as many levels
/// as the mode of the device-table entry says.
///
/// An entry names the level of what it points to: 0 for a page of the size its own level has, so
/// 4 KiB, 2 MiB and 1 GiB need nothing else. Pages are coherent (FC), whatever snooping a device
/// asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmdV1 {
    /// 39-bit addresses: mode 3.
    ThreeLevels,
    /// 48-bit addresses: mode 4.
    FourLevels,
}

const AMD_PRESENT: u64 = 1 << 0;
const AMD_NEXT_LEVEL: u32 = 9;
const AMD_COHERENT: u64 = 1 << 60;
const AMD_READ: u64 = 1 << 61;
const AMD_WRITE: u64 = 1 << 62;

impl Format for AmdV1 {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        match self {
            Self::ThreeLevels => 3,
            Self::FourLevels => 4,
        }
    }

    /// A present entry may have neither right; a mapping may not.
    fn accepts(&self, access: Access) -> bool {
        access.intersects(BOTH)
    }

    fn table(&self, level: u32, frame: u64) -> u64 {
        let next = u64::from(level.saturating_sub(1)) << AMD_NEXT_LEVEL;
        (frame & ADDRESS) | AMD_PRESENT | next | AMD_READ | AMD_WRITE
    }

    fn leaf(&self, _level: u32, pa: u64, access: Access) -> u64 {
        let mut entry = (pa & ADDRESS) | AMD_PRESENT | AMD_COHERENT;
        if access.contains(Access::READ) {
            entry |= AMD_READ;
        }
        if access.contains(Access::WRITE) {
            entry |= AMD_WRITE;
        }
        entry
    }

    /// An entry of a kind that [`AmdV1::table`] and [`AmdV1::leaf`] don't make, one that skips a
    /// level or has a page size of its own (level 7), counts as a page that allows everything there
    /// is, which no look at a table lets pass.
    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & AMD_PRESENT == 0 {
            return Entry::Empty;
        }
        let pa = entry & ADDRESS;
        let next = (entry >> AMD_NEXT_LEVEL & 7) as u32;
        if next > 0 {
            return match level.checked_sub(1) == Some(next) {
                true => Entry::Table(pa),
                false => Entry::Leaf { pa, access: Access::all() },
            };
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry & AMD_READ != 0);
        access.set(Access::WRITE, entry & AMD_WRITE != 0);
        Entry::Leaf { pa, access }
    }
}

/// The format of whichever unit the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dma {
    /// VT-d's.
    Vtd(VtdSecondLevel),
    /// AMD-Vi's.
    Amd(AmdV1),
}

impl Format for Dma {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        match self {
            Self::Vtd(format) => format.levels(),
            Self::Amd(format) => format.levels(),
        }
    }

    fn accepts(&self, access: Access) -> bool {
        match self {
            Self::Vtd(format) => format.accepts(access),
            Self::Amd(format) => format.accepts(access),
        }
    }

    fn table(&self, level: u32, frame: u64) -> u64 {
        match self {
            Self::Vtd(format) => format.table(level, frame),
            Self::Amd(format) => format.table(level, frame),
        }
    }

    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        match self {
            Self::Vtd(format) => format.leaf(level, pa, access),
            Self::Amd(format) => format.leaf(level, pa, access),
        }
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        match self {
            Self::Vtd(format) => format.decode(level, entry),
            Self::Amd(format) => format.decode(level, entry),
        }
    }
}
