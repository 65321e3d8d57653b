//! Pieces of shared memory, and accesses to words in them.
//!
//! A span lies in one region. All accesses are checked against it; words must be aligned. A word is
//! loaded or stored at once, little-endian, relaxed unless the name says otherwise.
use crate::{Outside, bytes};
use core::ptr::NonNull;
use core::sync::atomic::fence;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of shared memory, checked: it may be copied and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    host: NonNull<u8>,
    len: u64,
    dma: u64,
}

// SAFETY: as for `Window`: all accesses are atomic or opaque to the compiler.
unsafe impl Send for Span {}
// SAFETY: as for `Send`.
unsafe impl Sync for Span {}

/// Two words that lie as a descriptor does.
#[repr(align(16))]
struct Pair {
    _words: [u64; 2],
}

/// A load, relaxed or acquiring, and a store, relaxed or releasing, of one type of word.
macro_rules! words {
    ($($word:ident $atomic:ident $load:ident $acquire:ident $store:ident $release:ident)*) => {$(
        /// Loads the word at this offset, relaxed.
        ///
        /// # Errors
        ///
        /// [`Outside`] if it isn't in the span, or isn't aligned.
        #[inline]
        pub fn $load(&self, at: u64) -> Result<$word, Outside> {
            let place = self.word::<$word>(at)?;
            #[cfg(loom)]
            if let Some(value) = crate::model::load(place.as_ptr().addr(), Ordering::Relaxed) {
                return Ok(value as $word);
            }
            // SAFETY: `word` checked that it is in the span and aligned; the bytes are accessed by
            // atomics, or what counts as such, alone.
            let word = unsafe { $atomic::from_ptr(place.as_ptr()) };
            Ok($word::from_le(word.load(Ordering::Relaxed)))
        }

        /// Loads the word at this offset before all accesses that follow.
        ///
        /// # Errors
        ///
        /// [`Outside`] if it isn't in the span, or isn't aligned.
        #[inline]
        pub fn $acquire(&self, at: u64) -> Result<$word, Outside> {
            let place = self.word::<$word>(at)?;
            #[cfg(loom)]
            if let Some(value) = crate::model::load(place.as_ptr().addr(), Ordering::Acquire) {
                return Ok(value as $word);
            }
            // SAFETY: as for the relaxed load.
            let word = unsafe { $atomic::from_ptr(place.as_ptr()) };
            Ok($word::from_le(word.load(Ordering::Acquire)))
        }

        /// Stores the word at this offset, relaxed.
        ///
        /// # Errors
        ///
        /// [`Outside`] if it isn't in the span, or isn't aligned.
        #[inline]
        pub fn $store(&self, at: u64, value: $word) -> Result<(), Outside> {
            let place = self.word::<$word>(at)?;
            #[cfg(loom)]
            if crate::model::store(place.as_ptr().addr(), value.into(), Ordering::Relaxed) {
                return Ok(());
            }
            // SAFETY: as for the relaxed load.
            let word = unsafe { $atomic::from_ptr(place.as_ptr()) };
            word.store(value.to_le(), Ordering::Relaxed);
            Ok(())
        }

        /// Stores the word at this offset after all accesses before.
        ///
        /// # Errors
        ///
        /// [`Outside`] if it isn't in the span, or isn't aligned.
        #[inline]
        pub fn $release(&self, at: u64, value: $word) -> Result<(), Outside> {
            let place = self.word::<$word>(at)?;
            #[cfg(loom)]
            if crate::model::store(place.as_ptr().addr(), value.into(), Ordering::Release) {
                return Ok(());
            }
            // SAFETY: as for the relaxed load.
            let word = unsafe { $atomic::from_ptr(place.as_ptr()) };
            word.store(value.to_le(), Ordering::Release);
            Ok(())
        }
    )*};
}

impl Span {
    /// No bytes of no memory.
    pub const EMPTY: Span = Span { host: NonNull::dangling(), len: 0, dma: 0 };

    /// The `len` bytes at `host`, which devices have at `dma`.
    ///
    /// # Safety
    ///
    /// They are bytes of one region of a window, as the caller of `Window::new` vouched for.
    #[inline]
    pub(crate) unsafe fn new(host: NonNull<u8>, len: u64, dma: u64) -> Span {
        Span { host, len, dma }
    }

    /// How many bytes it is.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is no bytes at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte for devices.
    #[inline]
    pub fn dma(&self) -> u64 {
        self.dma
    }

    /// Where its first byte is in this program: for system calls that are given a buffer. What is
    /// done with the pointer is for an `unsafe` block of the caller's to justify.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// `len` bytes of it from the offset `at`, if it has them.
    #[inline]
    pub fn sub(&self, at: u64, len: u64) -> Option<Span> {
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: the offset is within the span, or right behind its last byte.
        let host = unsafe { self.host.add(at as usize) };
        // The sum can wrap for no bytes right behind the last address alone.
        Some(Span { host, len, dma: self.dma.wrapping_add(at) })
    }

    /// Copies the bytes at this offset, each once; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if the span hasn't all of them.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.sub(at, into.len() as u64).ok_or(Outside)?.load_bytes(into);
        Ok(())
    }

    /// Stores bytes at this offset; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if the span hasn't room for all of them.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside> {
        self.sub(at, from.len() as u64).ok_or(Outside)?.store_bytes(from);
        Ok(())
    }

    /// Stores this byte everywhere.
    pub fn fill(&self, byte: u8) {
        // SAFETY: they are the span's own bytes.
        unsafe { bytes::fill(self.as_ptr(), byte, self.len as usize) }
    }

    /// Copies its bytes to the start of the other one; all or none of them. If the two overlap,
    /// which bytes arrive there isn't said.
    ///
    /// # Errors
    ///
    /// [`Outside`] if the other one is shorter.
    #[inline]
    pub fn copy_to(&self, to: &Span) -> Result<(), Outside> {
        let to = to.sub(0, self.len).ok_or(Outside)?;
        // SAFETY: both have that many bytes.
        unsafe { bytes::copy(self.as_ptr(), to.as_ptr(), self.len as usize) }
        Ok(())
    }

    /// Copies the start of the other one to all its bytes; all or none of them. If the two overlap,
    /// which bytes arrive here isn't said.
    ///
    /// # Errors
    ///
    /// [`Outside`] if the other one is shorter.
    #[inline]
    pub fn copy_from(&self, from: &Span) -> Result<(), Outside> {
        from.sub(0, self.len).ok_or(Outside)?.copy_to(self)
    }

    words! {
        u16 AtomicU16 load_u16 load_u16_acquire store_u16 store_u16_release
        u32 AtomicU32 load_u32 load_u32_acquire store_u32 store_u32_release
        u64 AtomicU64 load_u64 load_u64_acquire store_u64 store_u64_release
    }

    /// Stores the byte at this offset, relaxed.
    ///
    /// # Errors
    ///
    /// [`Outside`] if it isn't in the span.
    #[inline]
    pub fn store_u8(&self, at: u64, value: u8) -> Result<(), Outside> {
        let place = self.word::<u8>(at)?;
        // SAFETY: as for the relaxed load of a word; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(place.as_ptr()) }.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Sets these bits of the byte at this offset, after all accesses before; others may set and
    /// clear bits of it at the same time.
    ///
    /// # Errors
    ///
    /// [`Outside`] if it isn't in the span.
    #[inline]
    pub fn or_u8(&self, at: u64, bits: u8) -> Result<(), Outside> {
        let place = self.word::<u8>(at)?;
        // SAFETY: `word` checked that it is in the span; the bytes are accessed by atomics, or what
        // counts as such, alone.
        let byte = unsafe { AtomicU8::from_ptr(place.as_ptr()) };
        // What is set already isn't stored anew: others have the line, too.
        fence(Ordering::SeqCst);
        if byte.load(Ordering::Relaxed) & bits != bits {
            byte.fetch_or(bits, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Loads the two words at this offset, relaxed, one after the other: not at once.
    ///
    /// # Errors
    ///
    /// [`Outside`] if not both are in the span, or they aren't aligned to 16 bytes.
    #[inline]
    pub fn load_u64_pair(&self, at: u64) -> Result<[u64; 2], Outside> {
        let pair = self.word::<Pair>(at)?;
        // Loom watches words one by one.
        #[cfg(loom)]
        let words = {
            let _ = pair;
            [self.load_u64(at)?, self.load_u64(at + 8)?]
        };
        #[cfg(not(loom))]
        let words = {
            let place = pair.as_ptr().cast::<u64>();
            // SAFETY: `word` checked that both are in the span and aligned; the bytes are accessed
            // by atomics, or what counts as such, alone.
            let both = unsafe { [AtomicU64::from_ptr(place), AtomicU64::from_ptr(place.add(1))] };
            both.map(|word| u64::from_le(word.load(Ordering::Relaxed)))
        };
        Ok(words)
    }

    /// Stores words from this offset on, relaxed, one after the other: not at once.
    ///
    /// # Errors
    ///
    /// [`Outside`] if not all are in the span, or they aren't aligned to 8 bytes.
    #[inline]
    pub fn store_u64_all<const N: usize>(&self, at: u64, words: [u64; N]) -> Result<(), Outside> {
        let all = self.word::<[u64; N]>(at)?;
        // Loom watches words one by one.
        #[cfg(loom)]
        {
            let _ = all;
            let mut places = (at..).step_by(8).zip(words);
            places.try_for_each(|(place, word)| self.store_u64(place, word))
        }
        #[cfg(not(loom))]
        {
            for (index, word) in words.into_iter().enumerate() {
                // SAFETY: `word` checked that all are in the span and aligned; the bytes are
                // accessed by atomics, or what counts as such, alone.
                let place = unsafe { AtomicU64::from_ptr(all.as_ptr().cast::<u64>().add(index)) };
                place.store(word.to_le(), Ordering::Relaxed);
            }
            Ok(())
        }
    }

    /// Stores two words at this offset, relaxed, one after the other: not at once.
    ///
    /// # Errors
    ///
    /// [`Outside`] if not both are in the span, or they aren't aligned to 4 bytes.
    #[inline]
    pub fn store_u32_pair(&self, at: u64, [first, second]: [u32; 2]) -> Result<(), Outside> {
        let pair = self.word::<[u32; 2]>(at)?;
        // Loom watches words one by one.
        #[cfg(loom)]
        {
            let _ = pair;
            self.store_u32(at, first)?;
            self.store_u32(at + 4, second)
        }
        #[cfg(not(loom))]
        {
            let place = pair.as_ptr().cast::<u32>();
            // SAFETY: `word` checked that both are in the span and aligned; the bytes are accessed
            // by atomics, or what counts as such, alone.
            let both = unsafe { [AtomicU32::from_ptr(place), AtomicU32::from_ptr(place.add(1))] };
            both[0].store(first.to_le(), Ordering::Relaxed);
            both[1].store(second.to_le(), Ordering::Relaxed);
            Ok(())
        }
    }

    /// Copies as many bytes as `into` takes. It is no longer than the span.
    #[inline]
    pub(crate) fn load_bytes(&self, into: &mut [u8]) {
        debug_assert!(into.len() as u64 <= self.len);
        let len = into.len().min(self.len as usize);
        // SAFETY: both have that many bytes, and those of `into` are nobody else's.
        unsafe { bytes::copy(self.as_ptr(), into.as_mut_ptr(), len) }
    }

    /// Stores all bytes of `from`. It is no longer than the span.
    #[inline]
    pub(crate) fn store_bytes(&self, from: &[u8]) {
        debug_assert!(from.len() as u64 <= self.len);
        let from = &from[..from.len().min(self.len as usize)];
        // SAFETY: the span has that many bytes.
        unsafe { bytes::store(from, self.as_ptr()) }
    }

    /// The place of a whole and aligned word.
    #[inline]
    fn word<T>(&self, at: u64) -> Result<NonNull<T>, Outside> {
        let size = size_of::<T>() as u64;
        if size > self.len || at > self.len - size {
            return Err(Outside);
        }
        // SAFETY: the offset is within the span.
        let place = unsafe { self.host.add(at as usize) }.cast::<T>();
        if place.is_aligned() { Ok(place) } else { Err(Outside) }
    }
}
