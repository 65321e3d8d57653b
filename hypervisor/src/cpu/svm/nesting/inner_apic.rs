//! What is kept of L2's local APIC, where L1 has it accelerated: its backing page, what is on
//! offer, and how L2 takes interrupts. What is done with it is in `apic` and `taking`.

use super::memory::ApicMemory;
use nested::avic::{self, Avic, Told};
use nested::tables::Page;

/// A page for an address, without the registers that are there if any are.
pub fn beside(bar: Option<u64>, address: u64, page: Page) -> Page {
    bar.map_or(page, |bar| page.apart_from(address, bar))
}

/// It.
pub struct InnerApic {
    pub(super) avic: Avic,
    pub(super) page: ApicMemory,
    /// The interrupt that 02 offers.
    pub(super) offered: Option<u8>,
    /// What L1 is to be told of it.
    pub(super) told: Option<Told>,
    /// L1 lets L2 complete its interrupts by itself.
    pub(super) completes: bool,
}

impl InnerApic {
    /// Where L2 has the registers, if that is in memory.
    pub fn bar(&self) -> Option<u64> {
        self.avic.bar
    }

    /// What L2 reads of CR8, where nothing of its page waits and it completes interrupts by an MSR
    /// of its own.
    pub fn quiet_priority(&self) -> Option<u8> {
        let by_msr = self.avic.bar.is_none() && self.completes;
        by_msr.then(|| avic::quiet_priority(&self.page)).flatten()
    }

    /// L2 has this in service.
    pub fn adopt(&self, vector: u8) {
        avic::accept(&self.page, vector);
    }
}

/// What 02 has of L1's while L2 takes its interrupts itself.
#[derive(Clone, Copy)]
pub struct Kept {
    pub(super) misc1: u32,
    pub(super) misc2: u32,
    pub(super) exceptions: u32,
    pub(super) cr_writes: u16,
    pub(super) int_ctl: u64,
    pub(super) limit: u32,
    /// The core's own task priority isn't its own.
    pub(super) has_priority: bool,
}

/// How L2 takes them.
#[derive(Clone, Copy, Default)]
pub struct Taking {
    pub(super) kept: Option<Kept>,
    /// What is in service in the core's local APIC may be L2's.
    pub(super) owns: bool,
    /// It doesn't, for one entry.
    pub(super) not_now: bool,
    /// Since when it does, by the TSC, without an entry between in which it didn't.
    pub(super) since: Option<u64>,
    /// What devices post to, as it was found last; since when, by the TSC, while something of
    /// another page's may be on its way.
    pub(super) posted: u64,
    pub(super) unsettled: Option<u64>,
}
