//! Physical interrupts that arrive in the host.
//!
//! Guarantees: each is noted for the core it arrived on and completed (EOI) at once, unless a guest
//! is to complete it ([`acknowledge`]); whoever cares asks with [`take`]. Legacy sources (8259,
//! IOAPIC pins, LINT0, LINT1) are masked and stay so unless somebody unmasks a pin; but core 0
//! takes the platform's NMIs at LINT1.

mod acknowledge;
mod arrived;
mod host;
pub mod legacy;
pub mod nmi;
mod sleep;
pub mod vectors;

pub use acknowledge::acknowledge;
pub use arrived::{any, on_core_0, take};
pub use host::{arrived, drain, load, load_tolerant, sleep_until_woken, tolerating};
pub use sleep::{disable, enable, enable_and_halt, sleep};
pub use vectors::{FAULTS, POSTED, SPURIOUS, TIMER, WAKE};
