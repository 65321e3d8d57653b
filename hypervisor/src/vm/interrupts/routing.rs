//! The machine's IOMMUs and clock, as the routes of devices' interrupts need them.
//!
//! Which interrupt is whose, and the states of a source, are in `crates/routing`, which runs under
//! loom.

use crate::cpu::{self, rdtsc};
use crate::iommu;
use ::iommu::{Bdf, InterruptRoute};

/// How long a message takes at most from the IOMMU, which has let go of it, to the local APIC: some
/// hundred nanoseconds by what is known, and no manual names a bound.
const GRACE_US: u64 = 20;

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

    fn grace(&self) -> u64 {
        cpu::tsc_hz() / 1_000_000 * GRACE_US
    }
}
