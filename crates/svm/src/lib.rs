//! AMD's Secure Virtual Machine (APM vol. 2, 15), as far as it is pure: the control block and what
//! its fields mean, exits in the terms that vendors share, events, the permission maps, the states
//! a vCPU starts in.
//!
//! Guarantees: whatever the mode, the guest has the intercepts that the host's safety needs
//! ([`Vcpu::new`]), and reaches without an exit only the MSRs and ports that [`maps`] lists.
//! Doesn't execute anything: the hypervisor enters guests, and reads and writes registers.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod audit;
pub mod emulator;
mod events;
mod exits;
mod features;
mod flag;
mod guard;
pub mod maps;
mod nmi;
mod registers;
mod start;
mod state;
mod vcpu;
pub mod vmcb;

pub use audit::{Inner, Outline};
pub use events::{injected, pending};
pub use exits::{event, inner_event, instruction, is_halt, is_msr_write, port_access};
pub use features::Features;
pub use registers::GeneralRegisters;
pub use state::EFER_SVME;
pub use vcpu::{ALWAYS_EXCEPTIONS, ALWAYS_MISC1, ALWAYS_MISC2, Maps, Setup, Vcpu};
pub use vmcb::Vmcb;
