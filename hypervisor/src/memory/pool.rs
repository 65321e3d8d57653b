//! The machine's free memory, handed out while booting.
//!
//! Guarantees: memory handed out is usable RAM above 1 MiB, belongs to nobody else and is zero;
//! nothing handed out ever comes back.

use super::{heap, regions::Regions};
use handover::{MemoryMap, PAGE};
use spin::Mutex;

static REGIONS: Mutex<Regions> = Mutex::new(Regions::new());

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
}

/// First byte of this image and the byte after its last.
pub fn image() -> (u64, u64) {
    (&raw const image_start as u64, &raw const image_end as u64)
}

/// Takes the free memory of `map`.
pub fn fill(map: &MemoryMap) {
    REGIONS.lock().set(map);
}

/// `bytes` of zeroed memory, rounded up to pages, at a multiple of `align` (a power of two).
///
/// # Panics
/// After [`heap::freeze`].
pub fn allocate(bytes: u64, align: u64) -> Option<u64> {
    allocate_within(bytes, align, &[(0, u64::MAX)])
}

/// The same from these ranges of addresses only.
pub fn allocate_within(bytes: u64, align: u64, within: &[(u64, u64)]) -> Option<u64> {
    assert!(!heap::is_frozen(), "{bytes} bytes of memory asked for after boot");
    let bytes = bytes.checked_next_multiple_of(PAGE)?;
    let start = REGIONS.lock().take(bytes, align.max(PAGE), within)?;
    // SAFETY: the range is RAM that nobody else has, and RAM is mapped one to one.
    unsafe { core::ptr::write_bytes(start as *mut u8, 0, bytes as usize) };
    Some(start)
}

/// Bytes that [`allocate`] has left, in however many pieces.
pub fn available() -> u64 {
    REGIONS.lock().free()
}

/// Bytes of this image and of everything handed out so far.
pub fn host_bytes() -> u64 {
    let (start, end) = image();
    end - start + REGIONS.lock().taken()
}
