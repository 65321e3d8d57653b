//! What routes the interrupts of devices, as `crates/routing` needs it: the machine's IOMMUs, and
//! the entries of virtual functions, by which sidecores go.
//!
//! Which interrupt is whose, and the states of a source, are in `crates/routing`, which runs under
//! loom. Whether a source is a virtual function's is decided here and nowhere else.

use crate::cpu::{self, rdtsc, x2apic::MESSAGE_US};
use crate::iommu;
use crate::sidecore::entries;
use ::iommu::{Bdf, InterruptRoute};
use routing::calls::is_paravirtual;

/// The machine's IOMMUs, and its sidecores.
pub struct Units;

impl routing::Units for Units {
    fn set_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        if is_paravirtual(route.source) {
            return entries::route(entry, route) && entries::settle();
        }
        iommu::set_irte(entry, route).is_ok()
    }

    fn update_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        if is_paravirtual(route.source) {
            return entries::route(entry, route);
        }
        iommu::update_irte(entry, route).is_ok()
    }

    fn clear_irte(&self, device: Bdf, entry: u16) -> bool {
        if is_paravirtual(device) {
            return entries::clear(entry) && entries::settle();
        }
        iommu::clear_irte(device, entry).is_ok()
    }

    fn drain(&self, device: Bdf) -> bool {
        if is_paravirtual(device) {
            return entries::settle();
        }
        iommu::drain(device).is_ok()
    }

    fn drain_all(&self) -> bool {
        entries::settle() && iommu::drain_all().is_ok()
    }

    fn now(&self) -> u64 {
        rdtsc()
    }

    /// From the IOMMU, which has let go of the message, to the local APIC.
    fn grace(&self) -> u64 {
        cpu::tsc_hz() / 1_000_000 * MESSAGE_US
    }
}
