//! The device's side of a virtqueue (virtio 1.2 and 1.3, sections 2.6 to 2.8): split and packed
//! rings, indirect descriptors, event suppression, and what is needed to go on with a queue.
//!
//! The rings are in the guest's memory, and the guest may write anything at any time.
//!
//! Guarantees, whatever the guest writes:
//! - Nothing panics. [`Queue::take`] does bounded work: it reads at most [`SEGMENTS`] descriptors
//!   of the ring, and as many of an indirect table, each once.
//! - A chain has a head that isn't in flight, no more than [`SEGMENTS`] spans, all in the window,
//!   readable before writable, less than 2^32 bytes. Else the queue is [`Broken`].
//! - What a driver that keeps to the standard offers is taken once, in order, and what is completed
//!   is published once. No kick is lost: [`Queue::enable_kicks`] looks again after it has asked for
//!   one. No call is lost: [`Queue::wants_call`] looks for the driver's wish after what was
//!   published is visible.
//!
//! Doesn't guarantee: that two chains in flight don't overlap in memory, or lie outside of the
//! rings: a guest that does so corrupts its own memory. After [`Broken`] the owner stops the queue,
//! and sets the device's status to DEVICE_NEEDS_RESET.
//!
//! | file | is |
//! |---|---|
//! | `queue` | a queue of either kind |
//! | `state` | what was negotiated for it, how it lies in memory, where it is |
//! | `chain` | what is taken: the spans of one chain of descriptors |
//! | `descriptor` | descriptors and indirect tables, as they are read and checked |
//! | `one` | chains of one buffer, which most frames are in |
//! | `framed` | chains of three buffers, as most are |
//! | `split`, `packed` | the two kinds of rings |
//! | `records` | a split ring's chains in flight, in memory that outlives this program |
//! | `packed_records`, `recorded` | the same of a packed ring, a queue with them (`records`) |
//! | `logged` | a queue that says which pages it changed (feature `log`) |
//! | `event` | the comparison of indices behind event suppression |
//! | `error` | what refuses a layout, what breaks a queue |
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "log", feature = "records"))]
extern crate alloc;
#[cfg(test)]
extern crate self as virtqueue;

mod chain;
mod descriptor;
mod error;
mod event;
mod framed;
#[cfg(test)]
mod fuel;
#[cfg(any(test, feature = "log"))]
mod logged;
#[cfg(test)]
#[cfg(loom)]
mod model;
mod one;
mod packed;
#[cfg(any(test, feature = "records"))]
mod packed_records;
mod queue;
#[cfg(any(test, feature = "records"))]
mod recorded;
#[cfg(test)]
mod recorded_tests;
mod records;
#[cfg(test)]
mod records_tests;
#[cfg(test)]
#[cfg(loom)]
mod sleep_model;
mod split;
mod state;

pub use chain::{Chain, Head, SEGMENTS};
pub use error::{Area, Broken, LayoutError};
pub use framed::{Framed, Seen};
#[cfg(any(test, feature = "log"))]
pub use logged::{LOG_PAGE, Log, LoggedQueue};
pub use one::{One, Ones};
pub use packed::PackedQueue;
#[cfg(any(test, feature = "records"))]
pub use packed_records::PackedRecords;
pub use queue::Queue;
#[cfg(any(test, feature = "records"))]
pub use recorded::{NotRecorded, RecordedQueue};
pub use records::{BadRecords, Records};
pub use split::{SplitQueue, edge::Edge};
pub use state::{Features, Layout, Position, State};

/// The largest size of any queue (2.6).
pub const MAX_SIZE: u16 = 32768;
/// The size up to which a queue goes if its type doesn't say anything else.
pub const DEFAULT_SIZE: usize = 256;
