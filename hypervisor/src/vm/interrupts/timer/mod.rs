//! The guest's timer, whose interrupts it takes without an exit where it takes devices' so.
//!
//! `guest_timer` is the state, `ticks` sets the core's timer and gives the guest its interrupts.
//! The virtual timer of a shared core is `crates/delivery` (`timer`).

pub mod guest_timer;
pub mod ticks;
