//! What the image and the tools say to each other: frames on the serial line, the records in
//! them, the interrupt policies by name, what a machine offers, and how the image ends.
//!
//! Guarantees: both sides read the same definitions, so that neither can drift; a damaged
//! stream costs the frame or the record that it damages, and no input panics or grows without
//! bound. The two sides must be of one build: records carry no version.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod exit;
pub mod frame;
pub mod offer;
mod policy;
mod record;
mod served;

pub use policy::Policy;
pub use record::{ASK_LIVE, End, Record, RecordDecoder, encode};
pub use served::{Served, ServedDevice};
