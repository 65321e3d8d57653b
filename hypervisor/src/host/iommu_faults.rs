//! What the IOMMUs blocked, reported by core 0: the interrupt for it is held back for a while
//! after each; what each device tries is logged by its kind. A guest that has an IOMMU of its own
//! and keeps it busy is told later, and nobody else waits for that.
//!
//! Guarantees: a guest whose device does something forbidden as fast as it can causes at most
//! a hundred of these interrupts a second. Core 0 looks once a second besides.

use crate::cpu::{self, rdtsc};
use crate::iommu::{self, fault_interrupt, guest_faults};
use ::iommu::{Bdf, Fault, Request};
use arrayvec::ArrayVec;
use core::mem::{Discriminant, discriminant};
use plan::Protection;

/// Core 0's part.
pub struct FaultReports {
    way: &'static str,
    faults: Faults,
    /// When it was last masked or looked for, and whether it is masked.
    last: u64,
    masked: bool,
}

impl FaultReports {
    /// While booting: has the units send it as the plan says. The error is a sentence.
    pub fn new(
        protection: Protection,
        shared: Option<u32>,
        guest: u32,
    ) -> Result<Self, &'static str> {
        let way = fault_interrupt::direct(protection, shared, guest)?;
        Ok(FaultReports { way, faults: Faults::default(), last: rdtsc(), masked: false })
    }

    /// Core 0, from its loop: reports what was blocked. `here`: the interrupt arrived on this core.
    pub fn round(&mut self, here: bool) {
        let elsewhere = fault_interrupt::take_arrived();
        let since = rdtsc().wrapping_sub(self.last);
        if here || elsewhere {
            iommu::mask_faults(true);
            (self.masked, self.last) = (true, rdtsc());
            fault_interrupt::look();
            self.faults.report(self.way);
        } else if self.masked && since > cpu::tsc_hz() / 100 {
            self.masked = false;
            iommu::mask_faults(false);
        } else if since > cpu::tsc_hz() {
            self.last = rdtsc();
            iommu::mask_faults(true);
            fault_interrupt::look();
            self.faults.report("nobody");
            iommu::mask_faults(false);
        } else {
            guest_faults::tell();
        }
    }
}

/// The kind of a device's attempt, without the address.
type Kind = (Bdf, Discriminant<Request>);

/// Devices whose first attempts are reported, times what one can try.
const NAMED: usize = 5 * 32;

/// What the IOMMU blocked: the first of each kind that a device tries, so that none hides behind
/// another, and beyond that one a second, for a guest can make its device do something forbidden as
/// often as it likes.
#[derive(Default)]
struct Faults {
    last: u64,
    unreported: u64,
    named: ArrayVec<Kind, NAMED>,
}

impl Faults {
    /// Looks, and reports if it is time; `way`: how the host heard of it.
    fn report(&mut self, way: &str) {
        let found = iommu::faults(guest_faults::note);
        guest_faults::tell();
        let now = rdtsc();
        let due = self.last == 0 || now.wrapping_sub(self.last) >= cpu::tsc_hz();
        for (i, fault) in found.iter().enumerate() {
            let newest = i + 1 == found.len();
            let reported = self.is_first(fault) || due && newest;
            if !reported {
                self.unreported += 1;
                continue;
            }
            let unreported = core::mem::take(&mut self.unreported);
            self.last = now;
            crate::memory::while_reporting(|| {
                log::warn!("IOMMU: {fault}; {unreported} more, reported by {way}");
            });
        }
    }

    /// Whether its device hasn't tried the like before.
    fn is_first(&mut self, fault: &Fault) -> bool {
        let kind = (fault.source, discriminant(&fault.request));
        !self.named.contains(&kind) && self.named.try_push(kind).is_ok()
    }
}
