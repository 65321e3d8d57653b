//! Intel's IOMMU, by the VT-d specification (revision 4.1): legacy-mode translation, queued
//! invalidation, interrupt remapping in x2APIC mode.
//!
//! Guarantees: from [`Unit::enable`] on, DMA of a device that isn't attached is blocked, as are
//! interrupts without an entry and all in compatibility format (QEMU delivers those all the same:
//! keep guests away from MSI-X tables). Where [`Remapping`](crate::Remapping) is off, no interrupt
//! is blocked. A present entry is never changed without the invalidation the specification asks for
//! and a completed wait. No device can make it fail: what devices can cause is cleared and
//! reported. It doesn't build second-level page tables, and doesn't use scalable mode, device TLBs
//! or posted interrupts, of which it knows the format ([`posted`]).

pub mod audit;
mod capabilities;
mod command;
mod context;
mod fault;
mod interrupt;
pub mod posted;
mod queue;
mod registers;
mod unit;

#[cfg(test)]
mod tests;

pub use capabilities::{Capabilities, probe};
pub use fault::fault_pending;
pub use interrupt::{block_message, ioapic_entry, message};
pub use unit::Unit;
