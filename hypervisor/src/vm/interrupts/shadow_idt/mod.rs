//! The shadow IDT (paper 4.1; where it is placed, 4.2): the guest takes its devices' interrupts
//! through its own handlers, the host's vectors exit.
//!
//! `pages` keeps the frames of a VM and who uses them, `vcpu_shadow` one vCPU's part in it,
//! `placement` puts a shadow in place and takes it away. Which gates are hidden and how the copy is
//! made is `crates/delivery` (`shadow`). A shared core needs none: there the limit of the IDT hides
//! what is the host's (`vm/core_sharing/residency.rs`).

pub mod pages;
pub mod placement;
pub mod vcpu_shadow;
