//! From the loader's entry to Rust on the boot CPU, and what the loader said.

use crate::refusal::refuse;
use core::arch::global_asm;
use handover::{BootInfo, ENTERED_BY_PVH, ENTERED_BY_UEFI, NOTE_ENTRY};
use proto::exit;

global_asm!(
    include_str!("entry.s"),
    boot = sym crate::boot,
    note = const NOTE_ENTRY,
    pvh = const ENTERED_BY_PVH,
    uefi = const ENTERED_BY_UEFI,
    exit_port = const exit::PORT,
    refused = const exit::REFUSED,
    options(att_syntax)
);

/// What the boot page tables map one to one, once they are extended: 512 GiB.
pub const MAPPED: u64 = 512 << 30;

/// Copies what the loader left at `address`. `who` is what `entry.s` has of it.
///
/// # Safety
/// Everything below [`MAPPED`] is mapped one to one, and nothing but the image's own memory was
/// written since the loader.
pub unsafe fn read(who: u32, address: u64) -> BootInfo {
    let mut info = handover::read(&Mapped, who, address).unwrap_or_else(|error| refuse(error));
    let mut head = [0; 24];
    if let Some((start, _)) = info.image.filter(|(start, end)| end - start >= 24)
        && acpi::Physical::read(&Mapped, start, &mut head)
        && let Some(length) = plan::image::length(&head)
    {
        info.trim_image(length);
    }
    info
}

/// Everything that is mapped, memory or not.
struct Mapped;

impl acpi::Physical for Mapped {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        let there = pa.checked_add(buf.len() as u64).is_some_and(|end| pa > 0 && end <= MAPPED);
        if there {
            // SAFETY: by the contract of `read`, the only user, all of it is mapped; a loader that
            // gives a wrong address has some other memory read, or ones from where nothing is.
            unsafe { core::ptr::copy_nonoverlapping(pa as *const u8, buf.as_mut_ptr(), buf.len()) };
        }
        there
    }
}
