//! Why the firmware's tables, or the configuration of a guest's, are refused.

use thiserror::Error;

/// A reason to refuse, as one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// No root pointer in the places where a BIOS puts it.
    #[error(
        "no ACPI root pointer (RSDP) was found in the EBDA or at E0000h-FFFFFh, and one is needed"
    )]
    NoRsdp,
    /// A table's address leads outside of memory.
    #[error("the {table} at {address:#x} can't be read: {length} bytes of memory are needed there")]
    Unreadable {
        /// The table's name.
        table: &'static str,
        /// Where it should be.
        address: u64,
        /// How many bytes were wanted.
        length: u32,
    },
    /// Something else stands where the table should be.
    #[error(
        "the {table} at {address:#x} begins with \"{}\", which isn't the signature of a {table}",
        .found.escape_ascii()
    )]
    Signature {
        /// The table's name.
        table: &'static str,
        /// Where it should be.
        address: u64,
        /// The first four bytes found.
        found: [u8; 4],
    },
    /// The length field is out of range.
    #[error(
        "the {table} at {address:#x} gives its length as {found} bytes, but {least} to {most} are needed"
    )]
    Length {
        /// The table's name.
        table: &'static str,
        /// Where it is.
        address: u64,
        /// The length it gives.
        found: u32,
        /// The least that makes sense.
        least: u32,
        /// The most that is accepted.
        most: u32,
    },
    /// The bytes don't sum to zero.
    #[error("the {length} bytes of the {table} at {address:#x} sum to {sum:#x}, but 0 is needed")]
    Checksum {
        /// The table's name.
        table: &'static str,
        /// Where it is.
        address: u64,
        /// Its length.
        length: u32,
        /// The sum found.
        sum: u8,
    },
    /// An entry, or the table itself (offset 0), is too short for what it must hold.
    #[error(
        "the structure at offset {offset} of the {table} has {length} bytes, but {needed} are needed"
    )]
    Short {
        /// The table's name.
        table: &'static str,
        /// The structure's offset in the table.
        offset: u32,
        /// The bytes it has.
        length: u32,
        /// The bytes that must be there.
        needed: u32,
    },
    /// An entry's numbers contradict each other.
    #[error("the structure at offset {offset} of the {table} is inconsistent: {needed} is needed")]
    Inconsistent {
        /// The table's name.
        table: &'static str,
        /// The structure's offset in the table.
        offset: u32,
        /// What would be consistent.
        needed: &'static str,
    },
    /// A table that nothing can do without is missing.
    #[error("the firmware gives no {table}, which is needed to find {purpose}")]
    Missing {
        /// The table's name.
        table: &'static str,
        /// What it is needed for.
        purpose: &'static str,
    },
    /// Firmware asks for something that can't be done without.
    #[error(
        "the firmware asks that x2APIC mode not be used (DMAR flag X2APIC_OPT_OUT is set), and devices can't be given to VMs without that mode: switch the opt-out off in the firmware's setup"
    )]
    X2apicOptOut,
    /// An IOMMU that firmware keeps from doing what it is for.
    #[error(
        "the IOMMU at {base:#x} can't confine DMA, for firmware has disabled its host address translation (IVRS, HATDis in the IVHD attributes): without that a device could reach all memory; switch DMA remapping on in the firmware's setup"
    )]
    NoTranslation {
        /// Where its registers are.
        base: u64,
    },
    /// More of something than there is room for.
    #[error("the {table} lists more than {most} {what}, and {most} is the most that is supported")]
    TooMany {
        /// The table's name.
        table: &'static str,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// A number of vCPUs that the guest's tables can't hold.
    #[error("a guest of {found} vCPUs can't be described: 1 to {most} are needed")]
    Vcpus {
        /// The number asked for.
        found: u32,
        /// The most there can be.
        most: u32,
    },
}
