//! What guests are loaded with, and from where on interrupts are coalesced.

use crate::bench::workload::{Effort, Size, Workload};

/// KiB of a read, where it isn't said otherwise.
const BLOCK: u32 = 4;
/// Depth and KiB of large reads from a RAM disk, so that the sidecore has more to do for them than
/// the guest: else who gets how much is decided by the computer that runs the emulator.
pub const BULK: (u32, u32) = (4, 1024);
/// vIC's lower thresholds in the emulator, which is some fifty times as slow as what it was made
/// for: as many requests in flight as by default, and completions a second.
pub const IN_FLIGHT: u16 = 4;
pub const RATE: u32 = 50;

/// fio in one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Reads under way at a time.
    pub depth: u32,
    /// KiB of each.
    pub block: u32,
    /// The windows.
    pub size: Size,
}

impl Load {
    /// Small reads.
    pub const fn small(depth: u32, effort: Effort) -> Load {
        Load { depth, block: BLOCK, size: Workload::Fio { depth }.size(effort) }
    }

    /// Small reads in windows of these lengths.
    pub const fn of(depth: u32, short: u32, long: u32) -> Load {
        Load { depth, block: BLOCK, size: Size { warmup: short, short, long, pairs: 2 } }
    }

    /// Large reads: few of them are much.
    pub const fn bulk(effort: Effort) -> Load {
        let times = if matches!(effort, Effort::Full) { 3 } else { 1 };
        let (depth, block) = BULK;
        Load { depth, block, ..Load::of(depth, 40 * times, 200 * times) }
    }

    /// What a guest is told of it: so many pairs of windows among it.
    pub fn parameters(&self, pairs: u32) -> String {
        let Load { depth, block, size: Size { warmup, short, long, .. } } = self;
        format!(
            "exitless.workload=fio exitless.disk=vda exitless.depth={depth} exitless.block={block}k exitless.warmup={warmup} exitless.short={short} exitless.long={long} exitless.pairs={pairs}"
        )
    }
}
