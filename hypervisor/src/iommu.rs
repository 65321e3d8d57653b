//! The machine's IOMMUs, found by ACPI and switched on before any guest runs.
//!
//! A unit is shared by the VMs whose devices it serves, so it stands behind a lock. It is
//! taken when a guest changes an interrupt's route or its memory map changes, never for
//! an interrupt; the work under it is one or two queue entries and a bounded wait.

mod access;
pub mod domain;
pub mod fault_interrupt;
mod found;
pub mod guest;
pub mod guest_faults;
pub mod pool;

use crate::pci::{msi, sriov};
pub use access::write_back;
use access::{Frames, Mmio};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::Range;
pub use found::{Found, find};
use found::{FoundUnit, Reserved};
use iommu::audit::{self, Cursor, Entry, Finding};
use iommu::{
    Bdf, Delivery, Domain, DomainId, Error, Fault, InterruptRoute, Message, Remapping, Vendor,
};
use paging::{AmdV1, Dma, Format, PageSize, VtdSecondLevel};
use spin::Once;
use spin::mutex::TicketMutex as Mutex;

/// Entries of each interrupt-remapping table.
const INTERRUPT_ENTRIES: u32 = 4096;
/// The end of a sentence about a device.
const NOT_SERVED: &str = "no IOMMU serves it";

type Unit = iommu::Unit<Mmio, Frames>;

/// The format of the page tables for DMA that the units at hand walk.
pub type PageFormat = Dma;

struct Served {
    found: FoundUnit,
    unit: Mutex<Unit>,
}

static UNITS: Once<Vec<Served>> = Once::new();
static RESERVED: Once<Vec<Reserved>> = Once::new();

/// Switches on every unit that was found; from then on devices reach nothing that a VM hasn't been
/// given, and raise nothing, unless the machine can't remap interrupts and the plan makes do
/// without.
/// The error is a part of a sentence; no function is served then, and those behind units that could
/// be switched on are cut off.
#[cold]
pub fn enable(found: Found) -> Result<(), String> {
    let Found { units, reserved, remapping } = found;
    let mut served = Vec::new();
    for found in units {
        let base = found.base;
        let (regs, firmware) = (Mmio(base), &found.firmware);
        let on = Unit::enable(found.vendor, regs, Frames, INTERRUPT_ENTRIES, remapping, firmware)
            .map_err(|e| format!("the IOMMU at {base:#x} can't be used: {e}"))?;
        served.push(Served { found, unit: Mutex::new(on) });
    }
    UNITS.call_once(|| served);
    RESERVED.call_once(|| reserved);
    Ok(())
}

/// Why a device can't be a guest's, by what firmware says of it; a part of a sentence.
pub fn reserved(device: Bdf) -> Option<&'static str> {
    // Its requests may carry another's id, which may be such a one's.
    let of_unit = place(device).and_then(|place| units().get(place));
    let aliases = of_unit.map(|served| served.found.firmware.aliases.as_slice());
    let own = device.in_segment(0);
    let aliases = aliases.unwrap_or_default().iter().filter(|alias| alias.device == own);
    let ids = || core::iter::once(own).chain(aliases.clone().map(|alias| alias.requester));
    let of = |r: &&Reserved| {
        r.segment == device.segment() && ids().any(|id| r.devices.contains(id.requester_id()))
    };
    RESERVED.get()?.iter().find(of).map(|r| r.why.as_str())
}

fn units() -> &'static [Served] {
    UNITS.get().map(Vec::as_slice).unwrap_or_default()
}

/// What each unit is called, and where its registers are.
pub fn names() -> impl Iterator<Item = (&'static str, u64)> {
    units().iter().map(|served| (served.found.vendor.unit_name(), served.found.base))
}

/// Where the registers of each unit are.
pub fn registers_of_units() -> impl Iterator<Item = Range<u64>> {
    units().iter().map(|served| served.found.registers())
}

fn every(what: impl Fn(&Unit) -> bool) -> bool {
    units().iter().all(|served| what(&served.unit.lock()))
}

/// Whether every unit snoops the CPU's caches when it walks page tables.
pub fn coherent() -> bool {
    every(Unit::coherent)
}

/// The page tables that DMA goes by on this machine: what every unit can. All are of one vendor.
#[inline(never)]
pub fn page_format() -> PageFormat {
    let (four, three) = match units().first().map(|served| served.found.vendor) {
        Some(Vendor::Amd) => (Dma::Amd(AmdV1::FourLevels), Dma::Amd(AmdV1::ThreeLevels)),
        Some(Vendor::Intel) | None => {
            (Dma::Vtd(VtdSecondLevel::FourLevels), Dma::Vtd(VtdSecondLevel::ThreeLevels))
        }
    };
    if every(|unit| unit.supports_levels(four.levels() as u8)) { four } else { three }
}

/// The largest pages that every unit takes in them.
#[inline(never)]
pub fn largest_page() -> PageSize {
    match (every(|unit| unit.page_sizes().pages_2m), every(|unit| unit.page_sizes().pages_1g)) {
        (true, true) => PageSize::Size1G,
        (true, false) => PageSize::Size2M,
        (false, _) => PageSize::Size4K,
    }
}

/// The place of the unit that serves this device.
#[inline(never)]
pub fn place(device: Bdf) -> Option<usize> {
    // A virtual function is its physical function's unit's, named or not (VT-d 8.3).
    let device = sriov::physical(device).unwrap_or(device);
    let find = |serves: &dyn Fn(&FoundUnit) -> bool| {
        let of = |found: &FoundUnit| found.segment == device.segment() && serves(found);
        units().iter().position(|served| of(&served.found))
    };
    find(&|found| found.named.contains(device.requester_id())).or_else(|| find(&|found| found.all))
}

/// The unit that serves this device.
#[inline(never)]
fn served(device: Bdf) -> Option<&'static Served> {
    units().get(place(device)?)
}

/// With the unit of a device, and the device as the unit knows it: by its requester id.
fn with<R>(device: Bdf, f: impl FnOnce(&mut Unit, Bdf) -> R) -> Option<R> {
    let served = served(device)?;
    Some(f(&mut served.unit.lock(), device.in_segment(0)))
}

/// Whose the unit is that serves this device, and where its registers are.
#[cfg(feature = "plant")]
pub fn registers(device: Bdf) -> Option<(Vendor, u64)> {
    let found = &UNITS.get()?.get(place(device)?)?.found;
    Some((found.vendor, found.base))
}

/// Whether some unit serves this device.
pub fn serves(device: Bdf) -> bool {
    place(device).is_some()
}

/// Confines a device to what the page tables at `root` map.
pub fn attach(device: Bdf, domain: u16, root: u64, format: PageFormat) -> Result<(), String> {
    let to = Domain { id: DomainId(domain), root, levels: format.levels() as u8 };
    with(device, |u, device| u.attach(device, to))
        .map_or_else(|| Err(NOT_SERVED.into()), |done| done.map_err(|e| e.to_string()))
}

/// Takes a device's memory away from it.
pub fn detach(device: Bdf) -> Result<(), Error> {
    with(device, |u, device| u.detach(device)).unwrap_or(Ok(()))
}

/// Has a device's unit forget what it may have cached of a range of a domain's addresses, and waits
/// until it has.
fn flush(device: Bdf, domain: u16, address: u64, bytes: u64) -> Result<(), Error> {
    let range = ::iommu::Range::Bytes { address, bytes };
    with(device, |u, _| u.flush(DomainId(domain), range)).unwrap_or(Ok(()))
}

/// Whether the unit of this device may have cached that something isn't mapped.
fn caches_absence(device: Bdf) -> bool {
    with(device, |u, _| u.caches_absence()).unwrap_or(false)
}

/// Whether any was switched on. If not, nobody has a device, and all are silent.
pub fn is_on() -> bool {
    !units().is_empty()
}

/// Whether interrupts of devices go by their entries. If not, by what the devices send.
pub fn remaps() -> bool {
    every(|unit| unit.remapping() == Remapping::On)
}

/// What a device must send for an interrupt entry; none if that isn't routed, or can't be sent.
pub fn message(device: Bdf, entry: u16) -> Option<Message> {
    with(device, |u, device| u.message(device, entry).ok().flatten()).flatten()
}

/// An interrupt entry for a device, not yet routed. Boot only.
pub fn allocate_irte(device: Bdf) -> Result<u16, String> {
    with(device, |u, device| u.allocate_irtes(device, 1))
        .map_or_else(|| Err(NOT_SERVED.into()), |done| done.map_err(|e| e.to_string()))
}

/// Routes an interrupt entry.
pub fn set_irte(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u, source| u.set_irte(entry, InterruptRoute { source, ..route }))
        .unwrap_or(Ok(()))
}

/// Routes an interrupt entry, by which its unit goes at the latest when [`drain`] returns.
pub fn update_irte(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u, source| u.update_irte(entry, InterruptRoute { source, ..route }))
        .unwrap_or(Ok(()))
}

/// Returns when the device's unit goes by every route as it is now, and what it sent by older ones
/// has left it. Fails only if the unit doesn't answer or doesn't know its own requests; no device
/// can cause that.
pub fn drain(device: Bdf) -> Result<(), Error> {
    with(device, |u, _| u.drain()).unwrap_or(Ok(()))
}

/// The same for every unit.
pub fn drain_all() -> Result<(), Error> {
    units().iter().try_for_each(|served| served.unit.lock().drain())
}

/// Blocks an interrupt entry.
pub fn clear_irte(device: Bdf, entry: u16) -> Result<(), Error> {
    with(device, |u, device| u.clear_irte(device, entry)).unwrap_or(Ok(()))
}

/// Has every unit send an interrupt when it blocks something. One that can't is looked at all the
/// same, once a second.
pub fn send_faults(destination: u32, delivery: Delivery) {
    for Served { found, unit } in units() {
        let base = found.base;
        match (unit.lock().send_faults(destination, delivery), found.function) {
            (Ok(None), _) => {}
            (Ok(Some(message)), Some((pci, bdf))) => msi::program_own(&pci, bdf, message),
            (Ok(Some(_)), None) => {
                log::warn!("the IOMMU at {base:#x} can't tell of faults: it is no PCI function");
            }
            (Err(why), _) => log::warn!("the IOMMU at {base:#x} can't tell of faults: {why}"),
        }
    }
}

/// Holds that interrupt back, or not.
pub fn mask_faults(masked: bool) {
    units().iter().for_each(|served| served.unit.lock().mask_faults(masked));
}

/// Where the tables of a unit are, for whoever looks at them without the lock.
pub struct Outline {
    base: u64,
    segment: u16,
    tables: audit::Outline,
}

/// Those of every unit, by place. Boot only, when all devices are attached.
pub fn outlines() -> Vec<Outline> {
    let of = |s: &Served| Outline {
        base: s.found.base,
        segment: s.found.segment,
        tables: s.unit.lock().outline(),
    };
    units().iter().map(of).collect()
}

impl Outline {
    /// Does it remap, by these tables?
    pub fn audit_unit(&self) -> Result<(), Finding> {
        self.tables.audit_unit(&mut Mmio(self.base))
    }

    /// The device that a finding is about.
    pub fn device(&self, finding: &Finding) -> Option<Bdf> {
        finding.device().map(|device| device.in_segment(self.segment))
    }

    /// As [`audit::Outline::audit_interrupts`].
    pub fn audit_interrupts<J: FnOnce(InterruptRoute) -> bool>(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        mut judge: impl FnMut(Entry) -> Option<J>,
    ) -> Result<bool, Finding> {
        let here = |device: Bdf| device.in_segment(self.segment);
        self.tables.audit_interrupts(&mut Frames, cursor, entries, |entry| {
            let judge = judge(Entry { table: entry.table.map(here), ..entry })?;
            Some(move |route: InterruptRoute| {
                judge(InterruptRoute { source: here(route.source), ..route })
            })
        })
    }

    /// As [`audit::Outline::audit_devices`].
    pub fn audit_devices(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<bool, Finding> {
        let here = |device: Bdf| device.in_segment(self.segment);
        let allowed = |device, domain| allowed(here(device), domain);
        self.tables.audit_devices(&mut Frames, cursor, entries, allowed)
    }
}

/// Has some unit something to report? Asked without the lock, which others may hold: reading the
/// register changes nothing.
pub fn fault_pending() -> bool {
    units()
        .iter()
        .any(|served| iommu::fault_pending(served.found.vendor, &mut Mmio(served.found.base)))
}

/// What devices did since the last call that was blocked or dropped, as far as the units' records
/// go. Collected under the lock, told after it; `note` has all of them, so that no guest's devices
/// hide another's.
pub fn faults(note: impl Fn(&Fault)) -> ArrayVec<Fault, 8> {
    let mut found = ArrayVec::new();
    for served in units() {
        served.unit.lock().faults(|fault| {
            let source = fault.source.in_segment(served.found.segment);
            let fault = Fault { source, ..fault };
            note(&fault);
            let _ = found.try_push(fault);
        });
    }
    found
}
