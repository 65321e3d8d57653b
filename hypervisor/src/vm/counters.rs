//! The ledger pages of vCPUs, read from other cores while these count in them.
//!
//! Guarantees: a reader sees of each counter one value or the next. It doesn't guarantee that two
//! counters are of one instant.

use core::sync::atomic::{AtomicU64, Ordering};
use ledger::{Counters, Page, Reason};

/// The page of one vCPU.
pub struct CounterPage {
    /// Index of its VM.
    pub vm: usize,
    /// Its place in the VM.
    pub vcpu: usize,
    /// Its core.
    pub core: usize,
    page: *const Page,
}

// SAFETY: the page is only read, and from any core that is as good.
unsafe impl Send for CounterPage {}

impl CounterPage {
    /// The page of vCPU `vcpu` of VM `vm` on core `core`.
    ///
    /// # Safety
    /// The page stays where it is for good, and only counters are written in it from now on.
    pub unsafe fn new(vm: usize, vcpu: usize, core: usize, page: *const Page) -> Self {
        CounterPage { vm, vcpu, core, page }
    }

    /// Its physical address.
    pub fn address(&self) -> u64 {
        self.page as u64
    }

    /// The counters as they are now.
    pub fn read(&self) -> Counters {
        let page = self.page;
        // SAFETY: `new` was promised that the page stays. Its core writes counters with
        // plain stores of eight aligned bytes, which this CPU makes whole: a reader sees one
        // value or the next.
        let load = |counter: *const u64| unsafe {
            AtomicU64::from_ptr(counter.cast_mut()).load(Ordering::Relaxed)
        };
        // SAFETY: these only name fields of the page.
        unsafe {
            Counters {
                entries: load(&raw const (*page).entries),
                host_cycles: load(&raw const (*page).host_cycles),
                injected: load(&raw const (*page).injected),
                device_injected: load(&raw const (*page).device_injected),
                timer_injected: load(&raw const (*page).timer_injected),
                slices: load(&raw const (*page).slices),
                exits: (0..Reason::COUNT).map(|i| load(&raw const (*page).exits[i])).collect(),
            }
        }
    }
}
