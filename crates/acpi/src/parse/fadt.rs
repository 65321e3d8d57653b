//! The FADT: the PM timer and the reset register (ACPI 5.2.9). Registers that aren't I/O ports are
//! taken as not there.

use super::table::Table;
use crate::{Error, Machine, Physical, PmTimer, Reset};

const PM_TMR_BLK: u32 = 76;
const PM_TMR_LEN: u32 = 91;
const FLAGS: u32 = 112;
const RESET_REG: u32 = 116;
const RESET_VALUE: u32 = 128;
const X_PM_TMR_BLK: u32 = 208;
/// Length of a generic address structure (ACPI 5.2.3.2).
const GAS: u32 = 12;

const TMR_VAL_EXT: u32 = 1 << 8;
const RESET_REG_SUP: u32 = 1 << 10;

pub fn parse<M: Physical>(table: &Table<'_, M>, machine: &mut Machine) -> Result<(), Error> {
    let flags = table.u32(FLAGS)?;
    let port = match io_port(table, X_PM_TMR_BLK)? {
        Some(port) => Some(port),
        None if table.u8(PM_TMR_LEN)? == 4 => nonzero_port(table.u32(PM_TMR_BLK)?.into()),
        None => None,
    };
    machine.pm_timer = port.map(|port| PmTimer { port, bits32: flags & TMR_VAL_EXT != 0 });
    if flags & RESET_REG_SUP != 0
        && let Some(port) = io_port(table, RESET_REG)?
    {
        machine.reset = Some(Reset { port, value: table.u8(RESET_VALUE)? });
    }
    Ok(())
}

/// The port a generic address names; none if the table ends before it, as older ones do.
fn io_port<M: Physical>(table: &Table<'_, M>, at: u32) -> Result<Option<u16>, Error> {
    const SYSTEM_IO: u8 = 1;
    if table.length() < at + GAS || table.u8(at)? != SYSTEM_IO {
        return Ok(None);
    }
    Ok(nonzero_port(table.u64(at + 4)?))
}

fn nonzero_port(address: u64) -> Option<u16> {
    u16::try_from(address).ok().filter(|port| *port != 0)
}
