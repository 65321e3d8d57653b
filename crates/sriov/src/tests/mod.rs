//! The crate against models of a device's configuration space and registers.

mod capability;
mod i82576;
