//! Errors that core 0's banks tell of and that raise no machine check: those that were corrected.
//!
//! Guarantees: each is told of within [`EVERY_S`] seconds, once, and its bank is free for the next;
//! however many there are, one line comes at a time. The banks of a core that runs guests are
//! looked at when a VM ends there (`vm/life.rs`): reading them earlier would take the core from its
//! guest. Errors that hardware overwrote meanwhile are lost, which the line says.

use crate::cpu::{machine_check, rdtsc, tsc_hz};

/// Seconds between two looks.
const EVERY_S: u64 = 10;

/// When core 0 looked last, by the TSC.
pub struct ErrorPolls(u64);

impl ErrorPolls {
    /// From now on.
    pub fn new() -> Self {
        ErrorPolls(rdtsc())
    }

    /// Core 0, at each tick of its timer.
    pub fn look(&mut self) {
        let now = rdtsc();
        if now.wrapping_sub(self.0) >= EVERY_S * tsc_hz() {
            self.0 = now;
            machine_check::tell_of_errors();
        }
    }
}
