//! The DMAR (VT-d 5.0, 8.1 to 8.3): one unit that all of the guest's bus is behind, and its I/O
//! APIC, whose interrupts it remaps.

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::AmlSink;
use acpi_tables::sdt::Sdt;
use alloc::vec::Vec;

/// Flags of the table: interrupts can be remapped.
const INTERRUPTS: u8 = 1;
/// The structure of a unit, its length with one scope, and its flag: all that isn't named.
const UNIT: (u16, u16) = (0, 16 + SCOPE_BYTES as u16);
const INCLUDE_ALL: u8 = 1;
/// A scope of an I/O APIC, which has a path of one step.
const IOAPIC: u8 = 3;
const SCOPE_BYTES: u8 = 8;

/// Of a unit with its registers there, which translates addresses of so many bits. `ioapic`: the
/// requester id of the I/O APIC.
pub fn build(registers: u64, width: u8, ioapic: u16) -> Sdt {
    let mut body = Vec::new();
    body.byte(width.saturating_sub(1));
    body.byte(INTERRUPTS);
    body.resize(12, 0);
    body.word(UNIT.0);
    body.word(UNIT.1);
    body.byte(INCLUDE_ALL);
    body.byte(0); // a page of registers
    body.word(0); // segment 0
    body.qword(registers);
    let [function, bus] = ioapic.to_le_bytes();
    for byte in [IOAPIC, SCOPE_BYTES, 0, 0, super::IOAPIC_ID, bus, function >> 3, function & 7] {
        body.byte(byte);
    }
    let mut dmar = Sdt::new(*b"DMAR", 36, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    dmar.append_slice(&body);
    dmar
}
