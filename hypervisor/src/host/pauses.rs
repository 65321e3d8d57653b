//! Core 0 notices when it didn't run.
//!
//! Guarantees: a time in which its timer should have come five times and didn't is reported, once.
//! Doesn't tell why: firmware (SMM) stops all cores of a real machine, and an emulated one stops
//! when its computer has something else to do. Doesn't rule out that a guest did it, by keeping
//! core 0 itself from running.

use crate::console;
use crate::cpu::{self, rdtsc};
use proto::Record;

/// Times between two ticks of core 0's timer; a longer gap than this many is reported.
const TICKS: u64 = 5;

pub struct Pauses {
    last: u64,
}

impl Pauses {
    pub fn new() -> Self {
        Pauses { last: rdtsc() }
    }

    /// Core 0, at each tick of its timer.
    pub fn tick(&mut self) {
        let to = rdtsc();
        let from = core::mem::replace(&mut self.last, to);
        if to.saturating_sub(from) > TICKS * cpu::tsc_hz() / 100 {
            console::record(&Record::Paused { from, to });
        }
    }
}
