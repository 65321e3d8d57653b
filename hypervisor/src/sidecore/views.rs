//! Views of memory for `crates/window`: of what was handed out at boot, and of a VM's.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ptr::NonNull;
use window::{Region, Span, Window};

/// The view of memory that was just handed out.
pub fn span(at: u64, bytes: u64) -> Result<Span, String> {
    let span = window([(0, at, bytes)].into_iter())?.span(0, bytes);
    span.ok_or_else(|| "its memory isn't whole".into())
}

/// The view of runs of memory: guest address, physical address, bytes.
pub fn window(runs: impl Iterator<Item = (u64, u64, u64)>) -> Result<Window, String> {
    let region = |(guest, at, len): (u64, u64, u64)| {
        let host = NonNull::new(at as *mut u8)?;
        Some(Region { guest, len, host, dma: at })
    };
    let regions: Option<Vec<_>> = runs.map(region).collect();
    let regions = regions.ok_or("memory at address 0 can't be used")?;
    // SAFETY: the runs are a VM's memory, or were just handed out: identity-mapped for good, and no
    // reference to them exists anywhere. Who else writes a VM's memory for its guest does it by raw
    // pointers, where the guest could have written itself.
    unsafe { Window::new(&regions) }.map_err(|error| format!("{error}"))
}
