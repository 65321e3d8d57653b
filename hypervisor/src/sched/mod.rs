//! What runs on a core: one vCPU for good, or several by turns.

pub mod fiber;
pub mod shared;
