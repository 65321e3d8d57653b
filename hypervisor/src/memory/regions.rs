//! The free ranges of physical memory: numbers only, no memory is touched here.
//!
//! Guarantees: ranges are whole pages, disjoint and ascending; a page is taken
//! at most once.

use crate::boot::{MemoryKind, MemoryRange};
use arrayvec::ArrayVec;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Where the other cores' first code goes: conventional memory that nothing uses after boot.
pub const TRAMPOLINE: u64 = 0x8000;

/// Everything below belongs to the firmware and to the trampoline.
pub const LOW_MEMORY: u64 = 1 << 20;

/// The most free ranges; each allocation makes at most one more.
const MAX: usize = 512;

/// Free ranges as (start, end).
pub struct Regions {
    ranges: ArrayVec<(u64, u64), MAX>,
    taken: u64,
}

impl Regions {
    pub const fn new() -> Self {
        Regions { ranges: ArrayVec::new_const(), taken: 0 }
    }

    /// Adds usable memory above [`LOW_MEMORY`]; where the map contradicts itself, the worse is
    /// believed. False when there is no room.
    pub fn add_usable(&mut self, map: &[MemoryRange]) -> bool {
        let usable = |range: &&MemoryRange| range.kind == MemoryKind::Usable;
        map.iter().filter(usable).all(|r| self.add(r.start.max(LOW_MEMORY), r.end))
            && map.iter().filter(|r| !usable(r)).all(|r| self.remove(r.start, r.end))
    }

    /// Adds the whole pages of a range, less what is there already; false when there is no room.
    pub fn add(&mut self, start: u64, end: u64) -> bool {
        let (start, end) = (start.saturating_add(PAGE - 1) & !(PAGE - 1), end & !(PAGE - 1));
        if start >= end {
            return true;
        }
        // Firmware that lists memory twice must not make it two memories.
        if !self.remove(start, end) {
            return false;
        }
        let at = self.ranges.partition_point(|r| r.0 < start);
        self.ranges.try_insert(at, (start, end)).is_ok()
    }

    /// Removes every page that a range touches; false when there is no room for the pieces.
    pub fn remove(&mut self, start: u64, end: u64) -> bool {
        let (start, end) = (start & !(PAGE - 1), end.saturating_add(PAGE - 1) & !(PAGE - 1));
        let mut i = 0;
        while let Some(&(s, e)) = self.ranges.get(i) {
            if e <= start || end <= s {
                i += 1;
                continue;
            }
            self.ranges.remove(i);
            for piece in [(s, start.min(e)), (end.max(s), e)] {
                if piece.0 < piece.1 {
                    if self.ranges.try_insert(i, piece).is_err() {
                        return false;
                    }
                    i += 1;
                }
            }
        }
        true
    }

    /// Takes the lowest fitting `bytes` (whole pages) at a multiple of `align`.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let start = self.ranges.iter().find_map(|&(s, e)| {
            let start = s.checked_next_multiple_of(align)?;
            (start.checked_add(bytes)? <= e).then_some(start)
        })?;
        // Room for the pieces is made sure of first, so that a failure loses nothing.
        if self.ranges.is_full() || !self.remove(start, start + bytes) {
            return None;
        }
        self.taken += bytes;
        Some(start)
    }

    /// The free ranges.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().copied()
    }

    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.ranges().map(|(s, e)| e - s).sum()
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}
