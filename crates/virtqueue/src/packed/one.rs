//! Chains of one buffer in a packed ring. What is said at [`OneByOne`](crate::OneByOne).
use super::PackedQueue;
use crate::descriptor::{INDIRECT, NEXT, Packed, WRITE};
use crate::{Broken, Chain, One};
use window::Window;

impl<const N: usize> PackedQueue<N> {
    #[inline(always)]
    pub(crate) fn next_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        let at = self.next.index;
        // As in `take`.
        let word = match self.ring.load_u64_acquire(Packed::flags_at(at)) {
            Ok(word) if self.is_available(word) => word,
            other => {
                *taken = other.map(|_| false).map_err(Broken::from);
                return None;
            }
        };
        let wanted = if WRITABLE { WRITE } else { 0 };
        if Packed::flags_of(word) & (NEXT | INDIRECT | WRITE) != wanted
            || self.outstanding >= self.size
        {
            *taken = self.take_any(window, word, chain);
            return None;
        }
        let descriptor = match Packed::read(&self.ring, at, word) {
            Ok(descriptor) => descriptor,
            Err(outside) => {
                *taken = Err(outside.into());
                return None;
            }
        };
        let id = descriptor.id;
        let in_flight = self.in_flight.get(usize::from(id)).copied();
        match window.span_of_largest(descriptor.address, descriptor.len.into()) {
            // `N` isn't less than the size.
            Some(span) if id < self.size && in_flight == Some(0) => {
                self.next = self.next.step(1, self.size);
                Some(One::new(id, span))
            }
            _ => {
                *taken = self.take_read(window, descriptor, chain);
                None
            }
        }
    }

    #[inline(never)]
    fn take_any(&mut self, window: &Window, word: u64, chain: &mut Chain) -> Result<bool, Broken> {
        let mut taking = chain.begin(window);
        let (id, count) = self.walk(word, &mut taking)?;
        self.took(id, count)?;
        taking.finish(id);
        Ok(true)
    }

    /// A chain of a descriptor that was read.
    #[inline(never)]
    fn take_read(
        &mut self,
        window: &Window,
        descriptor: Packed,
        chain: &mut Chain,
    ) -> Result<bool, Broken> {
        let Packed { address, len, id, flags } = descriptor;
        let mut taking = chain.begin(window);
        taking.push(address, len, flags & WRITE != 0)?;
        self.took(id, 1)?;
        taking.finish(id);
        Ok(true)
    }

    #[inline(always)]
    pub(crate) fn used_one(&mut self, one: One, written: u32) {
        self.write_used(one.head, written);
        self.unpublished = self.unpublished.saturating_add(1);
        self.used = self.used.step(1, self.size);
    }

    pub(crate) fn hold_one(&mut self, id: u16) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(id)) {
            *in_flight = 1;
        }
        self.outstanding = self.outstanding.wrapping_add(1);
    }
}
