//! What guests are loaded with.

use crate::bench::workload::{Effort, Size, Workload};

/// Reads under way of a VM that asks for as much as it can get.
pub const BULK: u32 = 32;
/// How much the sidecore is slowed, so that several VMs have more for it to do than it does: else
/// who gets how much is decided by the computer that runs the emulator.
pub const SLOWED: u32 = 20_000;
/// Reads, writes and flushes under way at a time of the mix: its jobs' together.
pub const MIX: u32 = 15;

/// fio in one VM: random reads of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Reads under way at a time.
    pub depth: u32,
    /// Not these reads, but what servers do: reads and writes of mixed sizes, with flushes.
    pub mixed: bool,
    /// The windows.
    pub size: Size,
}

impl Load {
    /// Reads in windows as long as in other experiments.
    pub const fn small(depth: u32, effort: Effort) -> Load {
        Load { depth, mixed: false, size: Workload::Fio { depth }.size(effort) }
    }

    /// Reads in windows of these lengths.
    pub const fn of(depth: u32, short: u32, long: u32) -> Load {
        Load { depth, mixed: false, size: Size { warmup: short, short, long, pairs: 2 } }
    }

    /// What servers do.
    pub const fn mix(effort: Effort) -> Load {
        let times = if matches!(effort, Effort::Full) { 4 } else { 1 };
        Load { mixed: true, ..Load::of(MIX, 250 * times, 1_250 * times) }
    }

    /// As much as it can get.
    pub const fn bulk(effort: Effort) -> Load {
        let times = if matches!(effort, Effort::Full) { 3 } else { 1 };
        Load::of(BULK, 100 * times, 500 * times)
    }

    /// What a guest is told of it: so many pairs of windows among it.
    pub fn parameters(&self, pairs: u32) -> String {
        let Load { depth, mixed, size: Size { warmup, short, long, .. } } = self;
        let workload = if *mixed { "mix" } else { "fio" };
        format!(
            "exitless.workload={workload} exitless.disk=vda exitless.depth={depth} exitless.block=4k exitless.warmup={warmup} exitless.short={short} exitless.long={long} exitless.pairs={pairs}"
        )
    }
}
