//! The interrupt by which the IOMMUs tell that they blocked something: where it goes, and that it
//! came.
//!
//! It has to arrive whatever guests do, and there are three ways to see to that (paper 4.5), of
//! which the plan names one.
//!
//! - `elsewhere`: core 0, which runs no guest, so none can hold it back.
//! - `nmi`: a guest's core, as NMI, which exits whatever IF, TPR and the IDT are.
//! - `limit`: a shared core, by a vector above the limit of the guest's IDT. Its delivery raises
//!   #GP before anything of the guest's is read; what IF or TPR hold back comes at the end of the
//!   time slice at the latest.

use crate::cpu;
use crate::{console, interrupts};
use ::iommu::Delivery;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use plan::Protection;

/// No core has this id.
const NO_CORE: u32 = u32::MAX;

/// APIC id of the shared core that gets it above the limit of its guests' IDTs.
static LIMIT_CORE: AtomicU32 = AtomicU32::new(NO_CORE);
/// APIC id of the core that gets it as NMI.
static NMI_CORE: AtomicU32 = AtomicU32::new(NO_CORE);
/// Core 0 took note of faults whose NMI may be on its way.
static SEEN: AtomicBool = AtomicBool::new(false);
/// It arrived on some core, and core 0 hasn't looked since.
static ARRIVED: AtomicBool = AtomicBool::new(false);

/// It arrived on this core.
pub fn arrived() {
    ARRIVED.store(true, Ordering::Release);
    console::wake();
}

/// Did it arrive on some core since this was last asked?
pub fn take_arrived() -> bool {
    ARRIVED.swap(false, Ordering::Acquire)
}

/// Core 0, before it looks for faults, and while no interrupt is sent for them: if there are some,
/// an NMI for them may be on its way, and will find nothing. Also where it was told of the first: a
/// unit may send one for each. If none was on its way, the core's next NMI passes for one.
pub fn look() {
    if super::fault_pending() {
        SEEN.store(true, Ordering::SeqCst);
    }
}

/// An NMI arrived on this core: was it for that? The NMI itself doesn't tell.
fn nmi() -> bool {
    if NMI_CORE.load(Ordering::Relaxed) != cpu::this().apic_id {
        return false;
    }
    let pending = super::fault_pending();
    if pending {
        arrived();
    }
    pending || SEEN.swap(false, Ordering::SeqCst)
}

/// The last vCPU of this shared core is gone, and nobody looks at what arrives there: core 0 gets
/// it.
pub fn leave(apic_id: u32) {
    if LIMIT_CORE.load(Ordering::Relaxed) == apic_id
        && let Some(host) = cpu::get(0)
    {
        super::send_faults(host.apic_id, Delivery::Fixed(interrupts::FAULTS));
    }
}

/// While booting: has the units send it as the plan says. `shared`: APIC id of a core that vCPUs
/// share; `guest`: of a core with a guest. Gives the way's name; the error is a sentence.
pub fn direct(
    protection: Protection,
    shared: Option<u32>,
    guest: u32,
) -> Result<&'static str, &'static str> {
    let fixed = Delivery::Fixed(interrupts::FAULTS);
    let (destination, delivery, way) = match (protection, shared) {
        (Protection::Elsewhere, _) => (cpu::this().apic_id, fixed, "elsewhere"),
        (Protection::Nmi, _) => {
            NMI_CORE.store(guest, Ordering::Relaxed);
            interrupts::nmi::on_nmi(nmi);
            (guest, Delivery::Nmi, "nmi")
        }
        (Protection::Limit, Some(core)) => {
            LIMIT_CORE.store(core, Ordering::Relaxed);
            (core, fixed, "limit")
        }
        (Protection::Limit, None) => {
            return Err(
                "the plan protects the IOMMU's interrupt by \"limit\", which only cores that vCPUs share have; share a core, or write iommu_faults = \"elsewhere\" or \"nmi\" in [host]",
            );
        }
    };
    super::send_faults(destination, delivery);
    Ok(way)
}
