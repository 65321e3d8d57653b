//! Entries of the interrupt remapping table in posted format (VT-d 9.11): the unit stores the
//! vector in a vCPU's descriptor (`crates/vmx`), and tells the vCPU's core, which needs no exit.
//!
//! Guarantees: what [`encode`] makes has its source verified, as the other format's entries have,
//! and no reserved bit. Nothing writes such an entry yet: no machine at hand has posted interrupts
//! and an IOMMU. Until something does, the audit takes one for malformed.

use crate::Bdf;

const PRESENT: u64 = 1;
const URGENT: u64 = 1 << 14;
/// Posted format (IM).
const POSTED: u64 = 1 << 15;
const VECTOR_SHIFT: u32 = 16;
/// Bits 31:6 of the descriptor's address stand from here on in the low half; the upper half of it
/// is the upper half of the high one.
const LOW_SHIFT: u32 = 32;
const LOW_BITS: u64 = 0xFFFF_FFC0;
const HIGH_BITS: u64 = 0xFFFF_FFFF << 32;
const SVT_VERIFY_SID: u64 = 1 << 18;

/// How the interrupts of a source are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The device that may raise them.
    pub source: Bdf,
    /// The vector, as the guest knows it.
    pub vector: u8,
    /// Told at once, also where the descriptor says not to (SN).
    pub urgent: bool,
    /// Physical address of the descriptor.
    pub descriptor: u64,
}

/// The halves of a present entry; none for a descriptor that isn't at a multiple of 64.
pub fn encode(posted: Posted) -> Option<(u64, u64)> {
    let Posted { source, vector, urgent, descriptor } = posted;
    let low = PRESENT
        | if urgent { URGENT } else { 0 }
        | POSTED
        | u64::from(vector) << VECTOR_SHIFT
        | (descriptor & LOW_BITS) << LOW_SHIFT;
    let high = u64::from(source.requester_id()) | SVT_VERIFY_SID | descriptor & HIGH_BITS;
    (descriptor & !(LOW_BITS | HIGH_BITS) == 0).then_some((low, high))
}

/// What an entry posts, if it is present and of the kind that [`encode`] makes.
pub fn decode(low: u64, high: u64) -> Option<Posted> {
    let posted = Posted {
        source: Bdf::from_requester_id(high as u16),
        vector: (low >> VECTOR_SHIFT) as u8,
        urgent: low & URGENT != 0,
        descriptor: high & HIGH_BITS | low >> LOW_SHIFT & LOW_BITS,
    };
    (encode(posted) == Some((low, high))).then_some(posted)
}
