//! Why a unit isn't used, or didn't do what was asked.

use crate::{Bdf, DomainId};
use thiserror::Error;

/// A reason, as one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Nothing answers at the registers' place.
    #[error("no IOMMU answers: its first register reads {read:#x}")]
    Absent {
        /// What was read.
        read: u32,
    },
    /// The unit lacks something.
    #[error("the IOMMU lacks {feature} ({register} reads {value:#x}), which is needed")]
    Lacks {
        /// What it lacks.
        feature: &'static str,
        /// The register that tells.
        register: &'static str,
        /// What was read.
        value: u64,
    },
    /// The unit doesn't do what it was told.
    #[error("the IOMMU didn't {what} before {polls} polls were over")]
    Timeout {
        /// What it was told.
        what: &'static str,
        /// How often it was asked.
        polls: u32,
    },
    /// The unit refused an invalidation, so its caches can't be trusted any more.
    #[error("the IOMMU failed an invalidation: its status register reads {status:#x}")]
    InvalidationFailed {
        /// What was read: VT-d's fault status, AMD-Vi's status.
        status: u32,
    },
    /// Frames ran out.
    #[error("{frames} contiguous frames of memory are needed for the IOMMU, and there are none")]
    OutOfMemory {
        /// How many were asked for.
        frames: u64,
    },
    /// A domain id that can't be used.
    #[error("IOMMU domain id {} can't be used: 1 to {most} are needed", domain.0)]
    Domain {
        /// The id.
        domain: DomainId,
        /// The highest that the unit knows.
        most: u16,
    },
    /// Page tables that the unit can't walk.
    #[error(
        "the IOMMU can't walk {levels} levels of page tables, but as many as {known:#x} has bits for (bit 3: 3 levels)"
    )]
    Levels {
        /// Levels asked for.
        levels: u8,
        /// What it can do: bit n for n levels.
        known: u8,
    },
    /// A page-table root that isn't the address of a frame.
    #[error("{root:#x} can't be the root of IOMMU page tables: a 4 KiB frame below 2^52 is needed")]
    Root {
        /// The address.
        root: u64,
    },
    /// The device already has a domain.
    #[error("device {device} is attached already: it must be detached first")]
    Attached {
        /// The device.
        device: Bdf,
    },
    /// Another device's requests carry an id that this one's do, too.
    #[error(
        "device {device} can't be told from another by the IOMMU (requester {requester}), which is attached to another domain"
    )]
    Shared {
        /// The device.
        device: Bdf,
        /// The id.
        requester: Bdf,
    },
    /// The device has no domain.
    #[error("device {device} isn't attached to any domain")]
    NotAttached {
        /// The device.
        device: Bdf,
    },
    /// A size the interrupt remapping table can't have.
    #[error(
        "an interrupt remapping table can't have {entries} entries: a power of two from 256 to 65536 is needed"
    )]
    TableSize {
        /// The size asked for.
        entries: u32,
    },
    /// A size a block of interrupt entries can't have.
    #[error("{count} interrupt entries can't form a block: a power of two from 1 to 32 is needed")]
    BlockSize {
        /// The size asked for.
        count: u16,
    },
    /// Entries ran out.
    #[error("the interrupt remapping table has no {count} free entries in a row")]
    TableFull {
        /// How many were asked for.
        count: u16,
    },
    /// An entry nobody allocated.
    #[error("interrupt entry {index} isn't allocated")]
    NotAllocated {
        /// Its index.
        index: u16,
    },
    /// A vector that no local APIC accepts.
    #[error("interrupt vector {vector} can't be delivered: 16 to 255 is needed")]
    Vector {
        /// The vector.
        vector: u8,
    },
    /// An NMI where entries can't say one.
    #[error("no interrupt entry of this IOMMU can raise an NMI: a vector is needed")]
    NmiEntry,
    /// A processor that the unit's own interrupt can't reach.
    #[error(
        "the IOMMU can't tell of faults by an interrupt to APIC {destination:#x}: an id up to 254 is needed"
    )]
    FaultInterrupt {
        /// Its x2APIC id.
        destination: u32,
    },
}
