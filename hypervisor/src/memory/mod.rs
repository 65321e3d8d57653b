//! Physical memory: handed out while booting, never after.
//!
//! Guarantees: memory handed out is usable RAM above 1 MiB, belongs to nobody
//! else and is zero; after [`freeze`] nothing is handed out and the heap refuses,
//! except inside [`while_reporting`]. Nothing handed out ever comes back.

mod heap;
mod pool;
mod regions;
mod tables;

pub use handover::PAGE;
pub use heap::{freeze, while_reporting};
pub use pool::{allocate, allocate_within, available, host_bytes, image};
pub use tables::{extend_boot_map, is_physical, map_mmio, on_boot_map, with_low_page};

use crate::{boot, refusal::refuse};
use acpi::RootPointer;
use alloc::vec::Vec;
use core::ops::Range;
use handover::{BootInfo, LOW_MEMORY, MemoryMap};
use spin::Mutex;

/// The heap on top of the one inside the image: the plan, the machine, per-VM state, and that of
/// some hundred cores.
const HEAP: u64 = 8 << 20;

/// Pages below stacks, for [`protect`].
static GUARDS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Takes the usable ranges, less this image, the boot image and the firmware's tables, and sets up
/// the heap.
pub fn init(info: &mut BootInfo, rsdp: RootPointer) {
    let (start, end) = image();
    let claimed = info.claim("hypervisor", start, end).and_then(|()| match info.image {
        Some((start, end)) => info.claim("boot image", start, end),
        None => Ok(()),
    });
    claimed.unwrap_or_else(|error| refuse(error));
    keep_tables(info, rsdp);
    pool::fill(&info.memory);
    let Some(heap) = allocate(HEAP, PAGE) else {
        refuse(format_args!(
            "{} bytes of memory are free; the hypervisor's heap alone needs {HEAP}",
            available()
        ));
    };
    // SAFETY: the range was just handed out to nobody else and is mapped.
    unsafe { heap::extend(heap, HEAP) };
}

/// Firmware may have left its tables where its map says that memory is free; they are read later.
fn keep_tables(info: &mut BootInfo, rsdp: RootPointer) {
    let listed = info.memory.clone();
    let mut kept: Result<u64, handover::Error> = Ok(0);
    let found = acpi::places(&Firmware(&listed), rsdp, |place| {
        kept = kept.and_then(|bytes| Ok(bytes + info.keep(place)?));
    });
    found.unwrap_or_else(|error| refuse(error));
    match kept {
        Ok(0) => {}
        Ok(bytes) => log::info!(
            "firmware's tables lie in memory that its map calls free: {} KiB stay theirs",
            bytes >> 10
        ),
        Err(error) => refuse(error),
    }
}

/// More heap, for what there is one of per core. Boot only.
pub fn grow_heap(bytes: u64) {
    let Some(heap) = allocate(bytes, PAGE) else {
        refuse(format_args!(
            "memory is too small for the cores' state: {bytes} more bytes are needed"
        ))
    };
    // SAFETY: the range was just handed out to nobody else and is mapped.
    unsafe { heap::extend(heap, bytes) };
}

/// Starts to use the final page tables, which map the framebuffer, too: it isn't in memory.
pub fn protect(info: &BootInfo, framebuffer: Option<Range<u64>>) {
    tables::protect(info, framebuffer, &GUARDS.lock());
}

/// A stack of `bytes` (whole pages) below the address returned, with an unmapped page below it.
pub fn stack(bytes: u64) -> Option<u64> {
    let guard = allocate(PAGE + bytes, PAGE)?;
    GUARDS.lock().push(guard);
    tables::guard(guard);
    Some(guard + PAGE + bytes)
}

/// Reads the firmware's tables while everything is mapped: on the boot page tables.
pub struct Firmware<'a>(pub &'a MemoryMap);

impl acpi::Physical for Firmware<'_> {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        let Some(end) = pa.checked_add(buf.len() as u64) else { return false };
        // The BIOS area is readable whether or not the map lists it; page 0 holds the EBDA's
        // segment.
        let readable = end <= LOW_MEMORY || end <= boot::MAPPED && self.0.covers(pa, end, |_| true);
        if readable {
            // SAFETY: the boot tables map it, the firmware says that something is there, and only
            // firmware tables are asked for, which nobody writes.
            unsafe { core::ptr::copy_nonoverlapping(pa as *const u8, buf.as_mut_ptr(), buf.len()) };
        }
        readable
    }
}

/// The boot image, in place, read-only for good; empty if there is none.
pub fn image_bytes(info: &BootInfo) -> &'static [u8] {
    let Some((start, end)) = info.image else { return &[] };
    // SAFETY: the loader put the module there, `init` kept the range out of the free memory, and
    // the page tables map it without the right to write.
    unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) }
}
