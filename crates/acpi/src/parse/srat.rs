//! The SRAT: which processors and which memory are near each other (ACPI 5.2.16). What isn't
//! enabled, or of another kind, is left out.

use super::table::{Read, Table};
use crate::{Affinity, Error, NearMemory};

const STRUCTURES: u32 = 48;
const LOCAL_APIC: u8 = 0;
const MEMORY: u8 = 1;
const LOCAL_X2APIC: u8 = 2;
const FLAG_ENABLED: u32 = 1;
/// The most structures of a kind that are kept: more than any machine has.
const MOST: usize = 4096;

pub fn parse(table: &Table<'_>) -> Read<Affinity> {
    let mut found = Affinity::default();
    let mut offset = STRUCTURES;
    while offset < table.length() {
        let head = table.part(offset, 2, 2)?;
        let kind = head.u8(0)?;
        let length = u32::from(head.u8(1)?);
        let entry = table.part(offset, length, 2)?;
        match kind {
            LOCAL_APIC if entry.u32(4)? & FLAG_ENABLED != 0 => {
                // The domain's first byte stands apart from the others.
                let domain = entry.u32(8)? & !0xFF | u32::from(entry.u8(2)?);
                found.cores.push((u32::from(entry.u8(3)?), domain));
            }
            LOCAL_X2APIC if entry.u32(12)? & FLAG_ENABLED != 0 => {
                found.cores.push((entry.u32(8)?, entry.u32(4)?));
            }
            MEMORY if entry.u32(28)? & FLAG_ENABLED != 0 => {
                let (start, length) = (entry.u64(8)?, entry.u64(16)?);
                let end = start.saturating_add(length);
                found.memory.push(NearMemory { start, end, domain: entry.u32(2)? });
            }
            _ => {}
        }
        if found.cores.len() > MOST {
            return Err(table.stop(too_many("processors")));
        }
        if found.memory.len() > MOST {
            return Err(table.stop(too_many("ranges of memory")));
        }
        offset = offset.saturating_add(length);
    }
    Ok(found)
}

fn too_many(what: &'static str) -> Error {
    Error::TooMany { table: "SRAT", what, most: MOST }
}
