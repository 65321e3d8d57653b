//! The DMAR: Intel's IOMMUs and the memory firmware reserved for devices (VT-d chapter 8).

use super::table::{Read, Table};
use crate::{Dmar, Error, PathStep, RemappingUnit, ReservedMemory, Scope, ScopeKind};
use alloc::vec::Vec;

const STRUCTURES: u32 = 48;
const DRHD: u16 = 0;
const DRHD_SCOPES: u32 = 16;
const RMRR: u16 = 1;
const RMRR_SCOPES: u32 = 24;
const SCOPE_PATH: u32 = 6;

pub fn parse(table: &Table<'_>) -> Read<Dmar> {
    let flags = table.u8(37)?;
    let interrupt_remapping = flags & 1 != 0;
    let mut dmar = Dmar {
        interrupt_remapping,
        // The flag has a meaning only together with interrupt remapping.
        x2apic_opt_out: interrupt_remapping && flags & 2 != 0,
        // The field holds the width less 1.
        host_address_width: table.u8(36)?.saturating_add(1),
        units: Vec::new(),
        reserved: Vec::new(),
    };
    let mut offset = STRUCTURES;
    while offset < table.length() {
        let head = table.part(offset, 4, 4)?;
        let kind = head.u16(0)?;
        let length = u32::from(head.u16(2)?);
        let entry = table.part(offset, length, 4)?;
        match kind {
            DRHD => dmar.units.push(RemappingUnit {
                base: entry.u64(8)?,
                segment: entry.u16(6)?,
                include_all: entry.u8(4)? & 1 != 0,
                scopes: scopes(&entry, DRHD_SCOPES)?,
            }),
            RMRR => dmar.reserved.push(reserved(&entry)?),
            _ => {}
        }
        offset = offset.saturating_add(length);
    }
    Ok(dmar)
}

fn reserved(entry: &Table<'_>) -> Read<ReservedMemory> {
    let (base, limit) = (entry.u64(8)?, entry.u64(16)?);
    if base > limit {
        let needed = "a base not above the limit";
        return Err(entry.stop(Error::Inconsistent {
            table: "DMAR",
            offset: entry.offset(),
            needed,
        }));
    }
    let scopes = scopes(entry, RMRR_SCOPES)?;
    Ok(ReservedMemory { base, limit, segment: entry.u16(6)?, scopes })
}

/// The device scopes from `offset` to the end of `entry` (VT-d 8.3.1).
fn scopes(entry: &Table<'_>, mut offset: u32) -> Read<Vec<Scope>> {
    let mut scopes = Vec::new();
    while offset < entry.length() {
        let length = u32::from(entry.part(offset, 2, 2)?.u8(1)?);
        let scope = entry.part(offset, length, SCOPE_PATH + 2)?;
        let kind = match scope.u8(0)? {
            1 => ScopeKind::Endpoint,
            2 => ScopeKind::Bridge,
            3 => ScopeKind::IoApic,
            4 => ScopeKind::Hpet,
            5 => ScopeKind::Namespace,
            other => ScopeKind::Other(other),
        };
        let mut path = Vec::new();
        let mut at = SCOPE_PATH;
        while at < scope.length() {
            let step = PathStep { device: scope.u8(at)?, function: scope.u8(at + 1)? };
            // Ignored, its device would be taken for another unit's.
            if step.device > 31 || step.function > 7 {
                let needed = "a path of devices 0 to 31 and functions 0 to 7";
                let offset = scope.offset();
                return Err(scope.stop(Error::Inconsistent { table: "DMAR", offset, needed }));
            }
            path.push(step);
            at += 2;
        }
        scopes.push(Scope { kind, enumeration_id: scope.u8(4)?, bus: scope.u8(5)?, path });
        offset = offset.saturating_add(length);
    }
    Ok(scopes)
}
