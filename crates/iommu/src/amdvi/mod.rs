//! AMD's IOMMU, by the AMD I/O Virtualization Technology (IOMMU) Specification (48882, revision 3):
//! host page tables of version 1, a command buffer, an event log, interrupt remapping by entries of
//! 128 bits with x2APIC destinations.
//!
//! Guarantees: from [`Unit::enable`] on, DMA of a device that isn't attached is blocked, and so is
//! whatever else its entry of the device table could let pass: all 65,536 entries are valid and
//! deny before the unit sees them, and stay valid. Interrupts without an entry of the device's own
//! table are blocked; where [`Remapping`](crate::Remapping) is off, fixed and arbitrated ones
//! aren't. An entry that the unit may have read is never changed without the invalidation that the
//! manual asks for and a completed wait; requests that build upon another aren't begun before a
//! wait for that, for the unit may do them in any order. No device can make it fail: what devices
//! can cause is logged and reported.
//!
//! A device is known by the id that its requests carry, which firmware's tables (ACPI IVRS) may say
//! is another's: [`Firmware::aliases`](crate::Firmware) at [`Unit::enable`] names those, and then
//! both ids' entries change together. Devices with one id can't be kept apart: they share a domain,
//! one's [`detach`](Unit::detach) is the other's, and each may raise the other's interrupts.
//!
//! It doesn't build page tables, and doesn't use guest page tables, device TLBs, page requests,
//! posted interrupts (guest virtual APIC) or device-table segments. It doesn't know whether the
//! unit caches that something isn't there (NpCache in its PCI capability) and takes it that it
//! does. It doesn't reach the unit's own PCI function: see [`Unit::send_faults`].

mod aliases;
pub mod audit;
mod by_id;
mod capabilities;
mod control;
mod device;
mod events;
mod interrupt;
mod queue;
mod registers;
mod unit;

#[cfg(test)]
mod tests;

pub use capabilities::{Capabilities, probe};
pub use events::fault_pending;
pub use unit::Unit;
