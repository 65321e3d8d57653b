//! Chains of one buffer in a split ring.
use super::SplitQueue;
use crate::descriptor::{self, INDIRECT, NEXT, WRITE};
use crate::{Broken, Chain, One, Ones};
use window::Window;

impl<const N: usize> Ones for SplitQueue<N> {
    #[inline(always)]
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        let head = match self.next_head() {
            Ok(Some(head)) => head,
            other => {
                *taken = other.map(|_| false);
                return None;
            }
        };
        let words = self.heads.load(head);
        let [address, word] = words;
        let (len, flags) = (word as u32, (word >> 32) as u16);
        let wanted = if WRITABLE { WRITE } else { 0 };
        if flags & (NEXT | INDIRECT | WRITE) == wanted
            && let Some(span) = window.span_of_largest(address, len.into())
        {
            self.next = self.next.wrapping_add(1);
            return Some(One { head, span });
        }
        *taken = self.take_any(window, words, head, chain);
        None
    }

    #[inline(always)]
    fn used_one(&mut self, one: One, written: u32) {
        self.completed.store(self.used, [one.head.into(), written]);
        self.used = self.used.wrapping_add(1);
    }

    #[cold]
    #[inline(never)]
    fn hold_one(&mut self, one: One, writable: bool, chain: &mut Chain) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(one.head)) {
            *in_flight = 1;
        }
        chain.set_one(one.head, one.span, writable);
    }
}

impl<const N: usize> SplitQueue<N> {
    #[inline(never)]
    fn take_any(
        &mut self,
        window: &Window,
        words: [u64; 2],
        head: u16,
        chain: &mut Chain,
    ) -> Result<bool, Broken> {
        descriptor::split_chain(window, &self.descriptors, words, head, self.indirect, chain)?;
        self.took(head);
        Ok(true)
    }
}
