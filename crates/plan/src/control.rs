//! How a disk is served where that is to be compared with how disks are served.

use serde::{Deserialize, Serialize};

/// Ways of the engine that a plan may turn off for one disk, and a time that a null device takes.
/// Nothing is turned off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The driver tells of new requests, each time by an exit, as a guest of a classical host does:
    /// a queue that was found empty is polled again when it is kicked.
    pub kicks: bool,
    /// Which completions are worth an interrupt.
    pub coalesce: Coalesce,
    /// Microseconds that a disk without content takes for each request, one after the other.
    pub latency_us: u32,
}

/// How interrupts are coalesced, after vIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalesce {
    /// As the host does it by itself.
    #[default]
    Usual,
    /// Every completion that the driver wants to be told of is told at once.
    Off,
    /// With other thresholds.
    From {
        /// Requests in flight below which every completion is told.
        in_flight: u16,
        /// Completions a second below which every one is; 1/`rate` s is how long one is held back.
        rate: u32,
    },
}
