//! The back end's side of vhost-user (QEMU's `docs/interop/vhost-user.rst`): framing, and what a
//! front end has set up so far.
//!
//! Nothing here does I/O. Who has the socket reads a [`Header`], then as many bytes as it says, and
//! gives them to [`Session::handle`] with the descriptors that came along, as handles of any type.
//! The answer is an [`Effect`]: what to do, and what to reply.
//!
//! Guarantees, whatever the front end sends: nothing panics, no message is longer than
//! [`MAX_PAYLOAD`], no more handles are kept than a message may have, rings and regions are no more
//! than were offered. What was said of a ring can be asked for at any time.
//!
//! Not guaranteed: that regions can be mapped, that a ring's addresses are in one.
//!
//! | file | is |
//! |---|---|
//! | `header` | the header, its flags, the numbers of requests |
//! | `fields` | the payload's numbers, each read once |
//! | `session` | the state machine |
//! | `effect` | what follows from a message, or from its refusal |
//! | `state` | protocol features, and what is said of rings and records |
//! | `replay` | what was said, once more |
//! | `memory` | regions of the front end's memory, and addresses in them |
//! | `error` | what is refused |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod effect;
mod error;
mod fields;
mod header;
mod memory;
mod replay;
mod session;
mod state;
#[cfg(test)]
mod tests;

pub use effect::{Effect, Refusal};
pub use error::Error;
pub use header::{HEADER_BYTES, Header, MAX_PAYLOAD, Request};
pub use memory::{MAX_REGIONS, Region};
pub use replay::{Handle, Holder, Said};
pub use session::Session;
pub use state::{Addresses, Inflight, LogArea, Protocol, Ring};

/// VHOST_USER_F_PROTOCOL_FEATURES, in the feature word of the device.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// VHOST_F_LOG_ALL, in the same word: what is written to guest memory is logged. Offered with
/// [`Protocol::LOG_SHMFD`].
pub const LOG_ALL: u64 = 1 << 26;
/// The most handles that come with a message.
pub const MAX_HANDLES: usize = MAX_REGIONS;
