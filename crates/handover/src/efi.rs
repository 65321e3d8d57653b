//! What UEFI leaves behind when its boot services have ended (UEFI 2.10): the memory map, and the
//! runtime service that resets the machine or switches it off.

use crate::bytes::{u32, u64};
use crate::{Error, MemoryKind, MemoryMap};
use acpi::Physical;

const MAP: &str = "EFI memory map";

/// Bytes of the descriptor that UEFI 2.10 knows (7.2.3); firmware's may be longer.
const DESCRIPTOR: u32 = 40;
/// The longest descriptor, and the most of them, that are read.
const MAX_DESCRIPTOR: u32 = 4096;
const MAX_DESCRIPTORS: u64 = 4096;
/// Bytes of what EFI calls a page.
const EFI_PAGE: u64 = 4096;

const LOADER_CODE: u32 = 1;
const CONVENTIONAL: u32 = 7;
const BOOT_SERVICES_DATA: u32 = 4;
const RUNTIME_SERVICES_CODE: u32 = 5;
const RUNTIME_SERVICES_DATA: u32 = 6;
const ACPI_RECLAIM: u32 = 9;
const ACPI_NVS: u32 = 10;
/// Registers, and those that are ports of another architecture.
const MMIO: u32 = 11;
const MMIO_PORTS: u32 = 12;

/// EFI_MEMORY_WB: it can be cached, as memory is.
const WRITE_BACK: u64 = 1 << 3;
/// EFI_MEMORY_SP: set apart for a purpose that only its driver knows.
const SPECIFIC_PURPOSE: u64 = 1 << 18;
/// EFI_MEMORY_RUNTIME: runtime services use it.
const RUNTIME: u64 = 1 << 63;

/// What a descriptor's type and attributes allow once boot services have ended.
fn kind(kind: u32, attributes: u64) -> MemoryKind {
    match kind {
        // Listed only where runtime services use them, and no memory even so.
        MMIO | MMIO_PORTS => MemoryKind::Reserved,
        _ if attributes & RUNTIME != 0 => MemoryKind::Runtime,
        RUNTIME_SERVICES_CODE | RUNTIME_SERVICES_DATA => MemoryKind::Runtime,
        LOADER_CODE..=BOOT_SERVICES_DATA | CONVENTIONAL
            if attributes & (WRITE_BACK | SPECIFIC_PURPOSE) == WRITE_BACK =>
        {
            MemoryKind::Usable
        }
        ACPI_RECLAIM | ACPI_NVS => MemoryKind::Acpi,
        _ => MemoryKind::Reserved,
    }
}

/// Adds the `bytes` bytes of descriptors at `at`, each `stride` bytes long, to `map`.
pub fn add_descriptors(
    mem: &impl Physical,
    at: u64,
    bytes: u64,
    stride: u32,
    map: &mut MemoryMap,
) -> Result<(), Error> {
    if !(DESCRIPTOR..=MAX_DESCRIPTOR).contains(&stride) {
        let (what, needed) = ("size of an EFI memory descriptor", "0x28 to 0x1000");
        return Err(Error::Field { what, found: stride.into(), needed });
    }
    let count = bytes / u64::from(stride);
    if count > MAX_DESCRIPTORS {
        let (what, needed) = ("number of EFI memory descriptors", "at most 0x1000");
        return Err(Error::Field { what, found: count, needed });
    }
    for i in 0..count {
        let descriptor = i * u64::from(stride);
        let class = u32(mem, MAP, at, descriptor)?;
        let start = u64(mem, MAP, at, descriptor + 8)?;
        let pages = u64(mem, MAP, at, descriptor + 24)?;
        let kind = kind(class, u64(mem, MAP, at, descriptor + 32)?);
        map.add_bytes(start, pages.saturating_mul(EFI_PAGE), kind)?;
    }
    Ok(())
}

/// Signatures at the head of the system table and the runtime services' (UEFI 4.3.1, 4.5.1).
const SYSTEM_TABLE: u64 = u64::from_le_bytes(*b"IBI SYST");
const RUNTIME_SERVICES: u64 = u64::from_le_bytes(*b"RUNTSERV");
/// Where the system table has the address of the runtime services' table.
const RUNTIME_SERVICES_AT: u64 = 88;
/// Where that one has the address of ResetSystem.
const RESET_SYSTEM_AT: u64 = 104;

/// Address of ResetSystem (UEFI 8.5.1), by the system table at `at`; none unless both tables and
/// the function lie in memory that is the runtime services' by the map.
pub fn reset_system(mem: &impl Physical, at: u64, map: &MemoryMap) -> Option<u64> {
    let pointer = |table: u64, signature: u64, offset: u64| {
        let end = table.checked_add(offset + 8)?;
        let theirs = map.covers(table, end, |kind| kind == MemoryKind::Runtime);
        let signed = theirs && u64(mem, "EFI table", table, 0).ok()? == signature;
        signed.then(|| u64(mem, "EFI table", table, offset).ok()).flatten()
    };
    let services = pointer(at, SYSTEM_TABLE, RUNTIME_SERVICES_AT)?;
    let function = pointer(services, RUNTIME_SERVICES, RESET_SYSTEM_AT)?;
    let end = function.checked_add(1)?;
    map.covers(function, end, |kind| kind == MemoryKind::Runtime).then_some(function)
}
