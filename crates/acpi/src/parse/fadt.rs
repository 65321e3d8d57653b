//! The FADT: the PM timer and the reset register (ACPI 5.2.9). A timer that isn't at an I/O port,
//! or where a PC has other things, is taken as not there: guests are given its port.

use super::table::{Read, Table};
use crate::{Machine, PmTimer, Reset, ResetRegister};
use core::ops::RangeInclusive;

const PM_TMR_BLK: u32 = 76;
const PM_TMR_LEN: u32 = 91;
const FLAGS: u32 = 112;
const RESET_REG: u32 = 116;
const RESET_VALUE: u32 = 128;
const X_PM_TMR_BLK: u32 = 208;
/// Length of a generic address structure (ACPI 5.2.3.2).
const GAS: u32 = 12;

/// Address spaces of a generic address.
const MEMORY: u8 = 0;
const IO: u8 = 1;
const PCI_CONFIG: u8 = 2;

/// Where the ports of a PC's board end: interrupt controllers, keyboard, DMA, NMI, fast reset.
const BOARD_END: u16 = 0x100;
/// Of four bytes from one of these at least one is a port of PCI configuration or of reset (CF9h).
const PCI_CONFIG_PORTS: RangeInclusive<u16> = 0xCF5..=0xCFF;

const TMR_VAL_EXT: u32 = 1 << 8;
const RESET_REG_SUP: u32 = 1 << 10;

pub fn parse(table: &Table<'_>, machine: &mut Machine) -> Read<()> {
    let flags = table.u32(FLAGS)?;
    let port = match io_port(table, X_PM_TMR_BLK)? {
        Some(port) => Some(port),
        None if table.u8(PM_TMR_LEN)? == 4 => nonzero_port(table.u32(PM_TMR_BLK)?.into()),
        None => None,
    };
    let port = port.filter(|port| *port >= BOARD_END && !PCI_CONFIG_PORTS.contains(port));
    machine.pm_timer = port.map(|port| PmTimer { port, bits32: flags & TMR_VAL_EXT != 0 });
    if flags & RESET_REG_SUP != 0
        && let Some(register) = reset_register(table)?
    {
        machine.reset = Some(Reset { register, value: table.u8(RESET_VALUE)? });
    }
    Ok(())
}

/// The register to write to for a reset; none if it lies where no such register can.
fn reset_register(table: &Table<'_>) -> Read<Option<ResetRegister>> {
    let Some((space, address)) = generic(table, RESET_REG)? else { return Ok(None) };
    Ok(match space {
        MEMORY if address != 0 => Some(ResetRegister::Memory(address)),
        IO => nonzero_port(address).map(ResetRegister::Port),
        PCI_CONFIG => config(address),
        _ => None,
    })
}

/// In configuration space an address is three words: offset, function, device (ACPI 5.2.3.2).
fn config(address: u64) -> Option<ResetRegister> {
    let offset = u8::try_from(address & 0xFFFF).ok()?;
    let function = u8::try_from(address >> 16 & 0xFFFF).ok().filter(|function| *function < 8)?;
    let device = u8::try_from(address >> 32).ok().filter(|device| *device < 32)?;
    Some(ResetRegister::Config { device, function, offset })
}

/// Space and address of a generic address; none if the table ends before it, as older ones do.
fn generic(table: &Table<'_>, at: u32) -> Read<Option<(u8, u64)>> {
    if table.length() < at + GAS {
        return Ok(None);
    }
    Ok(Some((table.u8(at)?, table.u64(at + 4)?)))
}

/// The port that a generic address names.
fn io_port(table: &Table<'_>, at: u32) -> Read<Option<u16>> {
    let io = generic(table, at)?.filter(|(space, _)| *space == IO);
    Ok(io.and_then(|(_, address)| nonzero_port(address)))
}

fn nonzero_port(address: u64) -> Option<u16> {
    u16::try_from(address).ok().filter(|port| *port != 0)
}
