//! What of SVM and of the rest of the processor L1 was offered.
//!
//! The CPU itself would take more in 02: it knows features that L1 doesn't see.

use svm::EFER_SVME;
use svm::vmcb::{VIRTUAL_LOADS, int_ctl};

/// Nested paging, VMCB clean bits, flush by ASID, decode assists, the pause filter with its
/// threshold, AVIC and x2AVIC, VMLOAD and VMSAVE by the CPU, the virtual GIF, the next RIP, and #GP
/// for addresses of control blocks that are none (CPUID 8000_000A EDX, APM vol. 3, appendix E.4.9).
const FEATURES: u32 =
    1 << 0 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 12 | AVIC | LOADS | GIF | 1 << 28;
/// A local APIC for L2, in either mode: the host does what the CPU would.
const AVIC: u32 = 1 << 13 | 1 << 18;
const LOADS: u32 = 1 << 15;
const GIF: u32 = 1 << 16;
/// The revision of SVM.
const REVISION: u32 = 1;
/// Address spaces that L1 may number.
const ASIDS: u32 = 64;

/// What L1 may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bits of CR4.
    pub cr4: u64,
    /// Bits of EFER, SVME among them.
    pub efer: u64,
    /// Width of its physical addresses, at most 52.
    pub physical_bits: u32,
    /// Of `int_ctl`: the virtual GIF, if it is offered.
    pub(crate) flag: u64,
    /// Of `other_virtualization`: VMLOAD and VMSAVE by the CPU, if that is.
    pub(crate) loads: u64,
    /// Of `int_ctl`: AVIC in either mode, if it is offered.
    pub(crate) avic: u64,
}

impl Offer {
    /// An offer of SVM to a guest that may set these bits of CR4 and EFER without it.
    pub const fn new(cr4: u64, efer: u64, physical_bits: u32) -> Self {
        let physical_bits = if physical_bits > 52 { 52 } else { physical_bits };
        Offer { cr4, efer: efer | EFER_SVME, physical_bits, flag: 0, loads: 0, avic: 0 }
    }

    /// The same on a CPU with these features (EDX of CPUID 8000_000A).
    pub const fn on(self, cpu: u32) -> Self {
        let flag = if cpu & GIF != 0 { int_ctl::V_GIF | int_ctl::V_GIF_ENABLE } else { 0 };
        let loads = if cpu & LOADS != 0 { VIRTUAL_LOADS } else { 0 };
        Offer { flag, loads, avic: int_ctl::AVIC | int_ctl::X2AVIC, ..self }
    }

    /// EAX, EBX, ECX, EDX of CPUID 8000_000A, as L1 sees it on a CPU with these features (EDX).
    pub const fn leaf(cpu: u32) -> [u32; 4] {
        // What the host fills in where the CPU doesn't: the clean bits mean nothing that must be
        // done, a flush of all is one by ASID, addresses are checked, and AVIC is the host's.
        const SOFT: u32 = 1 << 5 | 1 << 6 | AVIC | 1 << 28;
        [REVISION, ASIDS, 0, FEATURES & (cpu | SOFT)]
    }

    /// Is any bit of a physical address, or of CR3 in long mode, beyond the width?
    pub(crate) const fn is_beyond(&self, address: u64) -> bool {
        address >> self.physical_bits != 0
    }
}
