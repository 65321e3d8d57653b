//! Words of the host's tables, and of an IOMMU's registers, that are changed behind its back.

use ::iommu::Bdf;

/// Of an entry of any of these tables: where it leads.
pub const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// What says that an entry of the CPU's tables is a leaf.
pub const LARGE: (u64, u64) = (1 << 7, 1 << 7);

/// A device of the VM, and what of its unit is about it.
pub struct Target {
    /// Where the unit's registers are.
    pub registers: u64,
    pub device: Bdf,
    /// One of its interrupt entries.
    pub entry: u16,
    /// A device that nobody has.
    pub stranger: Bdf,
    /// The APIC id of the VM's core.
    pub core: u32,
}

pub fn read(pa: u64) -> u64 {
    // SAFETY: a table of ours, identity-mapped; that what is done with it is wrong is the purpose.
    unsafe { (pa as *const u64).read_volatile() }
}

pub fn write(pa: u64, value: u64) {
    // SAFETY: as above.
    unsafe { (pa as *mut u64).write_volatile(value) }
}

pub fn set(at: u64, change: impl FnOnce(u64) -> u64) -> bool {
    write(at, change(read(at)));
    true
}
