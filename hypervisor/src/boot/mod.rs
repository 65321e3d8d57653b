//! From the loader's entry to Rust on the boot CPU, and what the loader said.

pub mod pvh;

use arrayvec::ArrayVec;
use core::arch::global_asm;

global_asm!(include_str!("entry.s"), boot = sym crate::boot);

/// The most memory ranges that are handled; firmware gives ten or so.
pub const MAX_MEMORY_RANGES: usize = 128;
/// The longest command line that is handled.
pub const MAX_COMMAND_LINE: usize = 4096;

/// What a boot loader hands over, copied out of its memory.
pub struct Handover {
    /// The firmware's memory map, in its order.
    pub memory: ArrayVec<MemoryRange, MAX_MEMORY_RANGES>,
    /// The command line's bytes.
    pub command_line: ArrayVec<u8, MAX_COMMAND_LINE>,
    /// First byte of the boot image, which stays where it is, and the byte after its last.
    pub image: Option<(u64, u64)>,
    /// Address of ACPI's root pointer.
    pub rsdp: Option<u64>,
}

/// One range of the firmware's memory map.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// What it may be used for.
    pub kind: MemoryKind,
}

/// E820 types as far as they matter here (ACPI 15, table 15.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Type 1: memory for any use.
    Usable,
    /// Types 3 and 4: memory with the firmware's tables.
    Acpi,
    /// Anything else; memory or not.
    Reserved,
}
