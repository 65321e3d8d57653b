//! The tables a guest gets: hardware-reduced ACPI, one block at a fixed place.
//!
//! The guest is told of its vCPUs, one I/O APIC, the PM timer, a PCI bus without INTx lines, its
//! configuration space in memory, a serial port, its own IOMMU if it has one, and how to switch off
//! and reset. It isn't told of anything it can't use: no PIC, PIT, HPET, SCI or FACS.

mod dmar;
mod dsdt;
mod ivrs;
mod viot;

#[cfg(test)]
mod tests;

pub use ivrs::AmdVi;

use crate::{Error, PmTimer};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use alloc::{vec, vec::Vec};

/// Guest-physical address of the block, and of the root pointer at its beginning.
pub const BASE: u64 = 0xE_0000;
/// The block ends below 1 MiB.
pub const MAX_BYTES: usize = 0x2_0000;
/// The most vCPUs: local APIC ids 0 to 254.
pub const MAX_VCPUS: u32 = 255;

/// I/O port of the sleep control register: [`SLEEP_ENABLE`] with a type of 5 switches off.
pub const SLEEP_CONTROL_PORT: u16 = 0x600;
/// I/O port of the sleep status register.
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// I/O port of the reset register.
pub const RESET_PORT: u16 = 0x604;
/// What resets, written to the reset register.
pub const RESET_VALUE: u8 = 1;
/// Sleep type of S5, soft off.
pub const SLEEP_TYPE_S5: u8 = 5;
/// SLP_EN in the sleep control register; the type stands in bits 4:2 (ACPI 4.8.3.7).
pub const SLEEP_ENABLE: u8 = 1 << 5;
/// Guest-physical address of the I/O APIC's registers.
pub const IOAPIC_ADDRESS: u32 = 0xFEC0_0000;

const IOAPIC_ID: u8 = 0;
const LOCAL_APIC_ADDRESS: u32 = 0xFEE0_0000;
const OEM_ID: [u8; 6] = *b"EXITLS";
const OEM_TABLE_ID: [u8; 8] = *b"EXITLESS";
const OEM_REVISION: u32 = 1;

/// What differs between guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// vCPUs; their local APIC ids are 0 and up.
    pub vcpus: u32,
    /// The machine's PM timer, if the guest may read it.
    pub pm_timer: Option<PmTimer>,
    /// Guest-physical address of the configuration space of its PCI bus.
    pub configuration_space: u32,
    /// Its own IOMMU, if it has one.
    pub iommu: Option<Iommu>,
}

/// An IOMMU of a guest's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// A virtio-iommu, which is device 1 on its bus, with so many devices behind it, which are the
    /// next.
    Virtio(u8),
    /// A VT-d unit that all of the bus is behind, and the I/O APIC.
    VtD {
        /// Guest-physical address of its registers.
        registers: u64,
        /// Bits of addresses that it translates.
        width: u8,
        /// Requester id of the I/O APIC.
        ioapic: u16,
    },
    /// An AMD-Vi unit that all of the bus is behind, and the I/O APIC.
    AmdVi(AmdVi),
}

/// The tables, to be put at [`BASE`].
pub fn build(config: &GuestConfig) -> Result<Vec<u8>, Error> {
    if !(1..=MAX_VCPUS).contains(&config.vcpus) {
        return Err(Error::Vcpus { found: config.vcpus, most: MAX_VCPUS });
    }
    // The root pointer comes first in memory, and is known last.
    let mut block = vec![0; Rsdp::len()];
    let dsdt = append(&mut block, &dsdt::build(config.configuration_space));
    let fadt = append(&mut block, &fadt(config, dsdt));
    let madt = append(&mut block, &madt(config.vcpus));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    xsdt.add_entry(append(&mut block, &mcfg(config.configuration_space)));
    match config.iommu {
        None => {}
        Some(Iommu::Virtio(devices)) => {
            xsdt.add_entry(append(&mut block, &viot::build(devices)));
        }
        Some(Iommu::VtD { registers, width, ioapic }) => {
            xsdt.add_entry(append(&mut block, &dmar::build(registers, width, ioapic)));
        }
        Some(Iommu::AmdVi(unit)) => xsdt.add_entry(append(&mut block, &ivrs::build(&unit))),
    }
    let xsdt = append(&mut block, &xsdt);
    let mut whole = Vec::with_capacity(block.len());
    Rsdp::new(OEM_ID, xsdt).to_aml_bytes(&mut whole);
    whole.extend(block.into_iter().skip(Rsdp::len()));
    Ok(whole)
}

/// Appends a table on a 16-byte boundary; gives its guest-physical address.
fn append(block: &mut Vec<u8>, table: &dyn Aml) -> u64 {
    block.resize(block.len().next_multiple_of(16), 0);
    let address = BASE + block.len() as u64;
    table.to_aml_bytes(block);
    address
}

/// The MADT (ACPI 5.2.12): processors and the I/O APIC. Ids below 255 have to be given as local
/// APICs, though they are in x2APIC mode.
fn madt(vcpus: u32) -> Sdt {
    let mut body = Vec::new();
    body.dword(LOCAL_APIC_ADDRESS);
    body.dword(0); // no 8259s
    for id in 0..vcpus {
        let id = id as u8;
        ProcessorLocalApic::new(id, id, EnabledStatus::Enabled).to_aml_bytes(&mut body);
    }
    IoApic::new(IOAPIC_ID, IOAPIC_ADDRESS, 0).to_aml_bytes(&mut body);
    let mut madt = Sdt::new(*b"APIC", 36, 5, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    madt.append_slice(&body);
    madt
}

/// The MCFG (PCI Firmware 3.3, 4.1.2): segment 0, bus 0.
fn mcfg(configuration_space: u32) -> Sdt {
    let mut body = Vec::new();
    body.qword(0);
    body.qword(configuration_space.into());
    body.word(0);
    body.byte(0);
    body.byte(0);
    body.dword(0);
    let mut mcfg = Sdt::new(*b"MCFG", 36, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.append_slice(&body);
    mcfg
}

/// The FADT (ACPI 5.2.9).
fn fadt(config: &GuestConfig, dsdt: u64) -> impl Aml {
    const LEGACY_DEVICES: u16 = 1 << 0;
    const VGA_NOT_PRESENT: u16 = 1 << 2;
    let port =
        |port: u16| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into());
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::Wbinvd)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        .flag(Flags::ForceApicPhysicalDestinationMode)
        .flag(Flags::HwReducedAcpi);
    fadt.iapc_boot_arch = (LEGACY_DEVICES | VGA_NOT_PRESENT).into();
    fadt.reset_reg = port(RESET_PORT);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = port(SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = port(SLEEP_STATUS_PORT);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(OEM_TABLE_ID).into();
    if let Some(timer) = config.pm_timer {
        let address = timer.port.into();
        // Linux reads the PM timer from here on hardware-reduced machines, too.
        fadt.x_pm_tmr_blk =
            GAS::new(AddressSpace::SystemIo, 32, 0, AccessSize::DwordAccess, address);
        fadt.pm_tmr_blk = u32::from(timer.port).into();
        fadt.pm_tmr_len = 4;
        if timer.bits32 {
            fadt = fadt.flag(Flags::TmrValExt);
        }
    }
    fadt.finalize()
}
