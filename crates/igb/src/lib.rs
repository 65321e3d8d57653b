//! An Intel 82576 (Intel 82576EB Gigabit Ethernet Controller Datasheet, revision 2.63): its
//! physical function, driven by polling, with several queues each way.
//!
//! A [`Controller`] has no interrupts and takes every frame that arrives, each flow's by one queue.
//! Frames are copied into and out of buffers that are nobody's but the driver's, so the controller
//! needs no other memory. It makes checksums and segments of what is sent ([`Task`]). It is reset
//! if it has frames to send and sends none.
//!
//! Guarantees, whatever the controller does, and writes:
//! - No panic, no wait, no loop longer than the rings; each access of ours is inside of the memory
//!   that we share with it and the span that the caller gave.
//! - A frame that was received has [`MOST`] bytes at most, and they are copied before the caller
//!   looks at them: what the controller writes to its buffer later changes nothing.
//! - What is sent is copied, too. A frame for which the ring has no room is dropped and counted.
//!
//! Not guaranteed, as nobody can: that frames arrive, or are those that were sent. A controller
//! that stops to answer is found out when its registers read as all ones; one that receives nothing
//! any more isn't.
//!
//! | file | is |
//! |---|---|
//! | `registers` | the trait, the registers |
//! | `ring` | the descriptors of a queue, and its buffers |
//! | `receive`, `transmit` | a queue |
//! | `task` | what is to be done for a frame that is sent |
//! | `controller` | start, watch, frames |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod controller;
mod receive;
mod registers;
mod ring;
mod task;
#[cfg(test)]
mod tests;
mod transmit;

pub use controller::{Controller, Fault, HANG, MEMORY, MOST_HANGS, QUEUES, State, Statistics};
pub use registers::{BYTES as REGISTERS, Registers};
pub use task::{CHECKSUM_OF, LEAST_SEGMENT, MOST_CUT, Task};

/// The most bytes of a frame, its tag included, without its checksum (FCS).
pub const MOST: u32 = 1518;
/// The least bytes of a frame that is sent (IEEE 802.3, 4A.2.3.2.4, without the FCS): shorter ones
/// are padded with zeroes.
pub const LEAST: u64 = 60;
