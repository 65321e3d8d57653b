//! The SPCR: the serial port that the firmware's own console is on (Microsoft's Serial Port Console
//! Redirection table, revisions 1 to 4). A port that isn't a 16550 is taken as not there.

use super::table::{Read, Table};
use crate::{Error, SerialFunction, SerialPort, SerialRegisters};

const INTERFACE: u32 = 36;
const BASE: u32 = 40;
const BAUD: u32 = 58;
const PCI_DEVICE: u32 = 64;
const PCI_VENDOR: u32 = 66;
const PCI_BUS: u32 = 68;
const PCI_SEGMENT: u32 = 75;
/// Revision 3 on.
const CLOCK: u32 = 76;
/// Revision 4 on.
const PRECISE_BAUD: u32 = 80;

/// Kinds of port: a 16550, a subset of it, one whose registers are as the address says.
const INTERFACES: [u8; 3] = [0x00, 0x01, 0x12];
/// Registers of a 16550.
const REGISTERS: u64 = 8;

pub fn parse(table: &Table<'_>) -> Read<Option<SerialPort>> {
    let revision = table.u8(8)?;
    if !INTERFACES.contains(&table.u8(INTERFACE)?) {
        return Ok(None);
    }
    let Some(registers) = registers(table)? else { return Ok(None) };
    // Some firmware says that it is of a later revision than its length.
    let later = |from: u8, at: u32| match revision >= from && table.length() >= at + 4 {
        true => table.u32(at).map(|value| Some(value).filter(|value| *value != 0)),
        false => Ok(None),
    };
    let baud = match table.u8(BAUD)? {
        3 => Some(9_600),
        4 => Some(19_200),
        6 => Some(57_600),
        7 => Some(115_200),
        _ => None,
    };
    let baud = later(4, PRECISE_BAUD)?.or(baud);
    Ok(Some(SerialPort { registers, baud, clock: later(3, CLOCK)?, function: function(table)? }))
}

/// Where the registers are (ACPI 5.2.3.2); nowhere if firmware has switched its console off.
fn registers(table: &Table<'_>) -> Read<Option<SerialRegisters>> {
    let (space, bits, access) = (table.u8(BASE)?, table.u8(BASE + 1)?, table.u8(BASE + 3)?);
    let address = table.u64(BASE + 4)?;
    // Undefined, or a byte.
    let width = if access < 2 { 1 } else { 1u8.checked_shl(u32::from(access) - 1).unwrap_or(0) };
    let stride = (bits / 8).max(width);
    let wrong =
        |needed| Err(table.stop(Error::Inconsistent { table: "SPCR", offset: BASE, needed }));
    match space {
        _ if address == 0 => Ok(None),
        1 => match u16::try_from(address) {
            Ok(port) if u64::from(port) + REGISTERS <= 0x1_0000 => {
                Ok(Some(SerialRegisters::Ports(port)))
            }
            _ => wrong("eight I/O ports below 10000h"),
        },
        0 if !matches!((width, stride), (1 | 2 | 4, 1 | 2 | 4)) => {
            wrong("registers of 8, 16 or 32 bits")
        }
        0 if !address.is_multiple_of(u64::from(width)) => wrong("an aligned address"),
        0 if address.checked_add(REGISTERS * u64::from(stride)).is_none() => {
            wrong("an end below 2^64")
        }
        0 => Ok(Some(SerialRegisters::Memory { address, stride, width })),
        _ => Ok(None),
    }
}

/// The PCI function that it is, if it is one.
fn function(table: &Table<'_>) -> Read<Option<SerialFunction>> {
    let ids = (table.u16(PCI_DEVICE)?, table.u16(PCI_VENDOR)?);
    let (bus, device, function) =
        (table.u8(PCI_BUS)?, table.u8(PCI_BUS + 1)?, table.u8(PCI_BUS + 2)?);
    let segment = table.u8(PCI_SEGMENT)?;
    match ids {
        (0xFFFF, _) | (_, 0xFFFF) | (0, 0) => Ok(None),
        _ if device > 31 || function > 7 => Err(table.stop(Error::Inconsistent {
            table: "SPCR",
            offset: PCI_BUS,
            needed: "a device below 32 and a function below 8",
        })),
        _ => Ok(Some(SerialFunction { segment, bus, device, function })),
    }
}
