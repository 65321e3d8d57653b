//! Virtual functions of PCI devices (SR-IOV 1.1): switched on, placed in memory, and the one
//! controller whose physical function the host drives, so that guests can have the others.
//!
//! Guarantees: a physical function is changed only as far as a call says; when a call fails, its
//! virtual functions are off. What a guest can write, a mailbox of [`i82576`], is read once,
//! bounded and checked: it changes nothing of another guest's function.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod capability;
pub mod i82576;

pub use capability::{Above, Bar, Capability, Config, Enabled, Error, MAX_FUNCTIONS};

#[cfg(test)]
mod tests;
