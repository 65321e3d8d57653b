//! The host's critical interrupt: an IOMMU blocked something. It has to arrive whatever guests do,
//! and there are three ways to see to that (paper 4.3), of which the plan names one.
//!
//! | protection | it goes to | what keeps a guest from holding it back |
//! |---|---|---|
//! | `elsewhere` | core 0, which runs no guest | it isn't there |
//! | `nmi` | a guest's core, as NMI | NMIs exit whatever IF, TPR and the IDT are |
//! | `limit` | a shared core, by a vector above the limit of the guest's IDT | its delivery raises #GP before anything of the guest's is read; what IF or TPR hold back comes at the end of the turn at the latest |
//!
//! Guarantees: a guest whose device does something forbidden as fast as it can causes at most
//! a hundred of these interrupts a second. Core 0 looks once a second besides.

use crate::cpu::{self, rdtsc};
use crate::sched::shared::SharedCore;
use crate::{console, interrupts, iommu};
use ::iommu::{Bdf, Delivery, Fault, Request};
use arrayvec::ArrayVec;
use core::mem::{Discriminant, discriminant};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use plan::Protection;

/// No core has this id.
const NO_CORE: u32 = u32::MAX;

/// APIC id of the shared core that gets it above the limit of its guests' IDTs.
static LIMIT_CORE: AtomicU32 = AtomicU32::new(NO_CORE);

/// It arrived on some core, and core 0 hasn't looked since.
static ARRIVED: AtomicBool = AtomicBool::new(false);
/// APIC id of the core that gets it as NMI.
static NMI_CORE: AtomicU32 = AtomicU32::new(NO_CORE);

/// It arrived on this core.
pub fn arrived() {
    ARRIVED.store(true, Ordering::Release);
    console::wake();
}

/// An NMI arrived on this core: was it for that? The NMI itself doesn't tell.
pub fn nmi() {
    if NMI_CORE.load(Ordering::Relaxed) == cpu::this().apic_id && iommu::fault_pending() {
        arrived();
    }
}

/// The last vCPU of this shared core is gone, and nobody looks at what arrives there: core 0 gets it.
pub fn leave(apic_id: u32) {
    if LIMIT_CORE.load(Ordering::Relaxed) == apic_id
        && let Some(host) = cpu::get(0)
    {
        iommu::send_faults(host.apic_id, Delivery::Fixed(interrupts::FAULTS));
    }
}

/// Core 0's part.
pub struct Critical {
    way: &'static str,
    faults: Faults,
    /// When it was last masked or looked for, and whether it is masked.
    last: u64,
    masked: bool,
}

impl Critical {
    /// While booting: has the units send it as the plan says. The error is a sentence.
    pub fn new(
        protection: Protection,
        shared: Option<&SharedCore>,
        guest: u32,
    ) -> Result<Self, &'static str> {
        let fixed = Delivery::Fixed(interrupts::FAULTS);
        let (destination, delivery, way) = match (protection, shared) {
            (Protection::Elsewhere, _) => (cpu::this().apic_id, fixed, "elsewhere"),
            (Protection::Nmi, _) => {
                NMI_CORE.store(guest, Ordering::Relaxed);
                interrupts::on_nmi(nmi);
                (guest, Delivery::Nmi, "nmi")
            }
            (Protection::Limit, Some(core)) => {
                LIMIT_CORE.store(core.apic_id, Ordering::Relaxed);
                (core.apic_id, fixed, "limit")
            }
            (Protection::Limit, None) => {
                return Err(
                    "the plan protects the IOMMU's interrupt by \"limit\", which only cores that vCPUs share have; share a core, or write iommu_faults = \"elsewhere\" or \"nmi\" in [host]",
                );
            }
        };
        iommu::send_faults(destination, delivery);
        Ok(Critical { way, faults: Faults::default(), last: rdtsc(), masked: false })
    }

    /// Core 0, from its loop: tells of what was blocked. `here`: the interrupt arrived on this core.
    pub fn round(&mut self, here: bool) {
        let elsewhere = ARRIVED.swap(false, Ordering::Acquire);
        let since = rdtsc().wrapping_sub(self.last);
        if here || elsewhere {
            iommu::mask_faults(true);
            (self.masked, self.last) = (true, rdtsc());
            self.faults.report(self.way);
        } else if self.masked && since > cpu::tsc_hz() / 100 {
            self.masked = false;
            iommu::mask_faults(false);
        } else if since > cpu::tsc_hz() {
            self.last = rdtsc();
            self.faults.report("nobody");
        }
    }
}

/// What a device tried, without where.
type Kind = (Bdf, Discriminant<Request>);

/// Devices whose first attempts are told of, times what one can try.
const NAMED: usize = 3 * 32;

/// What the IOMMU blocked: the first of each kind that a device tries, so that none hides behind
/// another, and beyond that one a second, for a guest can make its device do something forbidden as
/// often as it likes.
#[derive(Default)]
struct Faults {
    last: u64,
    untold: u64,
    named: ArrayVec<Kind, NAMED>,
}

impl Faults {
    /// Looks, and tells if it is time; `way`: how the host heard of it.
    fn report(&mut self, way: &str) {
        let found = iommu::faults();
        let now = rdtsc();
        let due = self.last == 0 || now.wrapping_sub(self.last) >= cpu::tsc_hz();
        for (i, fault) in found.iter().enumerate() {
            let newest = i + 1 == found.len();
            let told = self.is_first(fault) || due && newest;
            if !told {
                self.untold += 1;
                continue;
            }
            let untold = core::mem::take(&mut self.untold);
            self.last = now;
            crate::memory::while_reporting(|| {
                log::warn!("IOMMU: {fault}; {untold} more, told by {way}");
            });
        }
    }

    /// Whether its device hasn't tried the like before.
    fn is_first(&mut self, fault: &Fault) -> bool {
        let kind = (fault.source, discriminant(&fault.request));
        !self.named.contains(&kind) && self.named.try_push(kind).is_ok()
    }
}
