//! The machine's IOMMUs, found by ACPI and switched on before any guest runs.
//!
//! A unit is shared by the VMs whose devices it serves, so it stands behind a lock. It is
//! taken when a guest changes an interrupt's route or its memory map changes, never for
//! an interrupt; the work under it is one or two queue entries and a bounded wait.

pub mod fault_interrupt;

use crate::memory;
use crate::pci::Pci;
use crate::pci::sriov;
use acpi::{Covered, Machine, Scope};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::arch::x86_64::cmpxchg16b;
use core::sync::atomic::Ordering;
use iommu::audit::{self, Cursor, Entry, Finding};
use iommu::{
    Bdf, Delivery, Domain, DomainId, Error, Fault, Firmware, InterruptRoute, Message, Registers,
    Remapping, Vendor,
};
use paging::{Format, PageSize, VtdSecondLevel};
use plan::WithoutRemapping;
use spin::Once;
use spin::mutex::TicketMutex as Mutex;

/// Entries of each interrupt-remapping table.
const INTERRUPT_ENTRIES: u32 = 4096;
/// Bytes of a unit's registers: the fault records and the IOTLB registers lie within.
const REGISTER_BYTES: u64 = 32 << 10;
/// The end of a sentence about a device.
const NOT_SERVED: &str = "no IOMMU serves it";

type Unit = iommu::Unit<Mmio, Frames>;

/// The format of the page tables for DMA that the units at hand walk.
pub type PageFormat = VtdSecondLevel;

struct Served {
    vendor: Vendor,
    /// Address of its registers.
    base: u64,
    unit: Mutex<Unit>,
    /// Serves each device that no other unit is named for.
    all: bool,
    named: Covered,
}

/// Memory that firmware has a device use behind the system's back.
struct Reserved {
    first: u64,
    last: u64,
    devices: Covered,
}

static UNITS: Once<Vec<Served>> = Once::new();
static RESERVED: Once<Vec<Reserved>> = Once::new();

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

    fn write128(&mut self, pa: u64, low: u64, high: u64) {
        let (at, new) = (pa as *mut u128, u128::from(high) << 64 | u128::from(low));
        let mut old = 0;
        loop {
            // SAFETY: as in `read64`, aligned to 16 as the driver promises; every CPU with SVM has
            // CMPXCHG16B.
            let found = unsafe { cmpxchg16b(at, old, new, Ordering::SeqCst, Ordering::SeqCst) };
            if found == old {
                return;
            }
            old = found;
        }
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
        let found = if machine.ivrs.is_some() {
            "an AMD-Vi unit, which isn't supported yet"
        } else {
            "none"
        };
        return Err(format!(
            "the machine has no usable IOMMU (found {found}): a VT-d unit with interrupt remapping is needed to keep devices and guests apart; on QEMU add -device intel-iommu,intremap=on,eim=on"
        ));
    };
    dmar.check_x2apic().map_err(|e| e.to_string())?;
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
    let covered = |scopes: &[Scope]| {
        Covered::of(scopes, |bridge| {
            Some(pci.as_ref()?.buses_behind(Bdf::from_requester_id(bridge)))
        })
    };
    let mut units = Vec::new();
    for unit in &dmar.units {
        let (vendor, base) = (Vendor::Intel, unit.base);
        memory::map_mmio(base, REGISTER_BYTES);
        let firmware = Firmware::default();
        let on = Unit::enable(vendor, Mmio(base), Frames, INTERRUPT_ENTRIES, remapping, &firmware)
            .map_err(|e| format!("the IOMMU at {base:#x} can't be used: {e}"))?;
        // Devices are assigned from segment 0 only; a unit of another serves none of them.
        let here = unit.segment == 0;
        let named = if here { covered(&unit.scopes) } else { Covered::default() };
        let all = here && unit.include_all;
        units.push(Served { vendor, base, unit: Mutex::new(on), all, named });
    }
    UNITS.call_once(|| units);
    let reserved = dmar.reserved.iter().filter(|r| r.segment == 0).map(|r| Reserved {
        first: r.base,
        last: r.limit,
        devices: covered(&r.scopes),
    });
    RESERVED.call_once(|| reserved.collect());
    for Reserved { first, last, devices } in RESERVED.get().into_iter().flatten() {
        log::warn!(
            "firmware reserves {first:#x} to {last:#x} for DMA of {devices}, which is blocked from now on"
        );
    }
    Ok(())
}

/// Why firmware's use of a device keeps it from being a guest's; a part of a sentence.
pub fn reserved(device: Bdf) -> Option<String> {
    let of = |r: &&Reserved| r.devices.contains(device.requester_id());
    RESERVED.get()?.iter().find(of).map(|r| {
        format!(
            "firmware uses it behind the system's back (DMAR, RMRR: it must reach memory {:#x} to {:#x})",
            r.first, r.last
        )
    })
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

fn units() -> &'static [Served] {
    UNITS.get().map(Vec::as_slice).unwrap_or_default()
}

fn every(what: impl Fn(&Unit) -> bool) -> bool {
    units().iter().all(|served| what(&served.unit.lock()))
}

/// Whether every unit snoops the CPU's caches when it walks page tables.
pub fn coherent() -> bool {
    every(Unit::coherent)
}

/// The page tables that DMA goes by on this machine: what every unit can.
pub fn page_format() -> PageFormat {
    let levels = PageFormat::FourLevels.levels() as u8;
    match every(|unit| unit.supports_levels(levels)) {
        true => PageFormat::FourLevels,
        false => PageFormat::ThreeLevels,
    }
}

/// The largest pages that every unit takes in them.
pub fn largest_page() -> PageSize {
    match (every(|unit| unit.page_sizes().pages_2m), every(|unit| unit.page_sizes().pages_1g)) {
        (true, true) => PageSize::Size1G,
        (true, false) => PageSize::Size2M,
        (false, _) => PageSize::Size4K,
    }
}

/// The place of the unit that serves this device.
pub fn place(device: Bdf) -> Option<usize> {
    // A virtual function is its physical function's unit's, named or not (VT-d 8.3).
    let device = sriov::physical(device).unwrap_or(device).requester_id();
    let named = units().iter().position(|served| served.named.contains(device));
    named.or_else(|| units().iter().position(|served| served.all))
}

fn with<R>(device: Bdf, f: impl FnOnce(&mut Unit) -> R) -> Option<R> {
    let served = UNITS.get()?.get(place(device)?)?;
    Some(f(&mut served.unit.lock()))
}

/// Where the registers of the unit are that serves this device.
#[cfg(feature = "plant")]
pub fn registers(device: Bdf) -> Option<u64> {
    Some(UNITS.get()?.get(place(device)?)?.base)
}

/// Whether some unit serves this device.
pub fn serves(device: Bdf) -> bool {
    place(device).is_some()
}

/// Confines a device to what the page tables at `root` map.
pub fn attach(device: Bdf, domain: u16, root: u64, format: PageFormat) -> Result<(), String> {
    let to = Domain { id: DomainId(domain), root, levels: format.levels() as u8 };
    with(device, |u| u.attach(device, to))
        .map_or_else(|| Err(NOT_SERVED.into()), |done| done.map_err(|e| e.to_string()))
}

/// Takes a device's memory away from it.
pub fn detach(device: Bdf) -> Result<(), Error> {
    with(device, |u| u.detach(device)).unwrap_or(Ok(()))
}

/// Whether interrupts of devices go by their entries. If not, by what the devices send.
pub fn remaps() -> bool {
    every(|unit| unit.remapping() == Remapping::On)
}

/// What a device must send for an interrupt entry; none if that isn't routed, or can't be sent.
pub fn message(device: Bdf, entry: u16) -> Option<Message> {
    with(device, |u| u.message(device, entry).ok().flatten()).flatten()
}

/// An interrupt entry for a device, not yet routed. Boot only.
pub fn allocate_irte(device: Bdf) -> Result<u16, String> {
    with(device, |u| u.allocate_irtes(device, 1))
        .map_or_else(|| Err(NOT_SERVED.into()), |done| done.map_err(|e| e.to_string()))
}

/// Routes an interrupt entry.
pub fn set_irte(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u| u.set_irte(entry, route)).unwrap_or(Ok(()))
}

/// Routes an interrupt entry, by which its unit goes at the latest when [`drain`] returns.
pub fn update_irte(entry: u16, route: InterruptRoute) -> Result<(), Error> {
    with(route.source, |u| u.update_irte(entry, route)).unwrap_or(Ok(()))
}

/// Returns when the device's unit goes by every route as it is now, and what it sent by older ones
/// has left it. Fails only if the unit doesn't answer or doesn't know its own requests; no device
/// can cause that.
pub fn drain(device: Bdf) -> Result<(), Error> {
    with(device, Unit::drain).unwrap_or(Ok(()))
}

/// The same for every unit.
pub fn drain_all() -> Result<(), Error> {
    units().iter().try_for_each(|served| served.unit.lock().drain())
}

/// Blocks an interrupt entry.
pub fn clear_irte(device: Bdf, entry: u16) -> Result<(), Error> {
    with(device, |u| u.clear_irte(device, entry)).unwrap_or(Ok(()))
}

/// Has every unit send an interrupt when it blocks something.
pub fn send_faults(destination: u32, delivery: Delivery) {
    for served in units() {
        let base = served.base;
        match served.unit.lock().send_faults(destination, delivery) {
            Ok(None) => {}
            Ok(Some(_)) => log::warn!("the IOMMU at {base:#x} tells of faults by its own MSI only"),
            Err(why) => log::warn!("the IOMMU at {base:#x} doesn't tell of faults: {why}"),
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
    tables: audit::Outline,
}

/// Those of every unit, by place. Boot only, when all devices are attached.
pub fn outlines() -> Vec<Outline> {
    let of = |s: &Served| Outline { base: s.base, tables: s.unit.lock().outline() };
    units().iter().map(of).collect()
}

impl Outline {
    /// Does it remap, by these tables?
    pub fn audit_unit(&self) -> Result<(), Finding> {
        self.tables.audit_unit(&mut Mmio(self.base))
    }

    /// As [`audit::Outline::audit_interrupts`].
    pub fn audit_interrupts<J: FnOnce(InterruptRoute) -> bool>(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        judge: impl FnMut(Entry) -> Option<J>,
    ) -> Result<bool, Finding> {
        self.tables.audit_interrupts(&mut Frames, cursor, entries, judge)
    }

    /// As [`audit::Outline::audit_devices`].
    pub fn audit_devices(
        &self,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<bool, Finding> {
        self.tables.audit_devices(&mut Frames, cursor, entries, allowed)
    }
}

/// Has some unit something to report? Asked without the lock, which others may hold: reading the
/// register changes nothing.
pub fn fault_pending() -> bool {
    units().iter().any(|served| iommu::fault_pending(served.vendor, &mut Mmio(served.base)))
}

/// What devices did since the last call that was blocked or dropped, as far as the units' records
/// go. Collected under the lock, told after it.
pub fn faults() -> ArrayVec<Fault, 8> {
    let mut found = ArrayVec::new();
    for served in units() {
        served.unit.lock().faults(|fault| {
            let _ = found.try_push(fault);
        });
    }
    found
}
