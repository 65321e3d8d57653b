//! Page tables: [`Table`] builds the ones the hypervisor owns (host, nested, IOMMU), and [`walk`]
//! reads the ones a guest owns.
//!
//! # Who invalidates
//!
//! This crate writes tables and nothing else: it never invalidates a TLB, a paging-structure cache
//! or an IOTLB. A call that changes or removes a present entry returns a [`Flush`]; its caller
//! invalidates [`Flush::range`], paging-structure caches included, waits until the hardware is
//! done, and then calls [`Flush::done`]. Table frames that the call emptied go back to the
//! allocator only there, so hardware never walks a frame that has a new owner. A forgotten `Flush`
//! leaks those frames and leaves stale translations, but lends no frame out twice.
//!
//! [`Table::map`] turns absent entries into present ones only and returns no `Flush`: processors
//! don't cache absent entries. A VT-d unit in caching mode (CAP_REG.CM, 11.4.2) does, and so may an
//! AMD-Vi unit (NpCache in its PCI capability); a VT-d unit with CAP_REG.RWBF holds writes back:
//! for these the caller also acts after `map`.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dma;
mod ept;
mod error;
mod flush;
mod format;
mod frames;
mod second_level;
mod table;
pub mod walk;

#[cfg(test)]
mod tests;

pub use dma::{AmdV1, Dma, VtdSecondLevel};
pub use ept::Ept;
pub use error::Error;
pub use flush::Flush;
pub use format::{Access, Entry, Format, Host, Nested};
pub use second_level::SecondLevel;
pub use table::{Mapping, PageSize, Table, audit};

/// Physical memory as the owner of a table sees it, and the source of its frames.
///
/// [`Table`] reads and writes only aligned words of frames it got from [`Memory::allocate`] and has
/// not freed. None of these may panic. Hardware reads the tables while they are being changed, so
/// an implementation stores each word whole and in the order of the calls, and writes it back from
/// the cache where the reader doesn't snoop (VT-d ECAP_REG.C = 0, 11.4.3).
pub trait Memory {
    /// The word at physical address `pa`.
    fn read(&self, pa: u64) -> u64;
    /// Sets the word at physical address `pa`.
    fn write(&mut self, pa: u64, value: u64);
    /// Are all words of the frame at `frame` zero? Asked of whole tables: worth being fast.
    fn is_zero(&self, frame: u64) -> bool {
        (0..512).all(|index| self.read(frame | index << 3) == 0)
    }
    /// A zeroed, 4 KiB aligned frame of 4 KiB, or `None` when there is none left.
    fn allocate(&mut self) -> Option<u64>;
    /// Takes back a frame from [`Memory::allocate`]; its content is not zero.
    fn free(&mut self, frame: u64);
}
