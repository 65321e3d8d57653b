//! The IVRS (AMD IOMMU, chapter 5): one unit that all of the guest's bus is behind, and its I/O
//! APIC, whose interrupts it remaps.

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::AmlSink;
use acpi_tables::sdt::Sdt;
use alloc::vec::Vec;

/// Of the whole table: blocks say what their units can do; physical and virtual addresses have 48
/// and 64 bits.
const INFORMATION: u32 = 1 | 48 << 8 | 64 << 15;
/// A block that says it (5.2.2.1, type 11h), its bytes before the device entries, and those of
/// three of them.
const HARDWARE: u8 = 0x11;
const HARDWARE_BYTES: u16 = 40;
const ENTRIES_BYTES: u16 = 4 + 4 + 8;
/// The beginning and the end of a range of devices, and one that is on no bus: an I/O APIC.
const RANGE: u8 = 3;
const RANGE_END: u8 = 4;
const SPECIAL: u8 = 0x48;
const IOAPIC: u8 = 1;
/// The last device of bus 0.
const LAST: u16 = 0xFF;

/// A unit, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdVi {
    /// Its own function's requester id.
    pub function: u16,
    /// Where that has its capability block.
    pub capability: u16,
    /// Guest-physical address of its registers.
    pub registers: u64,
    /// What its register of extended features says.
    pub features: u64,
    /// Requester id of the I/O APIC.
    pub ioapic: u16,
}

pub fn build(unit: &AmdVi) -> Sdt {
    let mut body = Vec::new();
    body.dword(INFORMATION);
    body.qword(0);
    body.byte(HARDWARE);
    body.byte(0); // flags of HyperTransport
    body.word(HARDWARE_BYTES + ENTRIES_BYTES);
    body.word(unit.function);
    body.word(unit.capability);
    body.qword(unit.registers);
    body.word(0); // segment 0
    body.word(0);
    body.dword(0);
    body.qword(unit.features);
    body.qword(0);
    for (kind, function) in [(RANGE, 0), (RANGE_END, LAST)] {
        body.byte(kind);
        body.word(function);
        body.byte(0);
    }
    body.byte(SPECIAL);
    body.word(0);
    body.byte(0);
    body.byte(super::IOAPIC_ID);
    body.word(unit.ioapic);
    body.byte(IOAPIC);
    let mut ivrs = Sdt::new(*b"IVRS", 36, 2, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    ivrs.append_slice(&body);
    ivrs
}
