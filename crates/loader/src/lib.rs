//! Reads a kernel image and says where everything goes: which bytes are copied
//! to which guest-physical address, which tables are put beside them, and in
//! which state the virtual CPU enters.
//!
//! Guarantees: in a plan that is returned every piece lies in RAM below 4 GiB,
//! no two pieces overlap, and the entry point lies in the loaded kernel. Every
//! other image is refused with a sentence. It doesn't guarantee that the kernel
//! is a good one, and it copies nothing itself: the memory a plan doesn't name
//! is expected to hold zeros or whatever the caller likes.
//!
//! [`Program`] is the same for a program that goes anywhere: our UEFI loader puts the hypervisor
//! into memory by it.
//!
//! Formats, in the order they are looked for (as QEMU does): Linux bzImage from
//! boot protocol 2.12 at its 64-bit entry point, multiboot 1, ELF with a PVH note.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

mod bytes;
mod elf;
mod error;
mod linux;
mod machine;
mod memory;
mod multiboot;
mod plan;
mod program;
mod pvh;

pub use error::{Error, Subject};
pub use machine::{GuestMachine, MAX_REGIONS, MemoryRegion, RegionKind};
pub use plan::{Blob, CODE_SELECTOR, DATA_SELECTOR, Entry, EntryMode, Format, Load, Segment};
pub use program::Program;

use memory::Memory;

/// Plans how `kernel` starts on `machine` with `cmdline` and, if `initrd` is
/// given, an initrd of that many bytes (0 counts as none).
pub fn load<'a>(
    kernel: &'a [u8],
    initrd: Option<u64>,
    cmdline: &str,
    machine: &GuestMachine,
) -> Result<Load<'a>, Error> {
    let initrd = initrd.filter(|&size| size > 0);
    if cmdline.as_bytes().contains(&0) {
        return Err(Error::CommandLineNul);
    }
    let memory = Memory::new(machine)?;
    let request = Request { kernel, initrd, cmdline, machine };
    if linux::detect(kernel) {
        linux::load(&request, memory)
    } else if let Some(header) = multiboot::detect(kernel) {
        multiboot::load(&request, memory, header)
    } else if elf::detect(kernel) {
        pvh::load(&request, memory)
    } else {
        Err(Error::UnknownFormat)
    }
}

/// The input of [`load`].
struct Request<'a, 'r> {
    kernel: &'a [u8],
    initrd: Option<u64>,
    cmdline: &'r str,
    machine: &'r GuestMachine<'r>,
}
