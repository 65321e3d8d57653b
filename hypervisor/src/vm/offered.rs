//! What a VM that may run guests of its own is offered beyond what every VM is.

use crate::cpu::VendorOffer;
use alloc::boxed::Box;
use virtual_pc::cpuid::{CpuidResult, offered_cr4};

/// The extension as such a VM sees it.
pub struct Offered {
    /// What its guests may set.
    pub offer: VendorOffer,
    /// Leaf 0x8000_000A.
    pub leaf: &'static CpuidResult,
}

impl Offered {
    /// To a VM that may set these bits of EFER without it, on a CPU whose leaves are `physical`.
    pub fn new(efer: u64, physical: impl Fn(u32) -> CpuidResult) -> Self {
        let bits = physical(0x8000_0008).eax & 0xFF;
        let features = physical(0x8000_000A).edx;
        let [eax, ebx, ecx, edx] = VendorOffer::leaf(features);
        Offered {
            offer: VendorOffer::new(offered_cr4(physical), efer, bits).on(features),
            leaf: Box::leak(Box::new(CpuidResult { eax, ebx, ecx, edx })),
        }
    }
}
