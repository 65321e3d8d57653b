//! The console stream on COM1.

pub mod uart;
