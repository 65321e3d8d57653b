//! What makes nesting cheap, each switched off by itself: for the test that measures what it is
//! worth (`nesting/svm-prices`).
//!
//! In the image of that test alone, `hypervisor-switched` (feature `switches`): there L1 chooses by
//! INVLPGA of an address that is none. In any other image each is on, and nothing asks.
//!
//! Guarantees: L2 runs by the same right translations and maps with each of them on or off.

use core::sync::atomic::{AtomicU64, Ordering};

/// RAX of that INVLPGA; RCX has the bits of those that are off from then on.
const CHOOSES: u64 = u64::from_le_bytes(*b"SWITCHED");

/// The bits of those that are off.
static OFF: AtomicU64 = AtomicU64::new(0);

/// One of them, by its bit.
#[derive(Clone, Copy)]
pub(super) enum Switch {
    /// The page whose fault L1 was told is put in by its next VMRUN.
    PutIn = 1 << 0,
    /// Where L1's control block and its permission maps are in the machine is remembered.
    Remember = 1 << 1,
    /// The tables that were used last are found without a search.
    Again = 1 << 2,
    /// The permission maps are merged only as far as L2 uses them.
    Used = 1 << 3,
    /// What is known of L1's tables is kept while it runs by others, and looked over at a flush.
    Trees = 1 << 4,
}

impl Switch {
    #[inline(always)]
    pub(super) fn is_off(self) -> bool {
        cfg!(feature = "switches") && OFF.load(Ordering::Relaxed) & self as u64 != 0
    }
}

/// L1 executed INVLPGA with these in RAX and RCX.
#[inline(always)]
pub(super) fn choose(rax: u64, rcx: u64) {
    if cfg!(feature = "switches") && rax == CHOOSES {
        OFF.store(rcx, Ordering::Relaxed);
    }
}
