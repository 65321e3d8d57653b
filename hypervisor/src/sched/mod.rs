//! The work of a core: one vCPU for good, or several in time slices.

pub mod clock;
pub mod fiber;
pub mod host_core;
pub mod run_queue;
pub mod shared_core;
