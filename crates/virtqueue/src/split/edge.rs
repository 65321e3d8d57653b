//! How far a split ring's chains were taken: how many more were offered, wherever its queue is.
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
    size: u16,
}

impl Edge {
    /// How many chains are offered behind it; of a ring that is broken 1, as taking it finds that
    /// out. All accesses that follow come after the look.
    #[inline(always)]
    pub fn waiting(&self) -> u16 {
        let offered = self.index.load_acquire(0);
        // Most have nothing.
        if offered == self.next {
            return 0;
        }
        let waiting = offered.wrapping_sub(self.next);
        if waiting > self.size { 1 } else { waiting }
    }
}

impl<const N: usize> SplitQueue<N> {
    /// Where it is.
    #[inline]
    pub(crate) fn edge(&self) -> Edge {
        Edge { index: self.index, next: self.next, size: self.size }
    }
}
