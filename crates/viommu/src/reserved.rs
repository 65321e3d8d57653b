//! Addresses at which nothing can be mapped, since the machine takes them for something else.

/// A range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// A write there is an interrupt.
    pub messages: bool,
}

impl Reserved {
    /// Is some of this range, first to last, in it?
    pub const fn overlaps(&self, first: u64, last: u64) -> bool {
        first <= self.last && self.first <= last
    }
}

/// Where devices send their interrupts on any PC (SDM vol. 3, 11.11.1).
pub const MESSAGES: Reserved = Reserved { first: 0xFEE0_0000, last: 0xFEEF_FFFF, messages: true };
/// What AMD's units take for HyperTransport's own (AMD IOMMU specification 48882, 2.1.2).
pub const HYPER_TRANSPORT: Reserved =
    Reserved { first: 0xFD_0000_0000, last: 0xFF_FFFF_FFFF, messages: false };
