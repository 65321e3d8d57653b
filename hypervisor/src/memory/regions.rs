//! The free ranges of physical memory: numbers only, no memory is touched here.
//!
//! Guarantees: ranges are whole pages, disjoint and ascending; a page is taken
//! at most once.

use arrayvec::ArrayVec;
use handover::{MAX_RANGES, MemoryMap};

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

    /// The free pages of `map`, instead of what was there.
    pub fn set(&mut self, map: &MemoryMap) {
        const { assert!(MAX_RANGES < MAX) };
        self.ranges = map.free_pages().collect();
    }

    /// Removes whole pages; false when there is no room for the pieces.
    fn remove(&mut self, start: u64, end: u64) -> bool {
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

    /// Takes the lowest fitting `bytes` (whole pages) at a multiple of `align`, in one of these
    /// ranges of addresses.
    pub fn take(&mut self, bytes: u64, align: u64, within: &[(u64, u64)]) -> Option<u64> {
        let start = self.ranges.iter().find_map(|&(s, e)| {
            within.iter().find_map(|&(from, to)| {
                let start = s.max(from).checked_next_multiple_of(align)?;
                (start.checked_add(bytes)? <= e.min(to)).then_some(start)
            })
        })?;
        // Room for the pieces is made sure of first, so that a failure loses nothing.
        if self.ranges.is_full() || !self.remove(start, start + bytes) {
            return None;
        }
        self.taken += bytes;
        Some(start)
    }

    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.ranges.iter().map(|(s, e)| e - s).sum()
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}
