//! Chains of one buffer in a packed ring.
use super::PackedQueue;
use crate::descriptor::{INDIRECT, NEXT, Packed, WRITE};
use crate::{Broken, Chain, One, Ones};
use window::Window;

impl<const N: usize> Ones for PackedQueue<N> {
    #[inline(always)]
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        let first = match self.first_available() {
            Ok(Some(first)) => first,
            other => {
                *taken = other.map(|_| false);
                return None;
            }
        };
        let Packed { address, len, id, flags } = first;
        let wanted = if WRITABLE { WRITE } else { 0 };
        // What is wrong with another one is found where chains are walked.
        let is_free = || self.in_flight.get(usize::from(id)) == Some(&0);
        if flags & (NEXT | INDIRECT | WRITE) == wanted
            && id < self.size
            && self.outstanding < self.size
            && is_free()
            && let Some(span) = window.span_of_largest(address, len.into())
        {
            self.next = self.next.step(1, self.size);
            return Some(One { head: id, span });
        }
        *taken = self.take_any(window, first, chain, 0, |_| ()).map(|()| true);
        None
    }

    #[inline(always)]
    fn used_one(&mut self, one: One, written: u32) {
        self.write_used(one.head, 1, written);
    }

    #[cold]
    #[inline(never)]
    fn hold_one(&mut self, one: One, writable: bool, chain: &mut Chain) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(one.head)) {
            *in_flight = 1;
            self.outstanding = self.outstanding.wrapping_add(1);
        }
        chain.set_one(one.head, one.span, writable);
    }
}
