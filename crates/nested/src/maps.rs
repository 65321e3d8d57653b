//! The permission map of MSRs by which L2 runs (APM vol. 2, 15.11): open is what both 01's and L1's
//! map open.
//!
//! L1 may change its map without a word. So it is read at each entry, but only where 01's map is
//! open at all, which is in a few words.

use thiserror::Error;

/// Words of a permission map of MSRs.
pub const MSR_WORDS: usize = 1024;
/// More words than any map of 01's opens something in.
const MOST: usize = 32;

/// The words of 01's map in which something is open.
#[derive(Clone, Debug)]
pub struct OpenWords {
    words: [(u16, u64); MOST],
    count: usize,
}

/// 01's map has more open words than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a permission map of MSRs is open in more than {MOST} words")]
pub struct TooMany;

impl OpenWords {
    /// Those of a map.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn of(map: &[u64; MSR_WORDS]) -> Result<Self, TooMany> {
        let mut open = OpenWords { words: [(0, 0); MOST], count: 0 };
        for (at, word) in map.iter().enumerate().filter(|(_, word)| **word != u64::MAX) {
            *open.words.get_mut(open.count).ok_or(TooMany)? = (at as u16, *word);
            open.count += 1;
        }
        Ok(open)
    }

    /// Merges L1's map, whose words `theirs` gives, into the one that L2 runs by. That one had
    /// nothing open at first, and never anything but by this.
    pub fn merge(&self, merged: &mut [u64; MSR_WORDS], theirs: &dyn Fn(usize) -> u64) {
        for &(at, own) in &self.words[..self.count] {
            let at = usize::from(at);
            merged[at] = own | theirs(at);
        }
    }
}
