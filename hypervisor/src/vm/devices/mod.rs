//! A guest's devices.

pub mod assigned;
pub mod registers;
