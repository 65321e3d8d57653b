//! The machine's IOMMUs as firmware's tables tell of them: the DMAR for Intel's, and where there is
//! none the IVRS for AMD's; and what keeps a device from being a guest's by what they say.
//!
//! Guarantees: what is found is of one vendor; each unit's registers are mapped. Of what firmware
//! wants for itself nothing is granted: it is told in the log, as far as it goes beyond interrupts
//! by message. A unit serves functions of its own segment alone, whatever their requester ids.

use super::access::Mmio;
use crate::memory;
use crate::pci::Pci;
use acpi::{Covered, Dmar, HardwareDefinition, Ivrs, Machine, Scope};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use iommu::{Alias, Bdf, Firmware, Remapping, Vendor, amdvi};
use plan::WithoutRemapping;

/// Bytes of a VT-d unit's registers: the fault records and the IOTLB registers lie within.
const VTD_REGISTERS: u64 = 32 << 10;
/// Bytes of an AMD-Vi unit's registers, its performance counters apart.
const AMD_REGISTERS: u64 = 16 << 10;

/// A unit that isn't switched on yet.
pub struct FoundUnit {
    pub vendor: Vendor,
    /// Address of its registers.
    pub base: u64,
    /// The PCI segment whose devices it serves.
    pub segment: u16,
    /// Serves each device of it that no other unit is named for.
    pub all: bool,
    pub named: Covered,
    pub firmware: Firmware,
    /// The PCI function that it is, too, if it is one.
    pub function: Option<(Pci, Bdf)>,
}

impl FoundUnit {
    /// Where its registers are.
    pub fn registers(&self) -> Range<u64> {
        let bytes = match self.vendor {
            Vendor::Intel => VTD_REGISTERS,
            Vendor::Amd => AMD_REGISTERS,
        };
        self.base..self.base.saturating_add(bytes)
    }
}

/// Devices that can't be a guest's.
pub struct Reserved {
    pub segment: u16,
    pub devices: Covered,
    /// The end of a sentence.
    pub why: String,
}

/// All of them, and whether they are to remap interrupts.
pub struct Found {
    pub units: Vec<FoundUnit>,
    pub reserved: Vec<Reserved>,
    pub remapping: Remapping,
}

/// Finds them, and changes nothing. The error is a part of a sentence.
pub fn find(machine: &Machine, without: WithoutRemapping) -> Result<Found, String> {
    let pci = Pci::new(machine);
    match (&machine.dmar, &machine.ivrs) {
        (Some(dmar), _) => of_dmar(dmar, pci, without),
        (None, Some(ivrs)) => of_ivrs(ivrs, pci, without),
        (None, None) => Err("the machine has no usable IOMMU (firmware names none, by a DMAR or an IVRS): a VT-d or AMD-Vi unit with interrupt remapping is needed to keep devices and guests apart; on QEMU add -device amd-iommu,intremap=on,xtsup=on,dma-remap=on (10.2 or newer) or -device intel-iommu,intremap=on,eim=on, on a board switch it on in the firmware's setup".into()),
    }
}

/// What is done where interrupts can't be remapped, `why` being a part of a sentence.
fn unremapped(without: WithoutRemapping, why: &str) -> Result<Remapping, String> {
    match without {
        WithoutRemapping::TrustEveryGuest => {
            log::warn!(
                "the IOMMU has no interrupt remapping, and the plan trusts every guest: a guest with a device can raise any interrupt on any core"
            );
            Ok(Remapping::Off)
        }
        WithoutRemapping::Refuse => Err(format!(
            "the IOMMU has no interrupt remapping ({why}): without it a guest's device could raise any interrupt anywhere; if every guest may have that, write without_interrupt_remapping = \"trust-every-guest\" in [host]"
        )),
    }
}

/// Memory that devices use behind the system's back, for the log and as why they aren't a guest's.
fn used_by_firmware(
    (segment, devices): (u16, Covered),
    what: &str,
    access: &str,
    (first, last): (u64, u64),
) -> Reserved {
    let of = if segment == 0 { String::new() } else { format!(" of segment {segment:#x}") };
    log::warn!(
        "firmware reserves {first:#x} to {last:#x} for DMA of {devices}{of}, which is blocked from now on"
    );
    let why = format!(
        "firmware uses it behind the system's back ({what}: it must {access} memory {first:#x} to {last:#x})"
    );
    Reserved { segment, devices, why }
}

fn of_dmar(dmar: &Dmar, pci: Pci, without: WithoutRemapping) -> Result<Found, String> {
    dmar.check_x2apic().map_err(|e| e.to_string())?;
    let remapping = match dmar.interrupt_remapping {
        true => Remapping::On,
        false => unremapped(
            without,
            "DMAR flag INTR_REMAP is clear; on QEMU use intel-iommu with intremap=on",
        )?,
    };
    let covered = |segment, scopes: &[Scope]| {
        Covered::of(scopes, |bridge| {
            let bridge = Bdf::from_requester_id(bridge).in_segment(segment);
            Some(pci.buses_behind(bridge))
        })
    };
    let units = dmar.units.iter().map(|unit| {
        memory::map_mmio(unit.base, VTD_REGISTERS);
        FoundUnit {
            vendor: Vendor::Intel,
            base: unit.base,
            segment: unit.segment,
            all: unit.include_all,
            named: covered(unit.segment, &unit.scopes),
            firmware: Firmware::default(),
            function: None,
        }
    });
    let units = units.collect();
    let reserved = dmar.reserved.iter().map(|r| {
        let devices = (r.segment, covered(r.segment, &r.scopes));
        used_by_firmware(devices, "DMAR, RMRR", "reach", (r.base, r.limit))
    });
    Ok(Found { units, reserved: reserved.collect(), remapping })
}

fn of_ivrs(ivrs: &Ivrs, pci: Pci, without: WithoutRemapping) -> Result<Found, String> {
    ivrs.check_translation().map_err(|e| e.to_string())?;
    let mut remapping = Remapping::On;
    let mut reserved = Vec::new();
    let mut units = Vec::new();
    let functions = pci.scan();
    for unit in &ivrs.hardware {
        let base = unit.base;
        memory::map_mmio(base, AMD_REGISTERS);
        if remapping == Remapping::On
            && let Err(lack) = amdvi::probe(&mut Mmio(base), Remapping::On)
        {
            remapping = unremapped(without, &format!("unit at {base:#x}: {lack}"))?;
        }
        let segment = unit.segment;
        let named = Covered::of_hardware(unit);
        let alias = |device: Bdf| {
            let requester = Bdf::from_requester_id(named.requester(device.requester_id()));
            (requester != device).then_some(Alias { device, requester })
        };
        // A unit is told of devices by their requester ids.
        let served = functions.iter().filter(|f| f.bdf.segment() == segment);
        let aliases = served.filter_map(|f| alias(f.bdf.in_segment(0))).collect();
        reserved.extend(own_ids(unit));
        tell_passing(unit);
        let function = Bdf::from_requester_id(unit.function).in_segment(segment);
        units.push(FoundUnit {
            vendor: Vendor::Amd,
            base,
            segment,
            all: unit.include_all(),
            named,
            firmware: firmware(unit, aliases),
            function: Some((pci, function)),
        });
    }
    let memory = ivrs.memory.iter().map(|m| {
        let (devices, access) = ((m.segment, Covered::of_memory(m)), m.access.to_string());
        used_by_firmware(devices, "IVRS, IVMD", &access, (m.base, m.limit))
    });
    reserved.extend(memory);
    Ok(Found { units, reserved, remapping })
}

fn firmware(unit: &HardwareDefinition, aliases: Vec<Alias>) -> Firmware {
    let settings = unit.settings;
    Firmware {
        aliases,
        ht_tunnel: settings.ht_tunnel,
        pass_posted_writes: settings.pass_posted_writes,
        responses_pass_posted_writes: settings.responses_pass_posted_writes,
        isochronous: settings.isochronous,
    }
}

/// The ids under which the unit itself, I/O APICs and HPETs send: who has one of them has their
/// interrupts, or the unit.
fn own_ids(unit: &HardwareDefinition) -> impl Iterator<Item = Reserved> {
    let segment = unit.segment;
    let special = unit.special.iter().map(move |device| Reserved {
        segment,
        devices: Covered::of_function(device.id),
        why: format!("its requester id is that of {} (IVRS)", device.kind),
    });
    let own = Reserved {
        segment,
        devices: Covered::of_function(unit.function),
        why: "it is an IOMMU of the machine (IVRS)".into(),
    };
    special.chain([own])
}

/// Tells what firmware wants to pass, and doesn't from now on.
fn tell_passing(unit: &HardwareDefinition) {
    for (ids, passing) in unit.passing() {
        log::info!(
            "firmware wants {passing} of devices {} to {} to pass the IOMMU, which are blocked from now on",
            Bdf::from_requester_id(*ids.start()).in_segment(unit.segment),
            Bdf::from_requester_id(*ids.end()).in_segment(unit.segment)
        );
    }
}
