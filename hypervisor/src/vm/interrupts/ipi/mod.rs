//! Interrupts (IPIs) and requests of one core to another core's vCPU.
//!
//! `quick` is the one exit of an IPI under `direct`, `send` every other way to a vCPU, `remote` the
//! part of a vCPU that others reach, `requests` what the vCPU then does. The order in which that
//! happens is `crates/mailbox`.

pub mod quick;
pub mod remote;
pub mod requests;
pub mod send;
