//! Why a page table was not made or not changed. After any of these it is as it was before.

use crate::Access;
use thiserror::Error;

/// Why a table was not made or not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Not whole pages.
    #[error(
        "address {address:#x} and length {len:#x} must be multiples of 0x1000, and the length not zero"
    )]
    Misaligned {
        /// Virtual or physical address.
        address: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Not within the addresses that tables of this format translate.
    #[error(
        "the range at {va:#x} of length {len:#x} is not within the {bits}-bit addresses this table translates"
    )]
    OutOfRange {
        /// First address.
        va: u64,
        /// Length in bytes.
        len: u64,
        /// Width of the addresses.
        bits: u32,
    },
    /// Not within the physical addresses that entries of this format hold.
    #[error("the memory at {pa:#x} of length {len:#x} is not within {bits}-bit physical addresses")]
    OutOfMemory {
        /// First physical address.
        pa: u64,
        /// Length in bytes.
        len: u64,
        /// Width of the addresses.
        bits: u32,
    },
    /// Something is mapped there.
    #[error(
        "the page at {va:#x} of size {size:#x} overlaps a mapping, and map needs its whole range unmapped"
    )]
    Overlap {
        /// First address of the page that could not be mapped.
        va: u64,
        /// Its size.
        size: u64,
    },
    /// The format has no such access.
    #[error("access {access:?} is not one this kind of page table can grant")]
    Access {
        /// The access asked for.
        access: Access,
    },
    /// The allocator ran dry.
    #[error("the change needs {needed} free frames for page tables, and there are fewer")]
    NoFrame {
        /// How many frames the call needed in all.
        needed: u64,
    },
    /// The allocator broke its contract.
    #[error(
        "the allocator gave {frame:#x} for a page table, which must be a 4 KiB aligned physical address"
    )]
    BadFrame {
        /// What it gave.
        frame: u64,
    },
    /// The format broke its contract.
    #[error("a page table of {levels} levels was asked for, and it must have 1 to 5")]
    Levels {
        /// What it asks for.
        levels: u32,
    },
}
