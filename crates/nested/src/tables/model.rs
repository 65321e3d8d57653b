//! What composed tables are held against: a guest's memory of tables, the host's page for each of
//! its addresses, and a reference that walks both by itself. Shared with the fuzz target.

use super::{L1Memory, Rules};
use paging::{Access, Entry, Format, Mapping, Memory, Nested};
use std::collections::HashMap;

pub const RULES: Rules = Rules { no_execute: true, physical_bits: 40 };
pub const PAGE: u64 = 0x1000;
/// L1's table frames.
pub const FRAMES: u64 = 6;
const FIRST_FRAME: u64 = 0x10_0000;
/// Where the host has L1's memory.
pub const BEHIND: u64 = 0x4_0000_0000;

/// L1's memory: its tables alone.
#[derive(Clone, Default)]
pub struct L1(pub HashMap<u64, u64>);

impl L1Memory for L1 {
    fn read(&self, gpa: u64) -> Option<u64> {
        let is_table = (FIRST_FRAME..FIRST_FRAME + FRAMES * PAGE).contains(&gpa);
        is_table.then(|| self.0.get(&gpa).copied().unwrap_or(0))
    }

    fn exchange(&mut self, gpa: u64, old: u64, new: u64) -> bool {
        // Tables that loop have a word at two levels.
        let is_old = self.read(gpa) == Some(old);
        if is_old {
            self.0.insert(gpa, new);
        }
        is_old
    }
}

/// The host's page for an address of L1's: 2 MiB pages below 8 MiB, one of them read-only, small
/// ones up to 12 MiB, one of those without fetches, registers at 13 MiB, nothing elsewhere.
pub fn own(gpa: u64) -> Option<Mapping> {
    let all = Access::READ | Access::WRITE | Access::EXECUTE;
    let (access, size) = match gpa >> 12 {
        0x200..0x400 => (all - Access::WRITE, 1 << 21),
        0..0x800 => (all, 1 << 21),
        0x900 => (all - Access::EXECUTE, PAGE),
        0x800..0xC00 => (all, PAGE),
        0xD00 => (Access::READ | Access::WRITE | Access::UNCACHED, PAGE),
        _ => return None,
    };
    Some(Mapping { pa: BEHIND + gpa, access, size })
}

/// A pool of so many frames.
pub struct Pool {
    words: HashMap<u64, u64>,
    pub free: Vec<u64>,
}

impl Pool {
    pub fn of(frames: u64) -> Self {
        Pool { words: HashMap::new(), free: (1..=frames).map(|n| n * PAGE).collect() }
    }
}

impl Memory for Pool {
    fn read(&self, pa: u64) -> u64 {
        assert!(!self.free.contains(&(pa & !0xFFF)), "a freed frame was read");
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn write(&mut self, pa: u64, value: u64) {
        assert!(!self.free.contains(&(pa & !0xFFF)), "a freed frame was written");
        self.words.insert(pa, value);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        self.words.retain(|at, _| at & !0xFFF != frame);
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        assert!(!self.free.contains(&frame), "freed twice");
        self.free.push(frame);
    }
}

/// A physical address, and what is allowed there.
pub type Translation = Option<(u64, Access)>;

/// What the CPU makes of an address by a tree of ours.
pub fn seen(pool: &Pool, root: u64, address: u64) -> Translation {
    let mut table = root;
    for level in (1..=4).rev() {
        let shift = 12 + 9 * (level - 1);
        match Nested.decode(level, pool.read(table | (address >> shift & 0x1FF) << 3)) {
            Entry::Empty => return None,
            Entry::Table(next) => table = next,
            Entry::Leaf { pa, access } => return Some((pa | address & ((1 << shift) - 1), access)),
        }
    }
    None
}

/// The reference: each entry by the manual's words, without what the walk shares.
pub fn reference(l1: &L1, root: u64, address: u64) -> Translation {
    let (mut table, mut rights) = (root, Access::READ | Access::WRITE | Access::EXECUTE);
    for (level, shift) in [(4, 39), (3, 30), (2, 21), (1, 12)] {
        let entry = l1.read(table + (address >> shift) % 512 * 8)?;
        let has = |bit: u32| entry >> bit & 1 == 1;
        if !has(0) || entry >> 40 & 0xFFF != 0 || level == 4 && has(7) || !has(2) {
            return None;
        }
        if !has(1) {
            rights -= Access::WRITE;
        }
        if has(63) {
            rights -= Access::EXECUTE;
        }
        if level == 1 || has(7) {
            let size = 1_u64 << shift;
            let low = (entry & 0xF_FFFF_FFFF_F000) % size;
            if level != 1 && low & !0x1000 != 0 {
                return None;
            }
            if !has(6) {
                rights -= Access::WRITE;
            }
            let gpa = (entry & 0xF_FFFF_FFFF_F000) - low + address % size;
            let host = own(gpa)?;
            let mut both = rights & host.access;
            if has(4) || host.access.contains(Access::UNCACHED) {
                both |= Access::UNCACHED;
            }
            return Some((host.pa, both));
        }
        table = entry & 0xF_FFFF_FFFF_F000;
    }
    None
}

pub fn frame(n: u64) -> u64 {
    FIRST_FRAME + n % FRAMES * PAGE
}
