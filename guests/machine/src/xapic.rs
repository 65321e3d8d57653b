//! The local APIC in xAPIC mode (SDM 3A, 11.4): its page of registers, and the ways between modes.
//!
//! Guarantees: while a CPU is in xAPIC mode by [`enter`], all of `x2apic` uses the page on it. The
//! registers have the numbers that their MSRs have.

use crate::{
    cpu::{self, rdmsr, wrmsr},
    idt::Fault,
    smp,
};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// IA32_APIC_BASE.
pub const BASE: u32 = 0x1B;
/// Where the page is.
pub const PAGE: u64 = 0xFEE0_0000;
/// Logical destination, destination format and error status.
pub const LOGICAL_DESTINATION: u32 = 0x80D;
/// Destination format.
pub const FORMAT: u32 = 0x80E;
/// Error status.
pub const ERROR_STATUS: u32 = 0x828;
/// The upper half of the interrupt command.
pub const COMMAND_HIGH: u32 = 0x831;

/// A mode, by bits 11:10 of [`BASE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// Globally disabled.
    Off = 0,
    /// What no CPU can be in.
    Invalid = 1 << 10,
    /// xAPIC.
    Xapic = 1 << 11,
    /// x2APIC.
    X2apic = 3 << 10,
}

static ON: [AtomicBool; smp::MAX] = [const { AtomicBool::new(false) }; smp::MAX];

/// Whether this CPU is in xAPIC mode by [`enter`].
pub fn is_on() -> bool {
    ON[smp::index()].load(SeqCst)
}

/// Writes [`BASE`] for this mode, at the usual place.
pub fn try_mode(mode: Mode) -> Result<(), Fault> {
    let done = cpu::try_wrmsr(BASE, rdmsr(BASE) & 0x100 | PAGE | mode as u64);
    if done.is_ok() {
        ON[smp::index()].store(mode == Mode::Xapic, SeqCst);
    }
    done
}

/// The mode as the register shows it.
pub fn mode() -> u64 {
    rdmsr(BASE) & 0xC00
}

/// From x2APIC mode to xAPIC mode by way of off, enabled by software as in `x2apic::init_cpu`.
pub fn enter() {
    wrmsr(BASE, rdmsr(BASE) & 0x100 | PAGE);
    wrmsr(BASE, rdmsr(BASE) | Mode::Xapic as u64);
    ON[smp::index()].store(true, SeqCst);
    crate::x2apic::init_registers();
}

/// Back to x2APIC mode, which keeps all but the logical destination.
pub fn leave() {
    wrmsr(BASE, rdmsr(BASE) | Mode::X2apic as u64);
    ON[smp::index()].store(false, SeqCst);
}

/// Notes that this CPU was reset, or switched to x2APIC mode by other means.
pub fn forget() {
    ON[smp::index()].store(false, SeqCst);
}

/// Reads the register that has this MSR.
pub fn read(register: u32) -> u32 {
    cpu::mmio_read(PAGE + u64::from(register - 0x800) * 16)
}

/// Writes it.
pub fn write(register: u32, value: u32) {
    cpu::mmio_write(PAGE + u64::from(register - 0x800) * 16, value);
}
