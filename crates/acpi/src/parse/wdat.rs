//! The WDAT: a watchdog, by the instructions that its actions are made of (Microsoft's Hardware
//! Watchdog Timers Design Specification). One that firmware has switched off is taken as not there.

use super::table::{Read, Table};
use crate::{Error, Instruction, Operation, Place, Watchdog, WatchdogRegister};
use alloc::vec::Vec;

const PERIOD: u32 = 48;
const MOST_COUNT: u32 = 52;
const LEAST_COUNT: u32 = 56;
const FLAGS: u32 = 60;
const COUNT: u32 = 64;
const INSTRUCTIONS: u32 = 68;
const INSTRUCTION: u32 = 24;
/// There are some fourteen actions, of a few instructions each.
const MOST: usize = 128;

/// The watchdog is there, and may be used.
const ENABLED: u8 = 1 << 0;

/// Instructions.
const READ_VALUE: u8 = 0;
const READ_COUNTDOWN: u8 = 1;
const WRITE_VALUE: u8 = 2;
const PRESERVE: u8 = 1 << 7;

pub fn parse(table: &Table<'_>) -> Read<Option<Watchdog>> {
    let name = "WDAT";
    if table.u8(FLAGS)? & ENABLED == 0 {
        return Ok(None);
    }
    let (period_ms, least_count, most_count) =
        (table.u32(PERIOD)?, table.u32(LEAST_COUNT)?, table.u32(MOST_COUNT)?);
    if period_ms == 0 || least_count > most_count {
        let needed = "a period of a millisecond at least and a least count not above the most";
        return Err(table.stop(Error::Inconsistent { table: name, offset: PERIOD, needed }));
    }
    let count = table.u32(COUNT)?;
    if count as usize > MOST {
        return Err(table.stop(Error::TooMany { table: name, what: "instructions", most: MOST }));
    }
    let read = |i| {
        let offset = INSTRUCTIONS + i * INSTRUCTION;
        instruction(&table.part(offset, INSTRUCTION, INSTRUCTION)?)
    };
    let instructions = (0..count).map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Watchdog { period_ms, least_count, most_count, instructions }))
}

fn instruction(entry: &Table<'_>) -> Read<Instruction> {
    let (kind, register) = (entry.u8(1)?, register(entry)?);
    let preserve = kind & PRESERVE != 0;
    let operation = match kind & !PRESERVE {
        READ_VALUE => Some(Operation::Compare),
        READ_COUNTDOWN => Some(Operation::Count),
        WRITE_VALUE => Some(Operation::Write { preserve }),
        _ => None,
    };
    Ok(Instruction {
        action: entry.u8(0)?,
        operation: operation.zip(register),
        value: entry.u32(16)?,
        mask: entry.u32(20)?,
    })
}

/// The register of an instruction (ACPI 5.2.3.2); none if it is of another space, or can't be one.
fn register(entry: &Table<'_>) -> Read<Option<WatchdogRegister>> {
    let (space, bits, shift, access) = (entry.u8(4)?, entry.u8(5)?, entry.u8(6)?, entry.u8(7)?);
    let address = entry.u64(8)?;
    let width = match (access, bits) {
        (1, _) | (0, 8) => 1,
        (2, _) | (0, 16) => 2,
        (3, _) | (0, 32) => 4,
        _ => return Ok(None),
    };
    let bytes = u64::from(width);
    let place = match (space, u16::try_from(address)) {
        _ if address == 0 || shift >= width * 8 => None,
        (1, Ok(port)) if address + bytes <= 0x1_0000 => Some(Place::Port(port)),
        (0, _) if address.is_multiple_of(bytes) => Some(Place::Memory(address)),
        _ => None,
    };
    Ok(place.map(|place| WatchdogRegister { place, width, shift }))
}
