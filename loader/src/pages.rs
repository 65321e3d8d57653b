//! Memory from the firmware, in pages, never given back: what is put there outlives the loader.
//!
//! It is loader data to the firmware, so the hypervisor finds it usable, and takes out of that what
//! was loaded for it.

use alloc::{format, string::String};
use handover::PAGE;
use uefi::boot::{self, AllocateType, MemoryType};

/// The hypervisor is entered in 32-bit mode, on its way.
pub const BELOW_4_GIB: u64 = 0xFFFF_FFFF;
/// What is mapped from the end of boot services to the hypervisor's own tables: 512 GiB.
pub const REACH: u64 = 512 << 30;

/// `bytes` of zeroed memory, at a page's start.
pub fn allocate(kind: AllocateType, bytes: u64) -> Result<&'static mut [u8], uefi::Error> {
    let count = bytes.div_ceil(PAGE) as usize;
    let start = boot::allocate_pages(kind, MemoryType::LOADER_DATA, count)?;
    // SAFETY: the firmware just gave these pages to us alone, for good.
    unsafe {
        start.write_bytes(0, count * PAGE as usize);
        Ok(core::slice::from_raw_parts_mut(start.as_ptr(), bytes as usize))
    }
}

/// `bytes` of memory for `what` below `top`, or a sentence.
pub fn below(top: u64, bytes: u64, what: &str) -> Result<&'static mut [u8], String> {
    allocate(AllocateType::MaxAddress(top), bytes)
        .map_err(|error| format!("{bytes} bytes of memory for {what} can't be had: {error}"))
}

/// `section` as it is, if it begins where a page does.
pub fn at_a_page(section: &'static [u8], name: &str) -> Result<&'static [u8], String> {
    if (section.as_ptr() as u64).is_multiple_of(PAGE) {
        return Ok(section);
    }
    Err(format!(
        "section {name} doesn't begin at a multiple of 4096; make it with `exitless image`"
    ))
}
