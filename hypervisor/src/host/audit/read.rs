//! What every look has in common: how words are read, and what comes of a look.

use crate::vm::stop::Finding;

/// The most entries to look at in a call.
pub const ENTRIES: u32 = 64;

/// Whether that was the end of a part, and what was found.
pub type Looked<F = Finding> = (bool, Option<F>);

/// A word of a table of a VM's, or of what a vCPU is entered with.
pub fn word(pa: u64) -> u64 {
    // SAFETY: the look at page tables reads aligned words of frames that tables may lie in: those
    // of the VM's pool, or of a driven device's; that at a vCPU those of its control block and its
    // maps. All are identity-mapped and never anything else's.
    unsafe { core::ptr::read_volatile(pa as *const u64) }
}

/// After a finding the next look goes on behind it: that may be at the start.
pub fn looked<F>(result: Result<bool, F>, at_start: bool) -> Looked<F> {
    match result {
        Ok(ended) => (ended, None),
        Err(finding) => (at_start, Some(finding)),
    }
}
