//! Fields of what lies in memory, each read checked.

use crate::{BootInfo, Error};
use acpi::Physical;

/// The `N` bytes at `base + offset`; `what` names them if they aren't there.
pub fn field<const N: usize>(
    mem: &impl Physical,
    what: &'static str,
    base: u64,
    offset: u64,
) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let address = base.checked_add(offset);
    match address {
        Some(address) if mem.read(address, &mut bytes) => Ok(bytes),
        _ => Err(Error::Unreadable { what, address: base.wrapping_add(offset) }),
    }
}

/// A little-endian number of 32 bits.
pub fn u32(mem: &impl Physical, what: &'static str, base: u64, offset: u64) -> Result<u32, Error> {
    field(mem, what, base, offset).map(u32::from_le_bytes)
}

/// A little-endian number of 64 bits.
pub fn u64(mem: &impl Physical, what: &'static str, base: u64, offset: u64) -> Result<u64, Error> {
    field(mem, what, base, offset).map(u64::from_le_bytes)
}

/// Reads the command line at `address` into `info`: `length` bytes, or fewer if a zero byte ends
/// it before.
pub fn command_line(
    mem: &impl Physical,
    address: u64,
    length: u64,
    info: &mut BootInfo,
) -> Result<(), Error> {
    info.command_line.clear();
    for offset in 0..length {
        let [byte] = field(mem, "command line", address, offset)?;
        if byte == 0 {
            break;
        }
        info.command_line.try_push(byte).map_err(|_| Error::CommandLine)?;
    }
    Ok(())
}
