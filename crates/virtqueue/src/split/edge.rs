//! How far a split ring's chains were taken: whether more were offered, wherever its queue is.
//!
//! For whoever looks at many rings, most of which have nothing. Guarantees: the answer is that of a
//! load made now. It holds as long as the queue takes nothing.

use super::SplitQueue;
use window::Ring;

/// The place behind the last chain that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    index: Ring<u16>,
    next: u16,
}

impl Edge {
    /// Is nothing offered behind it? All accesses that follow come after the look.
    #[inline(always)]
    pub fn is_the_end(&self) -> bool {
        self.index.load_acquire(0) == self.next
    }
}

impl<const N: usize> SplitQueue<N> {
    /// Where it is.
    #[inline]
    pub(crate) fn edge(&self) -> Edge {
        Edge { index: self.index, next: self.next }
    }
}
