//! What every look has in common: how words are read, and what comes of a look.

use crate::cpu::{rdtsc, tsc_hz};
use crate::vm::stop::Finding;

/// At how many looks, and for which part of a second, a finding must stand where a core changes
/// what is looked at without a lock.
const LOOKS: u32 = 8;
const STANDS_HZ: u64 = 4;

/// A finding that may still be a change under way: since when it stands, and at how many looks.
pub struct Suspected<F>(Option<(F, u64, u32)>);

impl<F: PartialEq> Suspected<F> {
    /// None.
    pub const fn nothing() -> Self {
        Suspected(None)
    }

    /// Has this stood for long enough?
    pub fn stands(&mut self, what: F) -> bool {
        let now = rdtsc();
        match self.0.as_mut().filter(|(suspected, ..)| *suspected == what) {
            Some((_, since, looks)) => {
                *looks += 1;
                *looks >= LOOKS && now.wrapping_sub(*since) > tsc_hz() / STANDS_HZ
            }
            None => {
                self.0 = Some((what, now, 1));
                false
            }
        }
    }
}

/// The most entries to look at in a call.
pub const ENTRIES: u32 = 64;

/// Whether that was the end of a part, and what was found.
pub type Looked<F = Finding> = (bool, Option<F>);

/// A word of a table of a VM's, or of what a vCPU is entered with.
pub fn word(pa: u64) -> u64 {
    // SAFETY: the look at page tables reads aligned words of frames that tables may lie in: those
    // of the VM's pool, of a vCPU's for its guests' guests, or of a driven device's; that at a vCPU
    // those of its control blocks and its maps. All are identity-mapped and never anything else's.
    unsafe { core::ptr::read_volatile(pa as *const u64) }
}

/// After a finding the next look goes on behind it: that may be at the start.
pub fn looked<F>(result: Result<bool, F>, at_start: bool) -> Looked<F> {
    match result {
        Ok(ended) => (ended, None),
        Err(finding) => (at_start, Some(finding)),
    }
}
