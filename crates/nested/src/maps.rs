//! The permission map of MSRs by which L2 runs (APM vol. 2, 15.11): open is what both 01's and L1's
//! map open.
//!
//! L1 may change its map without a word. So it is read at each entry, but only where 01's map is
//! open at all, which is in a few words.

use thiserror::Error;

/// Words of a permission map of MSRs.
pub const MSR_WORDS: usize = 1024;
/// Words of a page.
const PAGE_WORDS: usize = 512;
/// More words than any map of 01's opens something in.
const MOST: usize = 32;

/// The words of 01's map in which something is open.
#[derive(Clone, Debug)]
pub struct OpenWords {
    /// In ascending order.
    words: [(u16, u64); MOST],
    /// How many there are in the map's first page, and in all.
    first: usize,
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
        let mut open = OpenWords { words: [(0, 0); MOST], first: 0, count: 0 };
        for (at, word) in map.iter().enumerate().filter(|(_, word)| **word != u64::MAX) {
            *open.words.get_mut(open.count).ok_or(TooMany)? = (at as u16, *word);
            open.count += 1;
            open.first += usize::from(at < PAGE_WORDS);
        }
        Ok(open)
    }

    /// Is anything open in this page of the map?
    #[inline(always)]
    pub fn is_in(&self, page: usize) -> bool {
        if page == 0 { self.first > 0 } else { self.count > self.first }
    }

    /// Merges L1's map into the one that L2 runs by. `theirs` gives a word of a page of it, by the
    /// page and the word's place there. The map had nothing open at first, and never anything but
    /// by this.
    #[inline(always)]
    pub fn merge(&self, merged: &mut [u64; MSR_WORDS], theirs: impl Fn(usize, usize) -> u64) {
        let (first, second) = self.words[..self.count].split_at(self.first.min(self.count));
        for (page, words) in [first, second].into_iter().enumerate() {
            for &(at, own) in words {
                let at = usize::from(at) % MSR_WORDS;
                merged[at] = own | theirs(page, at % PAGE_WORDS);
            }
        }
    }
}
