//! How much waits in a packed ring.
//!
//! No index says it: what is offered is found descriptor by descriptor. Who asks again from where
//! it last found the end takes one load where nothing came.
//!
//! Guarantees: bounded loads, twice as many as a place in the ring has bits. A driver that keeps to
//! the standard gets its number; for any other it is any, up to the ring's size.

use super::PackedQueue;
use crate::descriptor::Packed;

impl<const N: usize> PackedQueue<N> {
    /// Descriptors that wait, if these `before` do: as this said when it was last asked, and
    /// nothing was taken since.
    pub(crate) fn backlog(&self, before: u16) -> u16 {
        let room = self.size.saturating_sub(self.outstanding);
        let mut least = before.min(room);
        if !self.is_there(least, room) {
            return least;
        }
        least += 1;
        let mut step = 1;
        let mut most = loop {
            let further = least.saturating_add(step).min(room);
            if further == least || !self.is_there(further - 1, room) {
                break further.saturating_sub(1).max(least);
            }
            (least, step) = (further, step.saturating_mul(2));
        };
        while least < most {
            let middle = least + (most - least) / 2;
            if self.is_there(middle, room) {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        least
    }

    /// Is the descriptor available that is so many places on, of those there is `room` for?
    fn is_there(&self, ahead: u16, room: u16) -> bool {
        if ahead >= room {
            return false;
        }
        let at = self.next.step(ahead, self.size);
        let word = self.ring.load_u64(Packed::flags_at(at.index));
        word.is_ok_and(|word| at.is_available(Packed::flags_of(word)))
    }
}
