//! Linear addresses that aren't the physical ones: pages far beyond the identity map.

use crate::cpu;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Where the first of them is.
pub const ALIAS: u64 = 0x40_0000_0000;
const PRESENT_WRITABLE: u64 = 3;

#[repr(C, align(4096))]
struct PageTable([AtomicU64; 512]);
static DIRECTORY: PageTable = PageTable([const { AtomicU64::new(0) }; 512]);
static TABLE: PageTable = PageTable([const { AtomicU64::new(0) }; 512]);

unsafe extern "C" {
    static pdpt: [AtomicU64; 512];
}

/// Maps the first, and forgets on this CPU what it was; zero: nowhere.
pub fn map_alias(physical: u64) {
    map_alias_page(0, physical);
}

/// The same with another of them.
pub fn map_alias_page(page: usize, physical: u64) {
    let entry = if physical == 0 { 0 } else { physical | PRESENT_WRITABLE };
    TABLE.0[page].store(entry, SeqCst);
    DIRECTORY.0[0].store(TABLE.0.as_ptr() as u64 | PRESENT_WRITABLE, SeqCst);
    // SAFETY: the boot code's table of the first 512 GiB; only 0 to 4 GiB are in use.
    unsafe { pdpt[256].store(DIRECTORY.0.as_ptr() as u64 | PRESENT_WRITABLE, SeqCst) }
    cpu::invalidate_page(ALIAS + page as u64 * 4096);
}

/// Maps the first elsewhere, while this CPU goes on using the old mapping.
pub fn map_alias_unseen(physical: u64) {
    TABLE.0[0].store(physical | PRESENT_WRITABLE, SeqCst);
}
