//! The machine's IOMMUs and clock, as the routes of devices' interrupts need them.
//!
//! Which interrupt is whose, and the states of a source, are in `crates/routing`, which runs under
//! loom.

use crate::cpu::{self, rdtsc, x2apic::MESSAGE_US};
use crate::iommu;
use ::iommu::{Bdf, InterruptRoute};

/// The machine's IOMMUs.
pub struct Units;

impl routing::Units for Units {
    fn set_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        iommu::set_irte(entry, route).is_ok()
    }

    fn update_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        iommu::update_irte(entry, route).is_ok()
    }

    fn clear_irte(&self, device: Bdf, entry: u16) -> bool {
        iommu::clear_irte(device, entry).is_ok()
    }

    fn drain(&self, device: Bdf) -> bool {
        iommu::drain(device).is_ok()
    }

    fn drain_all(&self) -> bool {
        iommu::drain_all().is_ok()
    }

    fn now(&self) -> u64 {
        rdtsc()
    }

    /// From the IOMMU, which has let go of the message, to the local APIC.
    fn grace(&self) -> u64 {
        cpu::tsc_hz() / 1_000_000 * MESSAGE_US
    }
}
