//! How a vCPU has its core: for good, or in turn with others.
//!
//! `cores` is the work of a core that has vCPUs, `core_slot` a vCPU's place on it, `residency`
//! how it comes to the core and leaves it. Who has the core next is `sched` and `crates/schedule`.

pub mod core_slot;
pub mod cores;
pub mod residency;
