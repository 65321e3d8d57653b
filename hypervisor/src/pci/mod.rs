//! The machine's PCI functions: found, kept apart, reset, given to VMs.

pub mod acs;
pub mod assignment;
pub mod config;
pub mod msi;
mod ports;
pub mod reset;
pub mod room;
pub mod shown;
pub mod sriov;

pub use ::pci::{CAPABILITY_EXPRESS, COMMAND, COMMAND_MEMORY, Config};
pub use config::{
    BRIDGE_CLASS, Bar, COMMAND_BUS_MASTER, COMMAND_INTX_DISABLE, COMMAND_IO, Function, HEADER_TYPE,
    Pci,
};
