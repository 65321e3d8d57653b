//! The machine's IOMMUs as firmware's tables tell of them: the DMAR for Intel's, and where there is
//! none the IVRS for AMD's; and what keeps a device from being a guest's by what they say.
//!
//! Guarantees: what is found is of one vendor; each unit's registers are mapped. Of what firmware
//! wants for itself nothing is granted: it is told in the log, as far as it goes beyond interrupts
//! by message. Devices are assigned from segment 0 alone: a unit of another serves none of them.

use super::access::Mmio;
use crate::memory;
use crate::pci::Pci;
use acpi::{Covered, Dmar, HardwareDefinition, Ivrs, Machine, Scope};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
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
    /// Serves each device that no other unit is named for.
    pub all: bool,
    pub named: Covered,
    pub firmware: Firmware,
    /// The PCI function that it is, too, where that can be reached.
    pub function: Option<(Pci, Bdf)>,
}

/// Devices that can't be a guest's.
pub struct Reserved {
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

/// Finds them. The error is a sentence.
pub fn find(machine: &Machine, without: WithoutRemapping) -> Result<Found, String> {
    let pci = machine.ecam.map(Pci::new);
    match (&machine.dmar, &machine.ivrs) {
        (Some(dmar), _) => of_dmar(dmar, pci, without),
        (None, Some(ivrs)) => of_ivrs(ivrs, pci, without),
        (None, None) => Err("the machine has no usable IOMMU (firmware names none, by a DMAR or an IVRS): a VT-d or AMD-Vi unit with interrupt remapping is needed to keep devices and guests apart; on QEMU add -device intel-iommu,intremap=on,eim=on, on a board switch it on in the firmware's setup".into()),
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
fn used_by_firmware(devices: Covered, what: &str, access: &str, range: (u64, u64)) -> Reserved {
    let (first, last) = range;
    log::warn!(
        "firmware reserves {first:#x} to {last:#x} for DMA of {devices}, which is blocked from now on"
    );
    let why = format!(
        "firmware uses it behind the system's back ({what}: it must {access} memory {first:#x} to {last:#x})"
    );
    Reserved { devices, why }
}

fn of_dmar(dmar: &Dmar, pci: Option<Pci>, without: WithoutRemapping) -> Result<Found, String> {
    dmar.check_x2apic().map_err(|e| e.to_string())?;
    let remapping = match dmar.interrupt_remapping {
        true => Remapping::On,
        false => unremapped(
            without,
            "DMAR flag INTR_REMAP is clear; on QEMU use intel-iommu with intremap=on",
        )?,
    };
    let covered = |scopes: &[Scope]| {
        Covered::of(scopes, |bridge| {
            Some(pci.as_ref()?.buses_behind(Bdf::from_requester_id(bridge)))
        })
    };
    let units = dmar.units.iter().map(|unit| {
        memory::map_mmio(unit.base, VTD_REGISTERS);
        let here = unit.segment == 0;
        FoundUnit {
            vendor: Vendor::Intel,
            base: unit.base,
            all: here && unit.include_all,
            named: if here { covered(&unit.scopes) } else { Covered::default() },
            firmware: Firmware::default(),
            function: None,
        }
    });
    let units = units.collect();
    let reserved =
        dmar.reserved.iter().filter(|r| r.segment == 0).map(|r| {
            used_by_firmware(covered(&r.scopes), "DMAR, RMRR", "reach", (r.base, r.limit))
        });
    Ok(Found { units, reserved: reserved.collect(), remapping })
}

fn of_ivrs(ivrs: &Ivrs, pci: Option<Pci>, without: WithoutRemapping) -> Result<Found, String> {
    let mut remapping = Remapping::On;
    let mut reserved = Vec::new();
    let mut units = Vec::new();
    let functions = pci.as_ref().map(Pci::scan).unwrap_or_default();
    for unit in &ivrs.hardware {
        let base = unit.base;
        memory::map_mmio(base, AMD_REGISTERS);
        if remapping == Remapping::On
            && let Err(lack) = amdvi::probe(&mut Mmio(base), Remapping::On)
        {
            remapping = unremapped(without, &format!("unit at {base:#x}: {lack}"))?;
        }
        let here = unit.segment == 0;
        let named = if here { Covered::of_hardware(unit) } else { Covered::default() };
        let alias = |device: Bdf| {
            let requester = Bdf::from_requester_id(named.requester(device.requester_id()));
            (requester != device).then_some(Alias { device, requester })
        };
        let aliases = functions.iter().filter_map(|f| alias(f.bdf)).collect();
        if here {
            reserved.extend(own_ids(unit));
            tell_passing(unit);
        }
        let function = Bdf::from_requester_id(unit.function);
        units.push(FoundUnit {
            vendor: Vendor::Amd,
            base,
            all: here && unit.include_all(),
            named,
            firmware: firmware(unit, aliases),
            function: pci.filter(|_| here).map(|pci| (pci, function)),
        });
    }
    let memory = ivrs.memory.iter().filter(|m| m.segment == 0).map(|m| {
        let access = m.access.to_string();
        used_by_firmware(Covered::of_memory(m), "IVRS, IVMD", &access, (m.base, m.limit))
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
    let special = unit.special.iter().map(|device| Reserved {
        devices: Covered::of_function(device.id),
        why: format!("its requester id is that of {} (IVRS)", device.kind),
    });
    let own = Reserved {
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
            Bdf::from_requester_id(*ids.start()),
            Bdf::from_requester_id(*ids.end())
        );
    }
}
