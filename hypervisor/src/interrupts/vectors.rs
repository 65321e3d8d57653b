//! The vectors that are the host's own.
//!
//! Guarantees: on a core that runs a guest all of them are of class F, so that no vector of a
//! guest's in service holds them back.

use delivery::VectorSet;
use proto::Policy;

/// Vector of the host's own use of the local APIC's timer.
pub const TIMER: u8 = 0xF1;
/// Vector that wakes a core from HLT to look for work.
pub const WAKE: u8 = 0xF2;
/// Vector by which an IOMMU tells that it blocked something.
pub const FAULTS: u8 = 0xF3;
/// Vector that tells a core of what was posted for its vCPU. The CPU takes it while the guest runs;
/// one that comes in the host is looked for before the next entry.
pub const POSTED: u8 = 0xF4;
/// Vector of an interrupt that went away; never completed.
pub const SPURIOUS: u8 = delivery::SPURIOUS;

/// Vectors the host raises on a core that runs a guest under this policy.
pub const fn host_vectors(policy: Policy) -> VectorSet {
    match policy {
        Policy::Trap | Policy::EliDelivery | Policy::Eli => VectorSet::of(&[TIMER, WAKE]),
        Policy::Posted => VectorSet::of(&[TIMER, WAKE, POSTED]),
        Policy::Direct => VectorSet::EMPTY,
    }
}
