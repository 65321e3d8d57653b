//! Checked views of memory that is shared with a guest.
//!
//! A [`Window`] knows the runs of guest-physical memory and where they are mapped here; a [`Span`]
//! is a checked piece of one run.
//!
//! Guarantees: no access is outside of the regions that the window was made of. Each access is one
//! that the guest may race with: bytes are copied, words are loaded and stored once. So what was
//! read doesn't change any more, and what was checked is what is used. Nothing here panics.
//!
//! Doesn't guarantee: that bytes which are copied while the guest writes them are of one moment;
//! only an aligned word is. Nor that two spans don't overlap.
//!
//! This is the one place with `unsafe` of the I/O engine: all of it rests on what the caller of
//! [`Window::new`] vouches for.
//!
//! | file | is |
//! |---|---|
//! | `lib` | the window: which guest address is where |
//! | `span` | the pieces, and accesses to words |
//! | `ring` | words whose places are checked once |
//! | `bytes` | copies of bytes that another side may write at the same time |
//! | `memory` | memory for tests (feature `memory`) |
//! | `model` | words that loom watches (`cfg(loom)`) |
#![cfg_attr(not(any(test, feature = "memory", loom)), no_std)]

mod bytes;
#[cfg(any(test, feature = "memory"))]
mod memory;
#[cfg(loom)]
pub mod model;
mod ring;
mod span;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use core::ptr::NonNull;
use thiserror::Error;

#[cfg(any(test, feature = "memory"))]
pub use memory::Memory;
pub use ring::Ring;
pub use span::Span;

/// The most regions of a window.
pub const MAX_REGIONS: usize = 8;
/// What the addresses and lengths of regions are multiples of, in bytes.
pub const ALIGNMENT: u64 = 4096;

/// One run of guest-physical memory. Addresses and length are multiples of [`ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first guest-physical address.
    pub guest: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where it is mapped in this program.
    pub host: NonNull<u8>,
    /// Its first address for devices that serve this guest: physical, or what their IOMMU takes.
    pub dma: u64,
}

impl Region {
    /// `len` bytes from the offset `at` on.
    ///
    /// # Safety
    ///
    /// The region is one that the caller of [`Window::new`] vouched for, and has these bytes.
    #[inline]
    unsafe fn span(&self, at: u64, len: u64) -> Span {
        // SAFETY: the offset stays inside of the region, by the caller.
        let host = unsafe { self.host.add(at as usize) };
        // SAFETY: the bytes are the region's, by the caller. The DMA address doesn't wrap: `new`
        // has checked the region's last one.
        unsafe { Span::new(host, len, self.dma + at) }
    }
}

/// Why regions don't make a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadRegions {
    /// There are more than [`MAX_REGIONS`].
    #[error("there are more than {MAX_REGIONS} regions of memory")]
    TooMany,
    /// The region of this guest address is empty, or isn't made of whole pages.
    #[error("the region at {0:#x} isn't made of whole pages")]
    Unaligned(u64),
    /// The region of this guest address ends beyond the last address there is.
    #[error("the region at {0:#x} ends beyond the last address")]
    TooLong(u64),
    /// The region of this guest address begins before the end of the one before it.
    #[error("the region at {0:#x} isn't behind the one before it")]
    Order(u64),
}

/// An access to something that isn't in the window, the span or the chain; or to a word that isn't
/// aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the access is outside of the shared memory")]
pub struct Outside;

/// A guest's memory. A copy is as good as the original.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The largest first, which nearly all accesses are to; those behind the last have no length.
    regions: [Region; MAX_REGIONS],
}

// SAFETY: a window hands out nothing but spans, and a span's accesses are atomic or opaque to the
// compiler, so that any thread may make them at any time. That the memory stays is vouched for in
// `Window::new`, for all threads.
unsafe impl Send for Window {}
// SAFETY: as for `Send`.
unsafe impl Sync for Window {}

impl Window {
    /// The window on these regions, in ascending order of their guest addresses.
    ///
    /// # Errors
    ///
    /// [`BadRegions`], with the first region that is at fault.
    ///
    /// # Safety
    ///
    /// All `len` bytes at `host` of each region must be mapped, readable and writable, by a pointer
    /// that may be used for all of them, for as long as this window, a copy of it, or a span of any
    /// of them is used. In all that time the program must make no reference to them, and access
    /// them itself by windows, atomics or volatile accesses alone. What the guest and devices do is
    /// free.
    pub unsafe fn new(regions: &[Region]) -> Result<Window, BadRegions> {
        let none = Region { guest: 0, len: 0, host: NonNull::dangling(), dma: 0 };
        let mut window = Window { regions: [none; MAX_REGIONS] };
        if regions.len() > MAX_REGIONS {
            return Err(BadRegions::TooMany);
        }
        let mut end = 0;
        for (place, region) in window.regions.iter_mut().zip(regions) {
            let Region { guest, len, host, dma } = *region;
            let host = host.as_ptr().addr() as u64;
            if len == 0 || [guest, len, host, dma].iter().any(|word| word % ALIGNMENT != 0) {
                return Err(BadRegions::Unaligned(guest));
            }
            let ends = [guest, host, dma].map(|start| start.checked_add(len));
            if ends.contains(&None) || len > isize::MAX as u64 {
                return Err(BadRegions::TooLong(guest));
            }
            if guest < end {
                return Err(BadRegions::Order(guest));
            }
            end = guest + len;
            *place = *region;
        }
        sort::by_key(&mut window.regions, |region| core::cmp::Reverse(region.len));
        Ok(window)
    }

    /// These bytes, if one region holds all of them. Of no bytes the address counts, too.
    #[inline]
    pub fn span(&self, guest: u64, len: u64) -> Option<Span> {
        let (region, at) = self.find(guest)?;
        if len > region.len - at {
            return None;
        }
        // SAFETY: `find` says that `at` is in the region, and `len` was compared with what is left.
        Some(unsafe { region.span(at, len) })
    }

    /// These bytes, if there are any and the largest region holds them, which is looked at alone.
    #[inline(always)]
    pub fn span_of_largest(&self, guest: u64, len: u64) -> Option<Span> {
        let region = self.regions.first()?;
        let at = guest.wrapping_sub(region.guest);
        if len == 0 || at >= region.len || len > region.len - at {
            return None;
        }
        // SAFETY: `at` is in the region, and `len` was compared with what is left.
        Some(unsafe { region.span(at, len) })
    }

    /// Where the guest has the first byte of this span, if it is of this window. The reverse of
    /// [`Self::span`]: a span knows where devices have it, which may be elsewhere.
    pub fn guest_address(&self, span: &Span) -> Option<u64> {
        let host = span.as_ptr().addr();
        self.regions.iter().find_map(|region| {
            let at = host.wrapping_sub(region.host.as_ptr().addr()) as u64;
            (at < region.len).then_some(region.guest + at)
        })
    }

    /// As many of these bytes as the region holds that their first one is in. For runs that go on
    /// in the next region: the rest is asked for with the address behind.
    #[inline]
    pub fn start(&self, guest: u64, len: u64) -> Option<Span> {
        let (region, at) = self.find(guest)?;
        // SAFETY: as in `span`; no more is taken than what is left.
        Some(unsafe { region.span(at, len.min(region.len - at)) })
    }

    /// The region that this address is in, and the offset there: less than its length.
    #[inline]
    fn find(&self, guest: u64) -> Option<(&Region, u64)> {
        let [largest, others @ ..] = &self.regions;
        let at = guest.wrapping_sub(largest.guest);
        if at < largest.len { Some((largest, at)) } else { find_in(others, guest) }
    }

    /// Copies these bytes, each once; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if any byte is in no region.
    #[inline]
    pub fn read(&self, guest: u64, into: &mut [u8]) -> Result<(), Outside> {
        if let Some(span) = self.span(guest, into.len() as u64) {
            span.load_bytes(into);
            return Ok(());
        }
        self.each(guest, into.len(), |_, _| {})?;
        self.each(guest, into.len(), |at, span| {
            span.load_bytes(&mut into[at..at + span.len() as usize]);
        })
    }

    /// Stores these bytes, all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if any byte is in no region.
    #[inline]
    pub fn write(&self, guest: u64, from: &[u8]) -> Result<(), Outside> {
        if let Some(span) = self.span(guest, from.len() as u64) {
            span.store_bytes(from);
            return Ok(());
        }
        self.each(guest, from.len(), |_, _| {})?;
        self.each(guest, from.len(), |at, span| {
            span.store_bytes(&from[at..at + span.len() as usize]);
        })
    }

    /// The spans of these bytes, with the place of each.
    fn each(
        &self,
        guest: u64,
        len: usize,
        mut each: impl FnMut(usize, Span),
    ) -> Result<(), Outside> {
        let mut at = 0;
        while at < len {
            let next = guest.checked_add(at as u64).ok_or(Outside)?;
            let span = self.start(next, (len - at) as u64).ok_or(Outside)?;
            each(at, span);
            at += span.len() as usize;
        }
        Ok(())
    }
}

/// The one of these regions that this address is in, and the offset there. Apart from the look at
/// the largest, which otherwise wouldn't be the first instruction but the thirtieth.
#[inline(never)]
fn find_in(regions: &[Region], guest: u64) -> Option<(&Region, u64)> {
    let mut offsets = regions.iter().map(|region| (region, guest.wrapping_sub(region.guest)));
    offsets.find(|(region, at)| *at < region.len)
}
