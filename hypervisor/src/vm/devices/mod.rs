//! A guest's devices.

pub mod assigned;
