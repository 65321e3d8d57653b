//! The PC that a guest sees, as state machines without hardware access.
//!
//! The hypervisor calls these on port, MMIO, CPUID and MSR exits. Guarantees:
//! any value a guest can feed has a defined result, work is bounded, nothing
//! allocates and nothing panics. Not guaranteed: timing. Devices answer at once
//! (the UART transmits in no time, the clock stands still), and whatever needs
//! hardware (mapping a BAR, programming an interrupt) is named in a result for
//! the host to do, never done here.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod bios_data;
pub mod control;
pub mod cpuid;
pub mod ioapic;
pub mod message;
pub mod msix;
pub mod msr;
pub mod mtrr;
pub mod pci;
pub mod ports;
pub mod power;
pub mod rtc;
pub mod uart;
pub mod unanswered;
