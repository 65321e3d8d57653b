//! What every look has in common: how words are read, and what comes of a look.

use crate::vm::stop::Finding;

/// Whether that was the end of a part, and what was found.
pub type Looked<F = Finding> = (bool, Option<F>);

/// A word of a table of a VM's, or of what a vCPU is entered with.
pub fn word(pa: u64) -> u64 {
    // SAFETY: the look at page tables reads aligned words of frames that tables may lie in: those
    // of the VM's pool; that at a vCPU those of its control block and its maps. All are
    // identity-mapped and never anything else's.
    unsafe { core::ptr::read_volatile(pa as *const u64) }
}
