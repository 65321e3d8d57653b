//! The machine's IOMMUs, found by ACPI and switched on before any guest runs.
//!
//! A unit is shared by the VMs whose devices it serves, so it stands behind a lock. It is
//! taken when a guest changes an interrupt's route or its memory map changes, never for
//! an interrupt; the work under it is one or two queue entries and a bounded wait.

pub mod fault_interrupt;

use crate::memory;
use crate::pci::Pci;
use crate::pci::sriov;
use acpi::{Machine, RemappingUnit, Scope, ScopeKind};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::RangeInclusive;
use iommu::vtd::audit::{Cursor, Finding};
use iommu::vtd::{self, Remapping};
use iommu::{Bdf, Delivery, DomainId, Error, Fault, InterruptRoute, Message, Registers};
use paging::{PageSize, VtdSecondLevel};
use plan::WithoutRemapping;
use spin::Once;
use spin::mutex::TicketMutex as Mutex;

/// Entries of each interrupt-remapping table.
const INTERRUPT_ENTRIES: u32 = 4096;
/// Bytes of a unit's registers: the fault records and the IOTLB registers lie within.
const REGISTER_BYTES: u64 = 32 << 10;

/// A unit of either vendor; AMD-Vi joins here.
enum Unit {
    Vtd(vtd::Unit<Mmio, Frames>),
}

struct Served {
    /// Address of its registers.
    base: u64,
    unit: Mutex<Unit>,
    all: bool,
    named: Vec<Bdf>,
    /// Buses behind the bridges that are named.
    buses: Vec<RangeInclusive<u8>>,
}

static UNITS: Once<Vec<Served>> = Once::new();

/// Registers in memory.
struct Mmio(u64);

impl Registers for Mmio {
    fn read32(&mut self, offset: u32) -> u32 {
        // SAFETY: the driver stays within the register window mapped in `enable`, aligned.
        unsafe { core::ptr::read_volatile((self.0 + offset as u64) as *const u32) }
    }

    fn read64(&mut self, offset: u32) -> u64 {
        // SAFETY: as in `read32`.
        unsafe { core::ptr::read_volatile((self.0 + offset as u64) as *const u64) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `read32`; what the write makes the unit do is the driver's to get right.
        unsafe { core::ptr::write_volatile((self.0 + offset as u64) as *mut u32, value) }
    }

    fn write64(&mut self, offset: u32, value: u64) {
        // SAFETY: as in `write32`.
        unsafe { core::ptr::write_volatile((self.0 + offset as u64) as *mut u64, value) }
    }
}

/// Memory for the unit's tables: identity-mapped, never given back.
struct Frames;

impl iommu::Memory for Frames {
    fn read64(&mut self, pa: u64) -> u64 {
        // SAFETY: the driver and its audit pass addresses inside frames from `allocate` only.
        unsafe { core::ptr::read_volatile(pa as *const u64) }
    }

    fn write64(&mut self, pa: u64, value: u64) {
        // SAFETY: as in `read64`.
        unsafe { core::ptr::write_volatile(pa as *mut u64, value) }
    }

    fn write_back(&mut self, pa: u64, bytes: u64) {
        write_back(pa, bytes);
    }

    fn allocate(&mut self, frames: u64) -> Option<u64> {
        memory::allocate(frames * 4096, 4096)
    }
}

/// Switches on every unit of the machine; from then on devices reach nothing that a VM hasn't been
/// given, and raise nothing, unless the machine can't remap interrupts and the plan makes do
/// `without`. The error is a sentence.
pub fn enable(machine: &Machine, without: WithoutRemapping) -> Result<(), String> {
    let Some(dmar) = &machine.dmar else {
        let found =
            if machine.ivrs_present { "an AMD-Vi unit, which isn't supported yet" } else { "none" };
        return Err(alloc::format!(
            "the machine has no usable IOMMU (found {found}): a VT-d unit with interrupt remapping is needed to keep devices and guests apart; on QEMU add -device intel-iommu,intremap=on,eim=on"
        ));
    };
    let remapping = match (dmar.interrupt_remapping, without) {
        (true, _) => Remapping::On,
        (false, WithoutRemapping::TrustEveryGuest) => {
            log::warn!(
                "the IOMMU has no interrupt remapping, and the plan trusts every guest: a guest with a device can raise any interrupt on any core"
            );
            Remapping::Off
        }
        (false, WithoutRemapping::Refuse) => {
            return Err("the IOMMU has no interrupt remapping (DMAR flag INTR_REMAP is clear): without it a guest's device could raise any interrupt anywhere; on QEMU use intel-iommu with intremap=on, and if every guest may have that, write without_interrupt_remapping = \"trust-every-guest\" in [host]".into());
        }
    };
    let pci = machine.ecam.map(Pci::new);
    let mut units = Vec::new();
    for unit in &dmar.units {
        units.push(enable_unit(unit, pci.as_ref(), remapping)?);
    }
    UNITS.call_once(|| units);
    Ok(())
}

fn enable_unit(
    unit: &RemappingUnit,
    pci: Option<&Pci>,
    remapping: Remapping,
) -> Result<Served, String> {
    memory::map_mmio(unit.base, REGISTER_BYTES);
    let at = unit.base;
    let on = vtd::Unit::enable(Mmio(at), Frames, INTERRUPT_ENTRIES, remapping)
        .map_err(|e| alloc::format!("the IOMMU at {at:#x} can't be used: {e}"))?;
    let of = |kind| unit.scopes.iter().filter(move |s| s.kind == kind);
    let named = of(ScopeKind::Endpoint).filter_map(|s| device_at(s, pci)).collect();
    let bridges = of(ScopeKind::Bridge).filter_map(|s| device_at(s, pci));
    let buses = bridges.filter_map(|b| Some(pci?.buses_behind(b))).collect();
    Ok(Served { base: at, unit: Mutex::new(Unit::Vtd(on)), all: unit.include_all, named, buses })
}

/// The device that a scope's path leads to, from bridge to bridge (VT-d 8.3.1).
fn device_at(scope: &Scope, pci: Option<&Pci>) -> Option<Bdf> {
    let (last, way) = scope.path.split_last()?;
    let bus = way.iter().try_fold(scope.bus, |bus, step| {
        Some(*pci?.buses_behind(Bdf::new(bus, step.device, step.function)?).start())
    })?;
    Bdf::new(bus, last.device, last.function)
}

/// Writes memory back from the CPU's caches, for units that don't snoop them.
pub fn write_back(pa: u64, bytes: u64) {
    for line in (pa & !63..pa + bytes).step_by(64) {
        // SAFETY: flushing a cache line of our own memory changes nothing that can be seen.
        unsafe { core::arch::asm!("clflush [{}]", in(reg) line, options(nostack)) };
    }
    // SAFETY: orders the flushes before what follows.
    unsafe { core::arch::asm!("mfence", options(nostack)) };
}

/// Whether every unit snoops the CPU's caches when it walks page tables.
pub fn coherent() -> bool {
    let all = UNITS.get().map(Vec::as_slice).unwrap_or_default();
    all.iter().all(|s| match &*s.unit.lock() {
        Unit::Vtd(u) => u.capabilities().coherent,
    })
}

/// The levels that DMA page tables have on this machine: what every unit can.
pub fn dma_format() -> VtdSecondLevel {
    let all = UNITS.get().map(Vec::as_slice).unwrap_or_default();
    let four = all.iter().all(|s| match &*s.unit.lock() {
        Unit::Vtd(u) => u.capabilities().supports_levels(4),
    });
    if four { VtdSecondLevel::FourLevels } else { VtdSecondLevel::ThreeLevels }
}

/// The largest pages that every unit takes in DMA page tables (CAP.SLLPS).
pub fn dma_page() -> PageSize {
    let all = UNITS.get().map(Vec::as_slice).unwrap_or_default();
    let each = all.iter().map(|s| match &*s.unit.lock() {
        Unit::Vtd(u) if u.capabilities().pages_2m && u.capabilities().pages_1g => PageSize::Size1G,
        Unit::Vtd(u) if u.capabilities().pages_2m => PageSize::Size2M,
        Unit::Vtd(_) => PageSize::Size4K,
    });
    each.min().unwrap_or(PageSize::Size4K)
}

/// How many levels that is.
pub fn levels(format: VtdSecondLevel) -> u8 {
    match format {
        VtdSecondLevel::ThreeLevels => 3,
        VtdSecondLevel::FourLevels => 4,
    }
}

/// The place of the unit that serves this device.
pub fn place(device: Bdf) -> Option<usize> {
    let units = UNITS.get()?;
    // A virtual function is its physical function's unit's, named or not (VT-d 8.3).
    let device = sriov::physical(device).unwrap_or(device);
    units
        .iter()
        .position(|s| {
            s.named.contains(&device) || s.buses.iter().any(|b| b.contains(&device.bus()))
        })
        .or_else(|| units.iter().position(|s| s.all))
}

fn with<R>(device: Bdf, f: impl FnOnce(&mut Unit) -> R) -> Option<R> {
    let served = UNITS.get()?.get(place(device)?)?;
    Some(f(&mut served.unit.lock()))
}

/// Whether some unit serves this device.
pub fn serves(device: Bdf) -> bool {
    place(device).is_some()
}

/// Confines a device to what the page tables at `root` map.
pub fn attach(device: Bdf, domain: u16, root: u64, format: VtdSecondLevel) -> Result<(), String> {
    with(device, |u| match u {
        Unit::Vtd(u) => {
            u.attach(device, DomainId(domain), root, levels(format)).map_err(|e| e.to_string())
        }
    })
    .unwrap_or_else(|| Err("no IOMMU serves it".into()))
}

/// Takes a device's memory away from it.
pub fn detach(device: Bdf) -> Result<(), Error> {
    with(device, |u| match u {
        Unit::Vtd(u) => u.detach(device),
    })
    .unwrap_or(Ok(()))
}

/// Whether interrupts of devices go by their entries. If not, by what the devices send.
pub fn remaps() -> bool {
    let all = UNITS.get().map(Vec::as_slice).unwrap_or_default();
    all.iter().all(|s| match &*s.unit.lock() {
        Unit::Vtd(u) => u.capabilities().remapping == Remapping::On,
    })
}

/// What a device must send for an interrupt entry; none if that isn't routed, or can't be sent.
pub fn message(device: Bdf, entry: u16) -> Option<Message> {
    with(device, |u| match u {
        Unit::Vtd(u) => u.message(entry).ok().flatten(),
    })
    .flatten()
}

/// An interrupt entry for a device, not yet routed. Boot only.
pub fn allocate_interrupt(device: Bdf) -> Result<u16, String> {
    with(device, |u| match u {
        Unit::Vtd(u) => u.allocate_irtes(1).map_err(|e| e.to_string()),
    })
    .unwrap_or_else(|| Err("no IOMMU serves it".into()))
}

/// Routes an interrupt entry.
pub fn route(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u| match u {
        Unit::Vtd(u) => u.set_irte(entry, route),
    })
    .unwrap_or(Ok(()))
}

/// Routes an interrupt entry, by which its unit goes at the latest when [`settle`] returns.
pub fn aim(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u| match u {
        Unit::Vtd(u) => u.aim_irte(entry, route),
    })
    .unwrap_or(Ok(()))
}

/// Returns when the device's unit goes by every route that was aimed, and what it sent by older
/// ones has arrived.
pub fn settle(device: Bdf) -> Result<(), Error> {
    with(device, |u| match u {
        Unit::Vtd(u) => u.settle(),
    })
    .unwrap_or(Ok(()))
}

/// The same for every unit.
pub fn settle_all() -> Result<(), Error> {
    let mut units = UNITS.get().into_iter().flatten();
    units.try_for_each(|served| match &mut *served.unit.lock() {
        Unit::Vtd(u) => u.settle(),
    })
}

/// Blocks an interrupt entry.
pub fn block(device: Bdf, entry: u16) -> Result<(), Error> {
    with(device, |u| match u {
        Unit::Vtd(u) => u.clear_irte(entry),
    })
    .unwrap_or(Ok(()))
}

/// Has every unit send an interrupt when it blocks something.
pub fn send_faults(destination: u32, delivery: Delivery) {
    for served in UNITS.get().into_iter().flatten() {
        match &mut *served.unit.lock() {
            Unit::Vtd(u) => u.send_faults(destination, delivery),
        }
    }
}

/// Holds that interrupt back, or not.
pub fn mask_faults(masked: bool) {
    for served in UNITS.get().into_iter().flatten() {
        match &mut *served.unit.lock() {
            Unit::Vtd(u) => u.mask_faults(masked),
        }
    }
}

/// Where the tables of a unit are, for who looks at them without the lock.
pub struct Outline {
    base: u64,
    tables: vtd::audit::Outline,
}

/// Those of every unit, by place. Boot only, when all devices are attached.
pub fn outlines() -> Vec<Outline> {
    let units = UNITS.get().into_iter().flatten();
    let of = |served: &Served| match &mut *served.unit.lock() {
        Unit::Vtd(u) => Outline { base: served.base, tables: u.outline() },
    };
    units.map(of).collect()
}

impl Outline {
    /// Does it remap, by these tables?
    pub fn audit_unit(&self) -> Result<(), Finding> {
        self.tables.audit_unit(&mut Mmio(self.base))
    }

    /// As [`vtd::audit::Outline::audit_interrupts`].
    pub fn audit_interrupts<J: FnOnce(InterruptRoute) -> bool>(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        judge: impl FnMut(u16) -> Option<J>,
    ) -> Result<bool, Finding> {
        self.tables.audit_interrupts(&mut Frames, cursor, entries, judge)
    }

    /// As [`vtd::audit::Outline::audit_contexts`].
    pub fn audit_contexts(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, DomainId, u64, u8) -> bool,
    ) -> Result<bool, Finding> {
        self.tables.audit_contexts(&mut Frames, cursor, entries, allowed)
    }
}

/// Has some unit recorded a fault? Asked without the lock, which others may hold: reading the
/// register changes nothing.
pub fn fault_pending() -> bool {
    let mut units = UNITS.get().into_iter().flatten();
    units.any(|served| vtd::fault_pending(&mut Mmio(served.base)))
}

/// What the units blocked since the last call, as far as their records go. Collected under the
/// lock, told after it.
pub fn faults() -> ArrayVec<Fault, 8> {
    let mut found = ArrayVec::new();
    for served in UNITS.get().map(Vec::as_slice).unwrap_or_default() {
        match &mut *served.unit.lock() {
            Unit::Vtd(u) => u.faults(|fault| {
                let _ = found.try_push(fault);
            }),
        };
    }
    found
}
