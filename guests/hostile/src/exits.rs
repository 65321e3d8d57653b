//! Exits of every reason, as fast as they go.

use machine::{boot::Boot, cpu};

const STORM: u32 = 20_000;

/// CPUID of one leaf after the other.
pub fn cpuid(_: &str, _: &Boot) {
    for leaf in 0..STORM {
        cpu::cpuid(leaf);
    }
}
