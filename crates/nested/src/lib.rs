//! Nested virtualisation on SVM, as far as it is pure (Turtles, OSDI 2010, section 3; APM vol. 2,
//! 15): a guest, L1, runs guests of its own, L2.
//!
//! The CPU runs L1 by a control block of the host's, 01. L1 writes one of its own for L2, 12, in
//! its memory. The CPU runs L2 by a third one, 02, which [`Nest::enter`] merges of the two. Each
//! exit of L2 is the host's or L1's ([`Control::owner`]); one that is L1's is written into 12
//! ([`Nest::leave`]), as the CPU would have.
//!
//! Guarantees, whatever L1 writes and whenever: each word of 12 is read once for a VMRUN, then
//! checked against what L1 was offered ([`Offer`]), then used; 02 has every intercept that the
//! host's safety needs, opens no MSR or port that 01 doesn't, and runs in an address space and by
//! nested tables of the host's choice. No loop depends on what L1 wrote.
//!
//! Doesn't access L1's memory: whoever calls does, by [`Block`], [`PermissionMaps`] and
//! [`tables::L1Memory`].
//!
//! | file | is |
//! |---|---|
//! | `offer` | what L1 was offered |
//! | `block` | 12, as words in L1's memory |
//! | `control` | what L1 wants of the CPU while L2 runs |
//! | `check` | what VMRUN refuses |
//! | `enter` | 12 and 01, merged into 02 |
//! | `owner` | whose exit one is |
//! | `again` | an event that L2 has after all |
//! | `keep` | for how long the CPU keeps L1's global interrupt flag |
//! | `leave` | an exit of L2, written into 12 |
//! | `served` | an exit of L2 that is served as L1's own |
//! | `loaded` | what VMLOAD and VMSAVE move |
//! | `avic` | L2's local APIC, where L1 has it accelerated |
//! | `maps` | the merged permission maps |
//! | `tables` | L2's physical addresses, translated by both |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod again;
pub mod avic;
mod block;
mod check;
mod control;
mod enter;
mod keep;
mod leave;
pub mod loaded;
mod maps;
mod offer;
mod owner;
mod served;
pub mod tables;
#[cfg(test)]
mod tests;

pub use block::Block;
pub use check::Illegal;
pub use control::Control;
pub use enter::{Entry, Flush, Host, Nest};
pub use keep::Keep;
pub use leave::{Told, host_state};
pub use maps::{MSR_WORDS, OpenWords, PORT_WORDS, TooMany, Used, UsedMaps};
pub use offer::Offer;
pub use owner::{Owner, PermissionMaps};
pub use served::exchange;
