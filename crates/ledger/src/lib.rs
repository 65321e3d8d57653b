//! The ledger: every exit counted by reason, per vCPU.
//!
//! Guarantees: counting is one add on memory that only its own core writes, so a count costs no
//! lock and no atomic; the guest reads its own counters as plain memory ([`Page`]), so asking for
//! them causes no exit. It doesn't guarantee that a reader on another core sees counters of one
//! instant: each counter is exact, the set may be skewed by the exit in progress.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
mod c_header;
mod page;
mod reason;

pub use page::{Counters, PAGE_MAGIC, PAGE_VERSION, Page, WAITS};
pub use reason::Reason;
