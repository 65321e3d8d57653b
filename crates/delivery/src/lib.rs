//! ELI (ASPLOS'12, CACM'16) as state machines: which vector is whose, what the
//! shadow IDT holds, which mode a vCPU runs in, and its virtual local APIC.
//!
//! Nothing here touches hardware: the hypervisor feeds exits in and applies what
//! comes out. Guarantees: an interrupt that the guest is owed is either pending in
//! the physical local APIC or in [`LocalApic`], never in neither and never in both;
//! a host-owned vector never has a present gate in a shadow IDT. It doesn't
//! guarantee that the guest keeps the page of its IDT mapped where its IDTR points:
//! see `docs/design.md`, "Where the shadow IDT lives".
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod apic;
mod apic_base;
#[cfg(test)]
mod apic_switch_tests;
mod core_vectors;
mod destination;
mod event;
mod kicks;
mod lent_timer;
mod local_sources;
mod mode;
mod shadow;
mod startup;
mod timer;
mod vectors;

pub use apic::{Core, LocalApic, TimerSetup, WriteEffect};
pub use apic_base::{ApicBase, ApicMode, Refused};
pub use core_vectors::{Arrived, CoreVectors, FIRST_RESERVED, SPURIOUS};
pub use destination::{Addressing, Destination};
pub use event::{DeliveryFault, Event, EventKind, Raised, classify};
pub use kicks::{Kicks, NmiSource};
pub use lent_timer::{CoreTimer, Taken, take_back};
pub use local_sources::{is_expected, local_sources};
pub use mode::{Mode, mode_for};
pub use shadow::{GATE_BYTES, PAGE_BYTES, Unsuitable, build, gate_present, suitable};
pub use startup::{Found, Signal, Startup};
pub use timer::VirtualTimer;
pub use vectors::{Routes, STAND_IN_TOP, VectorSet, class, is_ordinary};
