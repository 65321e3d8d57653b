//! A function as its guest sees it. A virtual function lacks registers by the standard; its
//! physical function supplies what they would say.

use crate::pci::{Bar, Pci, sriov};
use alloc::vec::Vec;
use iommu::Bdf;

/// The header and the conventional capabilities, with the ids that a virtual function has by its
/// physical one (SR-IOV 1.1, 3.4.1.1).
pub fn snapshot(pci: &Pci, bdf: Bdf) -> [u8; 256] {
    let mut bytes = pci.snapshot(bdf);
    if let Some(f) = sriov::function(bdf) {
        let [a, b] = f.vendor.to_le_bytes();
        let [c, d] = f.device.to_le_bytes();
        bytes[..4].copy_from_slice(&[a, b, c, d]);
    }
    bytes
}

/// The BARs with their sizes. Decoding is off while those of a physical function are probed.
pub fn bars(pci: &Pci, bdf: Bdf) -> Vec<Bar> {
    sriov::bars(bdf).map_or_else(|| pci.bars(bdf), <[Bar]>::to_vec)
}
