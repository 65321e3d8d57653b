//! PVH's start info, version 1 (Xen's `arch-x86/hvm/start_info.h`), with its list of modules and
//! its memory map, whose types are those of E820 (ACPI 15, table 15.4).

use crate::bytes::{command_line, u32, u64};
use crate::{BootInfo, BootPath, ENTERED_BY_PVH, Error, MemoryKind};
use acpi::{Physical, RootPointer};

const START_INFO: &str = "PVH start info";
const MODULES: &str = "PVH module list";
const MAP: &str = "PVH memory map";

const MEMORY_MAP_ENTRY: u64 = 24;
/// The most entries that are read.
const MAX_ENTRIES: u32 = 4096;

/// What an E820 type may be used for.
pub fn kind_of_e820(kind: u32) -> MemoryKind {
    match kind {
        1 => MemoryKind::Usable,
        // ACPI's tables, and its non-volatile storage.
        3 | 4 => MemoryKind::Acpi,
        _ => MemoryKind::Reserved,
    }
}

/// Reads the start info at `at`.
pub fn read(mem: &impl Physical, at: u64) -> Result<BootInfo, Error> {
    let magic = u32(mem, START_INFO, at, 0)?;
    if magic != ENTERED_BY_PVH {
        let needed = "0x336ec578";
        return Err(Error::Field { what: "PVH magic number", found: magic.into(), needed });
    }
    let version = u32(mem, START_INFO, at, 4)?;
    if version == 0 {
        return Err(Error::Field {
            what: "PVH version",
            found: 0,
            needed: "1, with a memory map,",
        });
    }

    let mut info = BootInfo::of(BootPath::Pvh);
    let map = u64(mem, START_INFO, at, 40)?;
    let entries = u32(mem, START_INFO, at, 48)?;
    if entries == 0 {
        return Err(Error::NoMemoryMap);
    }
    if entries > MAX_ENTRIES {
        let (what, needed) = ("number of memory ranges", "at most 0x1000");
        return Err(Error::Field { what, found: entries.into(), needed });
    }
    for i in 0..u64::from(entries) {
        let entry = i * MEMORY_MAP_ENTRY;
        let start = u64(mem, MAP, map, entry)?;
        let length = u64(mem, MAP, map, entry + 8)?;
        let kind = kind_of_e820(u32(mem, MAP, map, entry + 16)?);
        info.memory.add_bytes(start, length, kind)?;
    }

    if u32(mem, START_INFO, at, 12)? > 0 {
        let list = u64(mem, START_INFO, at, 16)?;
        let start = u64(mem, MODULES, list, 0)?;
        let size = u64(mem, MODULES, list, 8)?;
        info.image = Some((start, start.saturating_add(size)));
    }
    let text = u64(mem, START_INFO, at, 24)?;
    if text != 0 {
        command_line(mem, text, u64::MAX - text, &mut info)?;
    }
    let rsdp = u64(mem, START_INFO, at, 32)?;
    info.rsdp = (rsdp != 0).then_some(RootPointer::At(rsdp));
    Ok(info)
}
