//! What a sidecore did with its time, for whoever watches the machine.
//!
//! Guarantees: the sidecore alone writes, by plain stores to a line that nobody else writes; who
//! reads costs it a miss of that line. Each number is exact; several aren't of one instant.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counted since the sidecore began.
#[derive(Default)]
#[repr(align(64))]
pub struct CoreCounts {
    /// The core's index.
    core: u32,
    passes: AtomicU64,
    found: AtomicU64,
    busy: AtomicU64,
    /// Times that it fell asleep, and whether it sleeps.
    sleeps: AtomicU64,
    is_asleep: AtomicBool,
}

impl CoreCounts {
    /// Of this core.
    pub fn new(core: u32) -> Self {
        CoreCounts { core, ..Self::default() }
    }

    /// The sidecore: so many passes so far.
    #[inline]
    pub fn note_passes(&self, passes: u64) {
        self.passes.store(passes, Ordering::Relaxed);
    }

    /// The sidecore: one more of them found work, which took so many TSC ticks.
    #[inline]
    pub fn note_work(&self, ticks: u64) {
        let add = |count: &AtomicU64, more: u64| {
            count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.found, 1);
        add(&self.busy, ticks);
    }

    /// The sidecore: it falls asleep, or is awake again.
    pub fn note_sleep(&self, begins: bool) {
        if begins {
            self.sleeps
                .store(self.sleeps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        self.is_asleep.store(begins, Ordering::Relaxed);
    }

    /// TSC ticks for which it had work.
    pub fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// For the command line. `now`: the TSC of whoever reads.
    pub fn record(&self, now: u64) -> proto::Record {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        proto::Record::Sidecore {
            core: self.core,
            passes: of(&self.passes),
            found: of(&self.found),
            busy: of(&self.busy),
            sleeps: of(&self.sleeps),
            asleep: self.is_asleep.load(Ordering::Relaxed),
            now,
        }
    }
}
