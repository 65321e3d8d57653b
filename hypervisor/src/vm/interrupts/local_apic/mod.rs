//! The local APIC that a guest sees, and the core's own behind it.
//!
//! `registers` does what the guest's accesses ask for, `apic_mode` follows the modes (xAPIC,
//! x2APIC, disabled), `this_core` shows the core's registers while they hold the guest's state,
//! `lvt` looks over the core's local vector table for the audit. The registers themselves are
//! `crates/delivery` (`apic` and its neighbours).

pub mod apic_mode;
pub mod lvt;
pub mod registers;
pub mod this_core;
