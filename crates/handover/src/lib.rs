//! What a boot loader hands over, whichever it was: one [`BootInfo`] out of PVH's start info,
//! multiboot2's information, or the structure of our own UEFI loader.
//!
//! Guarantees: [`read`] ends after bounded work on any bytes, believes no length and no count
//! unchecked, and copies what it keeps, so that the loader's memory is free afterwards, but for the
//! boot image, which stays where it is. The firmware's memory map is law: where it contradicts
//! itself, the worse is believed ([`MemoryKind`]), and memory that it doesn't list isn't there. It
//! doesn't guarantee that the map is true: nothing could tell.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bytes;
pub mod efi;
pub mod ending;
mod error;
mod info;
mod map;
mod multiboot2;
pub mod payload;
mod pvh;
mod transfer;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use info::{BootInfo, BootPath, Framebuffer, MAX_COMMAND_LINE, PixelFormat};
pub use map::{LOW_MEMORY, MAX_RANGES, MemoryKind, MemoryMap, MemoryRange, PAGE};
pub use transfer::{NOT_THERE, NOTE_ENTRY, NOTE_NAME, Transfer};

use acpi::Physical;

/// In ESI at the image's common entry: PVH's start info is at the address given. It is the magic
/// number of the start info (Xen's `arch-x86/hvm/start_info.h`).
pub const ENTERED_BY_PVH: u32 = 0x336E_C578;
/// Multiboot2's information is there: what a multiboot2 loader leaves in EAX (Multiboot2 3.3).
pub const ENTERED_BY_MULTIBOOT2: u32 = 0x36D7_6289;
/// A [`Transfer`] is there.
pub const ENTERED_BY_UEFI: u32 = 0x4958_5445;

/// What the loader left at `address`, by the way in which the image was entered.
pub fn read(mem: &impl Physical, entered_by: u32, address: u64) -> Result<BootInfo, Error> {
    match entered_by {
        ENTERED_BY_PVH => pvh::read(mem, address),
        ENTERED_BY_MULTIBOOT2 => multiboot2::read(mem, address),
        ENTERED_BY_UEFI => transfer::read(mem, address),
        eax => Err(Error::UnknownLoader { eax }),
    }
}
