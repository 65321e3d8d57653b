//! Rings of words in shared memory, whose places are checked when the ring is made.
//!
//! Guarantees: no access is outside of the span that the ring was made of. An index counts round:
//! its low bits are the place. Each word is loaded or stored once, little-endian.
use crate::Span;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// So many words of this kind, a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Ring<W> {
    first: *mut W,
    mask: u16,
    /// Loom watches words by their span.
    #[cfg(loom)]
    span: Span,
}

// SAFETY: as for `Span`: all accesses are atomic.
unsafe impl<W> Send for Ring<W> {}
// SAFETY: as for `Send`.
unsafe impl<W> Sync for Ring<W> {}

impl Span {
    /// The ring of `count` words from the offset `at` on. None if the span hasn't all of them, they
    /// aren't aligned, or their number is no power of two.
    pub fn ring<W>(&self, at: u64, count: u16) -> Option<Ring<W>> {
        let all = self.sub(at, u64::from(count) * size_of::<W>() as u64)?;
        let first = all.as_ptr().cast::<W>();
        if !count.is_power_of_two() || !first.is_aligned() {
            return None;
        }
        Some(Ring {
            first,
            mask: count - 1,
            #[cfg(loom)]
            span: all,
        })
    }
}

impl<W> Ring<W> {
    /// Where the word of this index is: one of the ring's.
    #[cfg(not(loom))]
    #[inline(always)]
    fn place(&self, index: u16) -> *mut W {
        // SAFETY: the mask is less than the number of words that `Span::ring` has checked.
        unsafe { self.first.add(usize::from(index & self.mask)) }
    }

    /// Its offset in the span.
    #[cfg(loom)]
    fn offset(&self, index: u16) -> u64 {
        u64::from(index & self.mask) * size_of::<W>() as u64
    }
}

#[cfg(not(loom))]
impl Ring<u16> {
    /// Loads a word, relaxed.
    #[inline(always)]
    pub fn load(&self, index: u16) -> u16 {
        // SAFETY: the place is in the ring, whose words are aligned; they are accessed by atomics,
        // or what counts as such, alone.
        let word = unsafe { AtomicU16::from_ptr(self.place(index)) };
        u16::from_le(word.load(Ordering::Relaxed))
    }

    /// Loads a word before all accesses that follow.
    #[inline(always)]
    pub fn load_acquire(&self, index: u16) -> u16 {
        // SAFETY: as for the relaxed load.
        let word = unsafe { AtomicU16::from_ptr(self.place(index)) };
        u16::from_le(word.load(Ordering::Acquire))
    }

    /// Stores a word after all accesses before.
    #[inline(always)]
    pub fn store_release(&self, index: u16, value: u16) {
        // SAFETY: as for the relaxed load.
        let word = unsafe { AtomicU16::from_ptr(self.place(index)) };
        word.store(value.to_le(), Ordering::Release);
    }
}

#[cfg(not(loom))]
impl Ring<[u32; 2]> {
    /// Stores two words, relaxed, one after the other: not at once.
    #[inline(always)]
    pub fn store(&self, index: u16, [first, second]: [u32; 2]) {
        let place = self.place(index).cast::<u32>();
        // SAFETY: both are in the ring, whose words are aligned; they are accessed by atomics, or
        // what counts as such, alone.
        let both = unsafe { [AtomicU32::from_ptr(place), AtomicU32::from_ptr(place.add(1))] };
        both[0].store(first.to_le(), Ordering::Relaxed);
        both[1].store(second.to_le(), Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
impl Ring<[u64; 2]> {
    /// Loads two words, relaxed, one after the other: not at once.
    #[inline(always)]
    pub fn load(&self, index: u16) -> [u64; 2] {
        let place = self.place(index).cast::<u64>();
        // SAFETY: as for the store of two words.
        let both = unsafe { [AtomicU64::from_ptr(place), AtomicU64::from_ptr(place.add(1))] };
        both.map(|word| u64::from_le(word.load(Ordering::Relaxed)))
    }
}

impl Ring<[u64; 2]> {
    /// The same, if the index is one of the ring's places, without counting round.
    #[inline(always)]
    pub fn get(&self, place: u16) -> Option<[u64; 2]> {
        (place <= self.mask).then(|| self.load(place))
    }
}

#[cfg(loom)]
impl Ring<u16> {
    /// Loads a word, relaxed.
    pub fn load(&self, index: u16) -> u16 {
        self.span.load_u16(self.offset(index)).unwrap_or_default()
    }

    /// Loads a word before all accesses that follow.
    pub fn load_acquire(&self, index: u16) -> u16 {
        self.span.load_u16_acquire(self.offset(index)).unwrap_or_default()
    }

    /// Stores a word after all accesses before.
    pub fn store_release(&self, index: u16, value: u16) {
        let _ = self.span.store_u16_release(self.offset(index), value);
    }
}

#[cfg(loom)]
impl Ring<[u32; 2]> {
    /// Stores two words, relaxed, one after the other: not at once.
    pub fn store(&self, index: u16, words: [u32; 2]) {
        let _ = self.span.store_u32_pair(self.offset(index), words);
    }
}

#[cfg(loom)]
impl Ring<[u64; 2]> {
    /// Loads two words, relaxed, one after the other: not at once.
    pub fn load(&self, index: u16) -> [u64; 2] {
        self.span.load_u64_pair(self.offset(index)).unwrap_or_default()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::Memory;

    #[test]
    fn an_index_comes_round_inside_of_the_span() {
        let memory = Memory::new(&[(0, 4096)], 0);
        let span = memory.window().span(16, 48).expect("it is in memory");
        let words = span.ring::<u16>(4, 4).expect("it fits");
        for index in 0..4 {
            span.store_u16(4 + 2 * index, index as u16 + 7).expect("it is in the span");
        }
        for index in [0, 1, 2, 3, 4, 7, 0x8001, u16::MAX] {
            assert_eq!(words.load(index), index % 4 + 7);
            assert_eq!(words.load_acquire(index), index % 4 + 7);
        }
        words.store_release(6, 1);
        assert_eq!((words.load(2), span.load_u16(8)), (1, Ok(1)));
        span.store_u16(8, 9).expect("it is in the span");
        let pairs = span.ring::<[u32; 2]>(8, 2).expect("it fits");
        pairs.store(5, [1, 2]);
        assert_eq!(span.load_u64(16), Ok(1 | 2 << 32));
        let longer = span.ring::<[u64; 2]>(0, 2).expect("it fits");
        assert_eq!(longer.load(3)[0], 1 | 2 << 32);
        assert_eq!(longer.get(1), Some(longer.load(1)));
        assert!(longer.get(2).is_none() && longer.get(3).is_none());
    }

    #[test]
    fn what_doesnt_fit_is_no_ring() {
        let memory = Memory::new(&[(0, 4096)], 0);
        let span = memory.window().span(8, 32).expect("it is in memory");
        assert!(span.ring::<u16>(0, 16).is_some() && span.ring::<u16>(2, 16).is_none());
        assert!(span.ring::<u16>(1, 2).is_none(), "not aligned");
        assert!(span.ring::<u16>(0, 3).is_none() && span.ring::<u16>(0, 0).is_none());
        assert!(span.ring::<[u64; 2]>(0, 2).is_some() && span.ring::<[u64; 2]>(8, 2).is_none());
        assert!(span.ring::<u16>(u64::MAX, 2).is_none());
    }
}
