//! ACPI both ways: what the firmware says of the machine, and what a guest is told of its own.
//!
//! Guarantees: [`probe`] ends after bounded work on any bytes, believes no length and no checksum
//! unchecked, and refuses with one sentence that names the table; [`guest::build`] gives tables
//! that this parser reads back. It doesn't interpret AML: nothing the hypervisor needs is said
//! there only.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod covered;
mod error;
pub mod guest;
mod ivrs;
mod machine;
mod parse;
mod watchdog;

pub use covered::Covered;
pub use error::Error;
pub use ivrs::{
    DeviceEntry, HardwareDefinition, HardwareSettings, Ivrs, MemoryAccess, MemoryDefinition,
    Passing, SpecialDevice, SpecialKind,
};
pub use machine::{
    Affinity, Cpu, Dmar, Ecam, IoApic, MAX_CPUS, MAX_ECAMS, MAX_IOAPICS, Machine, NearMemory,
    PathStep, PmTimer, RemappingUnit, ReservedMemory, Reset, ResetRegister, Scope, ScopeKind,
    SerialFunction, SerialPort, SerialRegisters,
};
pub use parse::{RootPointer, find_rsdp, places, probe};
pub use watchdog::{
    Instruction, Operation, Place, Quieted, Watchdog, WatchdogRegister, WatchdogRegisters,
};

/// Physical memory, as the firmware left it.
pub trait Physical {
    /// Reads `buf.len()` bytes at physical address `pa`; false if that isn't all readable memory.
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool;
}
