//! The guest's timer, whose interrupts it takes without an exit where it takes devices' so.
//!
//! `guest_timer` is the state, `ticks` sets the core's timer and gives the guest its interrupts.
//! `lent` gives a vCPU of a shared core that core's timer, and takes it back. The virtual timer of
//! a shared core is `crates/delivery` (`timer`), and how it becomes the core's, `lent_timer` there.

pub mod guest_timer;
pub mod lent;
pub mod ticks;
