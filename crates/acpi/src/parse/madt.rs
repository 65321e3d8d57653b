//! The MADT: processors and I/O APICs (ACPI 5.2.12).

use super::table::{Read, Table};
use crate::{Cpu, Error, IoApic, MAX_CPUS, MAX_IOAPICS, Machine};

const STRUCTURES: u32 = 44;
const LOCAL_APIC: u8 = 0;
const IO_APIC: u8 = 1;
const LOCAL_X2APIC: u8 = 9;
const FLAG_ENABLED: u32 = 1;

pub fn parse(table: &Table<'_>, machine: &mut Machine) -> Read<()> {
    let mut offset = STRUCTURES;
    while offset < table.length() {
        let head = table.part(offset, 2, 2)?;
        let kind = head.u8(0)?;
        let length = u32::from(head.u8(1)?);
        let entry = table.part(offset, length, 2)?;
        match kind {
            LOCAL_APIC => {
                let flags = entry.u32(4)?;
                let (uid, id) = (entry.u8(2)?, entry.u8(3)?);
                if flags & FLAG_ENABLED != 0 {
                    add(machine, Cpu { apic_id: id.into(), acpi_uid: uid.into() }, &entry)?;
                }
            }
            LOCAL_X2APIC => {
                let flags = entry.u32(8)?;
                let (id, uid) = (entry.u32(4)?, entry.u32(12)?);
                if flags & FLAG_ENABLED != 0 {
                    add(machine, Cpu { apic_id: id, acpi_uid: uid }, &entry)?;
                }
            }
            IO_APIC => {
                let ioapic =
                    IoApic { id: entry.u8(2)?, address: entry.u32(4)?, gsi_base: entry.u32(8)? };
                let most = MAX_IOAPICS;
                let full = Error::TooMany { table: "MADT", what: "I/O APICs", most };
                machine.ioapics.try_push(ioapic).map_err(|_| entry.stop(full))?;
            }
            _ => {}
        }
        offset = offset.saturating_add(length);
    }
    Ok(())
}

/// Adds a processor; one that is listed in both forms counts once.
fn add(machine: &mut Machine, cpu: Cpu, entry: &Table<'_>) -> Read<()> {
    if machine.cpus.iter().any(|known| known.apic_id == cpu.apic_id) {
        return Ok(());
    }
    if machine.cpus.len() == MAX_CPUS {
        let (table, what, most) = ("MADT", "processors", MAX_CPUS);
        return Err(entry.stop(Error::TooMany { table, what, most }));
    }
    machine.cpus.push(cpu);
    Ok(())
}
