//! The physical CPUs.

pub mod port;
