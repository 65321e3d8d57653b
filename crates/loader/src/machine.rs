//! The guest machine as the loader needs to know it.

/// A kernel's use of a piece of the address space. The values are those
/// of ACPI 6.5 table 15.4, which e820, PVH and multiboot share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RegionKind {
    /// Free to use.
    Ram = 1,
    /// Not to be touched.
    Reserved = 2,
    /// ACPI tables.
    AcpiReclaimable = 3,
    /// ACPI memory to be kept.
    AcpiNvs = 4,
}

/// A piece of the guest-physical address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Use.
    pub kind: RegionKind,
}

/// The most regions a memory map may have: the room in Linux's zero page.
pub const MAX_REGIONS: usize = 128;

/// The guest machine.
#[derive(Clone, Copy, Debug)]
pub struct GuestMachine<'a> {
    /// The memory map, passed to the kernel as it is. Where a region of another
    /// kind overlaps RAM, it counts.
    pub regions: &'a [MemoryRegion],
    /// Where the ACPI RSDP is.
    pub rsdp: u64,
}
