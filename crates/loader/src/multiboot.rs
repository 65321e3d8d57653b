//! Multiboot 1 kernels (Multiboot Specification 0.6.96): entered in 32-bit mode
//! with a magic number in EAX and the address of the boot information in EBX.

use alloc::vec;
use alloc::vec::Vec;

use crate::bytes::{put, slice, u32};
use crate::elf::{self, Elf, checked_entry};
use crate::error::INITRD;
use crate::memory::{LIMIT, Memory};
use crate::pvh::command_line;
use crate::{Entry, EntryMode, Error, Format, GuestMachine, Load, Request, Segment};

const HEADER_MAGIC: u32 = 0x1BAD_B002;
const BOOT_MAGIC: u64 = 0x2BAD_B002;
/// The header lies in the first 8 KiB, aligned to 4 bytes.
const SEARCHED: usize = 8192;

/// Bits 15:0 must be understood or the image refused. 0 and 1, aligned modules
/// and memory information, are always given; 2 asks for video modes, which the
/// boot information says there are none of.
const KNOWN_FLAGS: u32 = 0x7;
const ADDRESS_FIELDS: u32 = 1 << 16;

const INFO_MEMORY: u32 = 1 << 0;
const INFO_COMMAND_LINE: u32 = 1 << 2;
const INFO_MODULES: u32 = 1 << 3;
const INFO_MEMORY_MAP: u32 = 1 << 6;

const MODULE_AT: usize = 120;
const MAP_AT: usize = MODULE_AT + 16;
const MAP_ENTRY: usize = 24;

/// Where the header is in the file, and its flags.
pub struct Header {
    offset: u64,
    flags: u32,
}

pub fn detect(kernel: &[u8]) -> Option<Header> {
    let searched = &kernel[..kernel.len().min(SEARCHED)];
    (0..searched.len() as u64).step_by(4).find_map(|offset| {
        let (magic, flags) = (u32(searched, offset).ok()?, u32(searched, offset + 4).ok()?);
        let sum = magic.wrapping_add(flags).wrapping_add(u32(searched, offset + 8).ok()?);
        (magic == HEADER_MAGIC && sum == 0).then_some(Header { offset, flags })
    })
}

pub fn load<'a>(
    request: &Request<'a, '_>,
    mut memory: Memory,
    header: Header,
) -> Result<Load<'a>, Error> {
    if header.flags & 0xFFFF & !KNOWN_FLAGS != 0 {
        return Err(Error::MultibootFlags(header.flags));
    }
    let (segments, entry) = if header.flags & ADDRESS_FIELDS != 0 {
        addressed(request.kernel, header.offset, &mut memory)?
    } else if elf::detect(request.kernel) {
        let elf = Elf::parse(request.kernel)?;
        if elf.is_64 {
            return Err(Error::Multiboot64(header.flags));
        }
        (elf.claimed_segments(&mut memory)?, elf.entry)
    } else {
        return Err(Error::UnknownFormat);
    };
    let rip = checked_entry(entry, &segments)?;
    let end = segments.iter().map(end_of).max().unwrap_or(0);

    let command_line = memory.blob(command_line(request.cmdline)?, "command line")?;
    // Directly above the kernel, where early page tables of small kernels reach.
    let module = request
        .initrd
        .map(|size| memory.lowest(size, 0x1000, end..LIMIT, INITRD).map(|at| (at, size)))
        .transpose()?;
    let size = MAP_AT + MAP_ENTRY * request.machine.regions.len();
    let mut info = memory.blob(vec![0; size], "multiboot information")?;
    let rbx = info.at;
    fill(&mut info.bytes, rbx, command_line.at, module, request.machine, &memory);

    Ok(Load {
        format: Format::Multiboot,
        segments,
        blobs: vec![command_line, info],
        initrd_at: module.map(|(at, _)| at),
        entry: Entry { rip, mode: EntryMode::Bits32, rax: BOOT_MAGIC, rbx, rsi: 0 },
    })
}

fn end_of(segment: &Segment) -> u64 {
    segment.at + segment.size()
}

/// The one segment the header's address fields describe, whatever the file's
/// format, and the entry point.
fn addressed<'a>(
    kernel: &'a [u8],
    header: u64,
    memory: &mut Memory,
) -> Result<(Vec<Segment<'a>>, u64), Error> {
    let field = |offset| u32(kernel, header + offset).map(u64::from);
    let header_address = field(12)?;
    let (at, load_end, bss_end, entry) = (field(16)?, field(20)?, field(24)?, field(28)?);
    let offset = header_address
        .checked_sub(at)
        .and_then(|distance| header.checked_sub(distance))
        .ok_or(Error::Header {
        what: "multiboot load address",
        found: at,
        needed: "it must lie between the header's address and the file's start",
    })?;
    // 0 stands for "to the end of the file".
    let size = match load_end {
        0 => kernel.len() as u64 - offset,
        end => end.checked_sub(at).ok_or(Error::Header {
            what: "multiboot load end address",
            found: end,
            needed: "it must not be below the load address",
        })?,
    };
    let bytes = slice(kernel, offset, size, "the loaded part")?;
    let zeros = match bss_end {
        0 => 0,
        end => end.checked_sub(at + size).ok_or(Error::Header {
            what: "multiboot bss end address",
            found: end,
            needed: "it must not be below the end of what is loaded",
        })?,
    };
    if size + zeros == 0 {
        return Err(Error::Empty);
    }
    memory.claim(at, size + zeros, "kernel")?;
    Ok((vec![Segment { at, bytes, zeros }], entry))
}

/// The boot information at `at`, with the module list and the memory map behind it.
fn fill(
    table: &mut [u8],
    at: u64,
    command_line: u64,
    module: Option<(u64, u64)>,
    machine: &GuestMachine,
    memory: &Memory,
) {
    // Everything lies below 4 GiB, so no address is cut here.
    let mut put32 = |offset: usize, value: u64| put(table, offset, &(value as u32).to_le_bytes());
    let mut flags = INFO_MEMORY | INFO_COMMAND_LINE | INFO_MEMORY_MAP;
    put32(4, memory.contiguous(0).min(640 << 10) >> 10);
    put32(8, memory.contiguous(1 << 20) >> 10);
    put32(16, command_line);
    if let Some((start, size)) = module {
        flags |= INFO_MODULES;
        put32(20, 1);
        put32(24, at + MODULE_AT as u64);
        put32(MODULE_AT, start);
        put32(MODULE_AT + 4, start + size);
    }
    put32(0, flags.into());
    put32(44, (MAP_ENTRY * machine.regions.len()) as u64);
    put32(48, at + MAP_AT as u64);
    for (index, region) in machine.regions.iter().enumerate() {
        let entry = MAP_AT + MAP_ENTRY * index;
        // The size field doesn't count itself.
        put(table, entry, &(MAP_ENTRY as u32 - 4).to_le_bytes());
        put(table, entry + 4, &region.start.to_le_bytes());
        put(table, entry + 12, &region.len.to_le_bytes());
        put(table, entry + 20, &(region.kind as u32).to_le_bytes());
    }
}
