//! The permission maps by which L2 runs, of MSRs and of ports (APM vol. 2, 15.10 and 15.11): open
//! is what both 01's and L1's map open, as far as L2 uses it.
//!
//! L1 may change its map without a word. So what is open in L2's is read anew at each entry. It
//! begins closed, and a word of it is opened when L2 accesses what one of its bits is for: most of
//! what could be open is never used.

use svm::maps::{MSR_BYTES, PORT_BYTES};
use thiserror::Error;

/// Words of a permission map of MSRs.
pub const MSR_WORDS: usize = MSR_BYTES / 8;
/// Words of a permission map of ports.
pub const PORT_WORDS: usize = PORT_BYTES / 8;
/// More words than any map of 01's opens something in.
const MOST: usize = 32;

/// The words of 01's map in which something is open.
#[derive(Clone, Debug)]
pub struct OpenWords {
    words: [(u16, u64); MOST],
    count: usize,
}

/// Those of them that L2 uses, a bit for each. None at first, and where the map is another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used(u32);

impl Used {
    /// None are: nothing is to be merged.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The same of both maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UsedMaps {
    /// Of ports.
    pub ports: Used,
    /// Of MSRs.
    pub msrs: Used,
}

impl UsedMaps {
    /// Nothing is to be merged. One look, at both at once.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        u64::from(self.ports.0) | u64::from(self.msrs.0) << 32 == 0
    }
}

/// 01's map has more open words than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a permission map is open in more than {MOST} words")]
pub struct TooMany;

impl OpenWords {
    /// Those of a map.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn of(map: &[u64]) -> Result<Self, TooMany> {
        let mut open = OpenWords { words: [(0, u64::MAX); MOST], count: 0 };
        for (at, word) in map.iter().enumerate().filter(|(_, word)| **word != u64::MAX) {
            *open.words.get_mut(open.count).ok_or(TooMany)? = (at as u16, *word);
            open.count += 1;
        }
        Ok(open)
    }

    /// As if all of them were used.
    pub fn all(&self) -> Used {
        Used(((1 << self.count.min(MOST)) - 1u64) as u32)
    }

    /// L2 accesses what this bit is for, which L1 lets it. False: 01's map has it closed.
    pub fn add(&self, used: &mut Used, bit: usize) -> bool {
        let is_open =
            |(at, own): &(u16, u64)| usize::from(*at) == bit / 64 && own >> (bit % 64) & 1 == 0;
        let found = self.words[..self.count.min(MOST)].iter().position(is_open);
        if let Some(n) = found {
            used.0 |= 1 << n;
        }
        found.is_some()
    }

    /// Merges what is used of L1's map into the one that L2 runs by, which was closed at first.
    /// `theirs`: a word of L1's. What L1 has closed isn't used any more.
    pub fn merge(&self, used: &mut Used, merged: &mut [u64], theirs: impl Fn(usize) -> u64) {
        let mut left = used.0;
        while left != 0 {
            let n = left.trailing_zeros() as usize % MOST;
            left &= left - 1;
            let (at, own) = self.words[n];
            let at = usize::from(at);
            let both = own | theirs(at);
            if let Some(word) = merged.get_mut(at) {
                *word = both;
            }
            if both == u64::MAX {
                used.0 &= !(1 << n);
            }
        }
    }
}
