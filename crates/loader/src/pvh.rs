//! ELF kernels with a PVH note: entered in 32-bit mode with the address of an
//! `hvm_start_info` (Xen public header arch-x86/hvm/start_info.h, version 1) in EBX.

use alloc::vec;
use alloc::vec::Vec;

use crate::bytes::put;
use crate::elf::{Elf, checked_entry};
use crate::error::INITRD;
use crate::memory::{LIMIT, LOWEST, Memory};
use crate::{Entry, EntryMode, Error, Format, GuestMachine, Load, Request};

const MAGIC: u32 = 0x336E_C578;
/// The format sets no limit; this is one page with the final NUL.
pub const MAX_COMMAND_LINE: u64 = 4095;

const MODULES_AT: usize = 56;
const MAP_AT: usize = MODULES_AT + 32;

pub fn load<'a>(request: &Request<'a, '_>, mut memory: Memory) -> Result<Load<'a>, Error> {
    let elf = Elf::parse(request.kernel)?;
    let entry = elf.pvh_entry()?;
    let segments = elf.claimed_segments(&mut memory)?;
    let rip = checked_entry(entry, &segments)?;

    let command_line = memory.blob(command_line(request.cmdline)?, "command line")?;
    let initrd = request
        .initrd
        .map(|size| memory.highest(size, LOWEST..LIMIT, INITRD).map(|at| (at, size)))
        .transpose()?;
    let size = MAP_AT + 24 * request.machine.regions.len();
    let mut start_info = memory.blob(vec![0; size], "PVH start info")?;
    let rbx = start_info.at;
    fill(&mut start_info.bytes, rbx, command_line.at, initrd, request.machine);

    Ok(Load {
        format: Format::Pvh,
        segments,
        blobs: vec![command_line, start_info],
        initrd_at: initrd.map(|(at, _)| at),
        entry: Entry { rip, mode: EntryMode::Bits32, rax: 0, rbx, rsi: 0 },
    })
}

/// The command line with its NUL, for formats that don't say how long it may be.
pub fn command_line(text: &str) -> Result<Vec<u8>, Error> {
    let found = text.len() as u64;
    if found > MAX_COMMAND_LINE {
        return Err(Error::CommandLineTooLong { found, max: MAX_COMMAND_LINE });
    }
    Ok([text.as_bytes(), &[0]].concat())
}

/// The start info at `at`, with the module list and the memory map behind it.
fn fill(
    table: &mut [u8],
    at: u64,
    command_line: u64,
    initrd: Option<(u64, u64)>,
    machine: &GuestMachine,
) {
    put(table, 0, &MAGIC.to_le_bytes());
    put(table, 4, &1_u32.to_le_bytes());
    if let Some((start, size)) = initrd {
        put(table, 12, &1_u32.to_le_bytes());
        put(table, 16, &(at + MODULES_AT as u64).to_le_bytes());
        put(table, MODULES_AT, &start.to_le_bytes());
        put(table, MODULES_AT + 8, &size.to_le_bytes());
    }
    put(table, 24, &command_line.to_le_bytes());
    put(table, 32, &machine.rsdp.to_le_bytes());
    put(table, 40, &(at + MAP_AT as u64).to_le_bytes());
    put(table, 48, &(machine.regions.len() as u32).to_le_bytes());
    for (index, region) in machine.regions.iter().enumerate() {
        let entry = MAP_AT + 24 * index;
        put(table, entry, &region.start.to_le_bytes());
        put(table, entry + 8, &region.len.to_le_bytes());
        put(table, entry + 16, &(region.kind as u32).to_le_bytes());
    }
}
