//! The entry format of Intel's nested page tables.

use crate::format::{ADDRESS, Access, Entry, Format, PAGE_SIZE};

/// EPT, four levels (SDM vol. 3, 29.3.2), without accessed and dirty bits and without execution by
/// mode: the pointer to the tables and the controls leave those off.
///
/// How a write-back page is cached is decided together with the guest's own PAT; one that is
/// [`Access::UNCACHED`] is that whatever the guest's PAT says (bit 6), as in [`crate::Nested`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Ept;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const ALL: u64 = READ | WRITE | EXECUTE;
/// Bits 5:3, 0 being UC.
const WRITE_BACK: u64 = 6 << 3;
const MEMORY_TYPE: u64 = 7 << 3;
const IGNORE_PAT: u64 = 1 << 6;

impl Format for Ept {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        4
    }

    fn table(&self, _level: u32, frame: u64) -> u64 {
        (frame & ADDRESS) | ALL
    }

    /// A page that is written and not read is a misconfiguration; one that is executed alone is
    /// not for every CPU: all are read.
    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        let mut entry = (pa & ADDRESS) | READ;
        if level > 1 {
            entry |= PAGE_SIZE;
        }
        if access.contains(Access::WRITE) {
            entry |= WRITE;
        }
        if access.contains(Access::EXECUTE) {
            entry |= EXECUTE;
        }
        entry | if access.contains(Access::UNCACHED) { IGNORE_PAT } else { WRITE_BACK }
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & ALL == 0 {
            return Entry::Empty;
        }
        if level > 1 && entry & PAGE_SIZE == 0 {
            return Entry::Table(entry & ADDRESS);
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry & READ != 0);
        access.set(Access::WRITE, entry & WRITE != 0);
        access.set(Access::EXECUTE, entry & EXECUTE != 0);
        access.set(Access::UNCACHED, entry & MEMORY_TYPE == 0);
        Entry::Leaf { pa: entry & ADDRESS, access }
    }
}
