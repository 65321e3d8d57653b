//! How a disk is served where that is to be compared with how disks are served.

use serde::{Deserialize, Serialize};

/// Ways of the engine that a plan may turn off for one disk, and a time that a null device takes.
/// Nothing is turned off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The driver tells of new requests, each time by an exit, as a guest of a classical host does:
    /// a queue that was found empty is polled again when it is kicked.
    pub kicks: bool,
    /// Packed rings are offered, too: both sides write the same lines, which is slower on two cores.
    pub packed: bool,
    /// Which completions are worth an interrupt.
    pub coalesce: Coalesce,
    /// Microseconds that a disk without content takes for each request, one after the other.
    pub latency_us: u32,
}

/// How interrupts are coalesced, after vIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalesce {
    /// Every completion that the driver wants to be told of is told at once.
    Off,
    /// With these parameters.
    On(Coalescing),
}

/// vIC's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Requests in flight below which every completion is told.
    pub in_flight: u16,
    /// Completions a second below which every one is; 1/`rate` s is how long one is held back.
    pub rate: u32,
    /// Microseconds after which the ratio is computed anew.
    pub epoch_us: u32,
    /// Microseconds from one interrupt to the next for a vCPU whose core another one has.
    pub deferral_us: u32,
    /// The ratio goes further than the paper's where that costs no completions.
    pub adapted: bool,
}

impl Coalescing {
    /// The paper's.
    pub const USUAL: Coalescing = Coalescing {
        in_flight: 4,
        rate: 2_000,
        epoch_us: 200_000,
        deferral_us: 100,
        adapted: false,
    };
}

impl Default for Coalesce {
    /// On, as the paper has it.
    fn default() -> Self {
        Coalesce::On(Coalescing::USUAL)
    }
}
