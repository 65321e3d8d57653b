//! The duty to invalidate, as a value.

use crate::Memory;
use crate::frames::Frames;

/// What the caller must invalidate before it relies on a change, and the table frames that may be
/// used again only after that. See [the rule](crate#who-invalidates).
#[must_use = "stale translations stay in use until the range is invalidated"]
#[derive(Debug, Default)]
pub struct Flush {
    /// First and last address of the pages that were changed.
    span: Option<(u64, u64)>,
    retired: Frames,
}

impl Flush {
    /// First address and length of what to invalidate: whole pages in the sizes they had before,
    /// so it is larger than what was asked for when a large page was split. `None`: nothing.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.span.map(|(first, last)| (first, (last - first).saturating_add(1)))
    }

    /// The invalidation is complete: frees the table frames that are no longer used.
    pub fn done<M: Memory>(self, mem: &mut M) {
        self.retired.free(mem);
    }

    /// Adds the page from `first` to `last`.
    pub(crate) fn touch(&mut self, first: u64, last: u64) {
        let (low, high) = self.span.unwrap_or((first, last));
        self.span = Some((low.min(first), high.max(last)));
    }

    /// Is an address from `first` to `last` in it?
    pub(crate) fn reaches(&self, first: u64, last: u64) -> bool {
        self.span.is_some_and(|(low, high)| low <= last && first <= high)
    }

    /// Adds a table frame that nothing points to any more.
    pub(crate) fn retire<M: Memory>(&mut self, mem: &mut M, frame: u64) {
        self.retired.push(mem, frame);
    }

    /// How many table frames wait.
    pub(crate) fn retired(&self) -> u64 {
        self.retired.count()
    }
}
