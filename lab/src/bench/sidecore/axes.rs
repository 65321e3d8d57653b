//! vIC's axes: the ways to tell of completions that are set side by side.

use plan::Coalescing;

/// Completions a second from which on interrupts are coalesced. The paper's is 2,000; the emulator
/// is some fifty times as slow as what that was made for.
pub const RATE: u32 = 50;

/// One way to tell of completions.
#[derive(Clone, Copy)]
pub struct Axis {
    /// Its line in the tables.
    pub label: &'static str,
    /// Its settings; none if all are told.
    pub coalescing: Option<Coalescing>,
}

/// The paper's, at this rate.
pub const BASE: Coalescing = Coalescing { rate: RATE, ..Coalescing::USUAL };
/// All told.
pub const OFF: Axis = Axis { label: "all told", coalescing: None };
const T2: Axis = Axis { label: "T = 2", coalescing: Some(Coalescing { in_flight: 2, ..BASE }) };
/// The paper's.
pub const T4: Axis = Axis { label: "T = 4", coalescing: Some(BASE) };
const ADAPTED: Axis =
    Axis { label: "T = 4, adapted", coalescing: Some(Coalescing { adapted: true, ..BASE }) };
/// The shortest epoch that the rate allows, and a long one.
pub const EPOCHS: [Axis; 2] = [
    Axis { label: "T = 4, epoch 20 ms", coalescing: Some(Coalescing { epoch_us: 20_000, ..BASE }) },
    Axis {
        label: "T = 4, epoch 1 s",
        coalescing: Some(Coalescing { epoch_us: 1_000_000, ..BASE }),
    },
];
/// All, as the tables have them.
pub const AXES: [Axis; 6] = [OFF, T2, T4, ADAPTED, EPOCHS[0], EPOCHS[1]];
