//! The MSI-X table as the guest sees it, and where in a BAR it must be intercepted.
//!
//! Guarantees that an entry reads back as written, that entries start masked, and
//! that a message comes out only while MSI-X is on and neither the function nor the
//! entry is masked. Aligned accesses of 4 and 8 bytes count (PCIe 5.0, 7.7.2);
//! others read zero and write nothing. The pending bits are the physical device's:
//! the host forwards reads of them.

use crate::message::Written;
use core::ops::Range;

/// Bytes of one table entry.
const ENTRY: u64 = 16;
/// Vector Control: Mask Bit; the other 31 are reserved and read zero.
const MASK_BIT: u32 = 1;
/// Message addresses are a multiple of 4.
const ADDRESS_LOW: u64 = 0xFFFF_FFFC;
const PAGE: u64 = 4096;

/// The two bits of MSI-X Message Control that the guest owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// MSI-X Enable.
    pub enabled: bool,
    /// Function Mask.
    pub masked: bool,
}

/// One table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
    /// The entry's own mask bit.
    pub masked: bool,
}

impl Entry {
    /// An entry after reset: masked, the rest zero.
    pub const RESET: Entry = Entry { address: 0, data: 0, masked: true };

    /// The 32-bit word 0 to 3 of the entry.
    fn word(&self, index: u64) -> u32 {
        match index {
            0 => self.address as u32,
            1 => (self.address >> 32) as u32,
            2 => self.data,
            _ => self.masked.into(),
        }
    }

    fn set_word(&mut self, index: u64, value: u32) {
        let value64 = u64::from(value);
        match index {
            0 => self.address = self.address & !0xFFFF_FFFF | value64 & ADDRESS_LOW,
            1 => self.address = self.address & 0xFFFF_FFFF | value64 << 32,
            2 => self.data = value,
            _ => self.masked = value & MASK_BIT != 0,
        }
    }
}

/// A table over the host's storage: an array, a `Vec`, an `ArrayVec`, a slice.
#[derive(Clone, Debug)]
pub struct Table<S> {
    entries: S,
}

impl<S: AsRef<[Entry]> + AsMut<[Entry]>> Table<S> {
    /// A table of as many entries as the storage has, all reset.
    pub fn new(entries: S) -> Self {
        let mut table = Table { entries };
        table.reset();
        table
    }

    /// Masks and clears every entry, as a reset of the function does.
    pub fn reset(&mut self) {
        self.entries.as_mut().fill(Entry::RESET);
    }

    /// The entries, as the guest wrote them.
    pub fn entries(&self) -> &[Entry] {
        self.entries.as_ref()
    }

    /// The guest loads `size` bytes at `offset` in the table.
    pub fn read(&self, offset: u64, size: u8) -> u64 {
        let Some((entry, word)) = locate(offset, size) else { return 0 };
        let Some(entry) = self.entries.as_ref().get(entry) else { return 0 };
        let low = entry.word(word).into();
        if size == 8 { low | u64::from(entry.word(word + 1)) << 32 } else { low }
    }

    /// The guest stores `size` bytes at `offset` in the table; gives the index of
    /// the entry if that changed it.
    pub fn write(&mut self, offset: u64, size: u8, value: u64) -> Option<usize> {
        let (index, word) = locate(offset, size)?;
        let entry = self.entries.as_mut().get_mut(index)?;
        let before = *entry;
        entry.set_word(word, value as u32);
        if size == 8 {
            entry.set_word(word + 1, (value >> 32) as u32);
        }
        (*entry != before).then_some(index)
    }

    /// What is written for the interrupt of entry `index` now: `None` while masked, off or
    /// beyond the table.
    pub fn written(&self, index: usize, control: Control) -> Option<Written> {
        let entry = self.entries.as_ref().get(index)?;
        let sends = control.enabled && !control.masked && !entry.masked;
        sends.then_some(Written { address: entry.address, data: entry.data })
    }
}

/// Entry index and word of an access that counts.
fn locate(offset: u64, size: u8) -> Option<(usize, u64)> {
    let aligned = matches!(size, 4 | 8) && offset.is_multiple_of(size.into());
    let index = usize::try_from(offset / ENTRY).ok()?;
    aligned.then_some((index, offset % ENTRY / 4))
}

/// Bytes of a table of this many entries.
pub const fn table_bytes(entries: u64) -> u64 {
    entries.saturating_mul(ENTRY)
}

/// Bytes of the pending bits of this many entries: one bit each, in whole 64-bit words.
pub const fn pending_bytes(entries: u64) -> u64 {
    entries.div_ceil(64).saturating_mul(8)
}

/// The pages of a BAR that hold `length` bytes at `offset`, as a byte range in the
/// BAR: these can't be mapped straight through.
pub const fn intercepted_pages(offset: u64, length: u64) -> Range<u64> {
    let start = offset - offset % PAGE;
    if length == 0 {
        return start..start;
    }
    let last = offset.saturating_add(length - 1);
    start..(last - last % PAGE).saturating_add(PAGE)
}

/// The target of an access to an intercepted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The table, at this offset in it.
    Table(u64),
    /// The pending bits: forward reads to the device, ignore writes.
    PendingBits,
    /// Anything else of the device: forward.
    Device,
}

impl crate::pci::MsixLayout {
    /// What an access of `size` bytes at `offset` in BAR `bar` reaches. An access
    /// that begins in the table is the table's; one that only runs into it is
    /// answered as the table's too, at an offset which no access counts at.
    pub fn region(&self, bar: u8, offset: u64, size: u8) -> Region {
        let entries = u64::from(self.entries);
        let touches = |base: u32, length: u64| {
            let base = u64::from(base);
            offset < base + length && offset.saturating_add(size.into()) > base
        };
        let table = u64::from(self.table_offset);
        if bar == self.table_bar && touches(self.table_offset, table_bytes(entries)) {
            Region::Table(offset.checked_sub(table).unwrap_or(u64::MAX))
        } else if bar == self.pba_bar && touches(self.pba_offset, pending_bytes(entries)) {
            Region::PendingBits
        } else {
            Region::Device
        }
    }
}

#[cfg(test)]
mod tests;
