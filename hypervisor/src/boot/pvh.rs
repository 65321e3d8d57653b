//! What a PVH loader hands over (Xen's `start_info.h`).
//!
//! Guarantees: everything but the boot image itself is copied out of the
//! loader's structures, so that their memory may be used for other things
//! afterwards. The loader is trusted to give addresses of memory below 4 GiB.

use super::{Handover, MAX_COMMAND_LINE, MAX_MEMORY_RANGES, MemoryKind, MemoryRange};
use crate::refusal::refuse;
use arrayvec::ArrayVec;

const MAGIC: u32 = 0x336E_C578;

/// `hvm_start_info`, version 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// `hvm_modlist_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// `hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// Copies the loader's structures.
///
/// # Safety
/// `start_info` is what the loader left in EBX, none of its memory was written
/// since, and the first 4 GiB are mapped one to one.
pub unsafe fn read(start_info: u64) -> Handover {
    // SAFETY: the caller vouches for the structure and the mapping.
    let info: StartInfo = unsafe { load(start_info) };
    if info.magic != MAGIC || info.version == 0 {
        refuse(format_args!(
            "the boot loader's start info has magic {:#x} and version {}; a PVH loader with {MAGIC:#x} and version 1 is needed",
            info.magic, info.version
        ));
    }

    let mut handover = Handover {
        memory: ArrayVec::new(),
        command_line: ArrayVec::new(),
        image: None,
        rsdp: (info.rsdp != 0).then_some(info.rsdp),
    };
    for i in 0..u64::from(info.memory_map_entries) {
        // SAFETY: the loader gave this many entries at this address.
        let entry: MemoryMapEntry = unsafe { load(info.memory_map + i * 24) };
        let Some(end) = entry.address.checked_add(entry.size) else { continue };
        let kind = match entry.kind {
            1 => MemoryKind::Usable,
            3 | 4 => MemoryKind::Acpi,
            _ => MemoryKind::Reserved,
        };
        let range = MemoryRange { start: entry.address, end, kind };
        if handover.memory.try_push(range).is_err() {
            refuse(format_args!(
                "the memory map has {} entries; at most {MAX_MEMORY_RANGES} are handled",
                info.memory_map_entries
            ));
        }
    }
    if info.command_line != 0 {
        for i in 0.. {
            // SAFETY: the command line is a string that ends with a zero byte.
            let byte: u8 = unsafe { load(info.command_line + i) };
            if byte == 0 {
                break;
            }
            if handover.command_line.try_push(byte).is_err() {
                refuse(format_args!(
                    "the command line is longer than {MAX_COMMAND_LINE} bytes, the most that is handled"
                ));
            }
        }
    }
    if info.modules > 0 {
        // SAFETY: the loader says that there is a module.
        let module: Module = unsafe { load(info.module_list) };
        handover.image = Some((module.address, module.address.saturating_add(module.size)));
    }
    handover
}

/// # Safety
/// `address` holds a `T` for which every bit pattern is a value.
unsafe fn load<T: Copy>(address: u64) -> T {
    // SAFETY: the caller vouches for it; no alignment is asked of the loader.
    unsafe { (address as *const T).read_unaligned() }
}
