//! The DSDT: what can only be said in AML. S5, the PCI bus with its windows, the serial
//! port, and that configuration space is in the way.
//!
//! The serial port has its interrupt from the IOAPIC. To a system that doesn't use that one and
//! says so by `\_PIC(0)` (ACPI 6.5, 5.8.1) the port has none, and is polled: there is no other
//! interrupt controller.

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, SLEEP_TYPE_S5};
use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Arg, Device, EISAName, Equal, IO, If, Interrupt,
    Memory32Fixed, Method, Name, ONE, Package, Path, ResourceTemplate, Return, Scope, Store, ZERO,
};
use acpi_tables::sdt::Sdt;
use alloc::{vec, vec::Vec};

/// Below 4 GiB, for 32-bit BARs.
const LOW_WINDOW: (u32, u32) = (0xC000_0000, 0xDFFF_FFFF);
/// Above all RAM, for 64-bit BARs.
const HIGH_WINDOW: (u64, u64) = (0x40_0000_0000, 0x4F_FFFF_FFFF);
/// Above the ports of the serial port, the power registers and the PM timer.
const IO_WINDOW: (u16, u16) = (0x1000, 0xFFFF);
/// Configuration mechanism 1.
const CONFIG_PORTS: (u16, u8) = (0xCF8, 8);
/// Of one bus (PCIe 5.0, 7.2.2).
const CONFIGURATION_SPACE_BYTES: u32 = 1 << 20;
const SERIAL_PORTS: (u16, u8) = (0x3F8, 8);
const SERIAL_GSI: u32 = 4;

/// With configuration space of one bus there.
pub fn build(configuration_space: u32) -> Sdt {
    let mut body = Vec::new();
    let s5 = SLEEP_TYPE_S5;
    Name::new("_S5_".into(), &Package::new(vec![&s5, &s5, &ZERO, &ZERO])).to_aml_bytes(&mut body);
    interrupt_model(&mut body);
    devices(&mut body, configuration_space);
    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    dsdt.append_slice(&body);
    dsdt
}

/// The interrupt model that the system chose: 0 is the PIC, 1 the IOAPIC, which is taken for
/// granted of one that says nothing.
const MODEL: &str = "PICM";

fn interrupt_model(body: &mut Vec<u8>) {
    Name::new(MODEL.into(), &ONE).to_aml_bytes(body);
    let (model, chosen) = (Path::new(MODEL), Arg(0));
    let keep = Store::new(&model, &chosen);
    Method::new("_PIC".into(), 1, false, vec![&keep]).to_aml_bytes(body);
}

fn devices(body: &mut Vec<u8>, configuration_space: u32) {
    let fixed = |(port, count): (u16, u8)| IO::new(port, port, 1, count);
    let memory = AddressSpaceCacheable::NotCacheable;

    let hid = EISAName::new("PNP0A03");
    let buses = AddressSpace::<u16>::new_bus_number(0, 0);
    let config = fixed(CONFIG_PORTS);
    let ports = AddressSpace::<u16>::new_io(IO_WINDOW.0, IO_WINDOW.1, None);
    let low = AddressSpace::<u32>::new_memory(memory, true, LOW_WINDOW.0, LOW_WINDOW.1, None);
    let high = AddressSpace::<u64>::new_memory(memory, true, HIGH_WINDOW.0, HIGH_WINDOW.1, None);
    let windows = ResourceTemplate::new(vec![&buses, &config, &ports, &low, &high]);
    let [hid, uid, segment, bus, resources] = [
        Name::new("_HID".into(), &hid),
        Name::new("_UID".into(), &ZERO),
        Name::new("_SEG".into(), &ZERO),
        Name::new("_BBN".into(), &ZERO),
        Name::new("_CRS".into(), &windows),
    ];
    let pci = Device::new("PCI0".into(), vec![&hid, &uid, &segment, &bus, &resources]);

    let hid = Name::new("_HID".into(), &EISAName::new("PNP0501"));
    let serial_ports = fixed(SERIAL_PORTS);
    // Consumed, edge triggered, active high, not shared.
    let interrupt = Interrupt::new(true, true, false, false, SERIAL_GSI);
    let polled = ResourceTemplate::new(vec![&serial_ports]);
    let interrupting = ResourceTemplate::new(vec![&serial_ports, &interrupt]);
    let model = Path::new(MODEL);
    let (without_ioapic, polled) = (Equal::new(&model, &ZERO), Return::new(&polled));
    let (polled, interrupting) =
        (If::new(&without_ioapic, vec![&polled]), Return::new(&interrupting));
    let resources = Method::new("_CRS".into(), 0, true, vec![&polled, &interrupting]);
    let serial = Device::new("COM1".into(), vec![&hid, &uid, &resources]);

    // A part of the board that is in the way of others: so the MCFG is believed.
    let (hid, uid) =
        (Name::new("_HID".into(), &EISAName::new("PNP0C02")), Name::new("_UID".into(), &ONE));
    let reserved = Memory32Fixed::new(true, configuration_space, CONFIGURATION_SPACE_BYTES);
    let reserved = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&reserved]));
    let board = Device::new("BRD0".into(), vec![&hid, &uid, &reserved]);

    Scope::new("_SB_".into(), vec![&pci, &serial, &board]).to_aml_bytes(body);
}
