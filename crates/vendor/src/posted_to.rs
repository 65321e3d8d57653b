//! For which backing page the interrupts are that devices post to guests of one vCPU's.
//!
//! An inner guest may take them itself where they are all for its own page, and no other guest's
//! are on their way to the core. Whoever routes interrupts says so here: before another page's may
//! come ([`PostedTo::begin`]), and when it is done ([`PostedTo::set`]); and has the inner guest
//! left that may go by what was said before.
//!
//! Guarantees: two looks that find the same word had no change between them, but for 2,048 changes.

use core::sync::atomic::{AtomicU64, Ordering};

/// Of a word, the page; below it is how often that has changed.
const PAGE: u64 = !0xFFF;
/// No page has this address.
const NO_PAGE: u64 = PAGE;

/// For which page they are.
#[derive(Debug)]
pub struct PostedTo(AtomicU64);

impl Default for PostedTo {
    fn default() -> Self {
        PostedTo(AtomicU64::new(NO_PAGE))
    }
}

impl PostedTo {
    /// It is as somebody has said last.
    pub fn look(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Are all of them for this page, by what was found there?
    pub fn is_for(word: u64, page: u64) -> bool {
        word & PAGE == page && page != NO_PAGE
    }

    /// Interrupts for this page may come from here on. True: a guest with another page may take
    /// them itself, until it is left.
    #[must_use]
    pub fn begin(&self, page: u64) -> bool {
        self.look() & PAGE != page && self.put(NO_PAGE)
    }

    /// All that may come are for these pages. True: a guest with another page may take its own
    /// itself, until it is left, which is to be before interrupts for a page begin to come.
    #[must_use]
    pub fn set(&self, mut pages: impl Iterator<Item = u64>) -> bool {
        let first = pages.next().unwrap_or(NO_PAGE);
        self.put(if pages.all(|page| page == first) { first } else { NO_PAGE })
    }

    /// Those who say so hold the VM's lock. True: they were for another page.
    fn put(&self, page: u64) -> bool {
        let word = self.look();
        let changes = word & PAGE != page & PAGE;
        if changes {
            let count = word.wrapping_add(1) & !PAGE;
            self.0.store(page & PAGE | count, Ordering::Release);
        }
        changes && word & PAGE != NO_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_for(posted: &PostedTo, page: u64) -> bool {
        PostedTo::is_for(posted.look(), page)
    }

    #[test]
    fn it_is_for_a_page_that_is_the_only_one() {
        let posted = PostedTo::default();
        assert!(!is_for(&posted, 0) && !is_for(&posted, NO_PAGE));
        for page in [0, 0x1000, 0xF_FFFF_FFFF_F000] {
            let _ = posted.set([page, page].into_iter());
            assert!(is_for(&posted, page) && !is_for(&posted, page ^ 0x2000));
        }
        assert!(posted.set([0x1000, 0x2000].into_iter()), "who took the last page's is left");
        assert!(!is_for(&posted, 0x1000) && !is_for(&posted, 0x2000));
        assert!(!posted.set(core::iter::empty()));
        assert!(!is_for(&posted, 0) && !is_for(&posted, 0x1000) && !is_for(&posted, NO_PAGE));
    }

    #[test]
    fn who_takes_another_pages_is_left_first() {
        let posted = PostedTo::default();
        assert!(!posted.begin(0x1000), "nobody takes any");
        assert!(!posted.set([0x1000].into_iter()));
        assert!(!posted.begin(0x1000), "it is its own");
        assert!(is_for(&posted, 0x1000));
        assert!(posted.begin(0x2000));
        assert!(!is_for(&posted, 0x1000) && !is_for(&posted, 0x2000));
        assert!(!posted.begin(0x2000), "nobody takes any by now");
        assert!(!posted.set([0x2000].into_iter()));
        assert!(posted.set(core::iter::empty()), "none comes, and another page's may");
        assert!(!posted.begin(0x1000));
    }

    #[test]
    fn what_was_meanwhile_is_seen() {
        let posted = PostedTo::default();
        let change = || posted.begin(0x2000) | posted.set([0x1000].into_iter());
        change();
        let before = posted.look();
        assert!(!posted.set([0x1000].into_iter()));
        assert_eq!(posted.look(), before);
        change();
        assert!(is_for(&posted, 0x1000) && posted.look() != before);
        // Its count goes around without the page.
        for _ in 0..0x2000 {
            change();
            assert!(is_for(&posted, 0x1000));
        }
    }
}
