//! What is offered, and the device's part of the registers (5.13.3, 5.13.4).

use crate::{PAGE, request::PROBE_BYTES};

/// VIRTIO_IOMMU_F_INPUT_RANGE.
const INPUT_RANGE: u64 = 1 << 0;
/// VIRTIO_IOMMU_F_DOMAIN_RANGE.
const DOMAIN_RANGE: u64 = 1 << 1;
/// VIRTIO_IOMMU_F_MAP_UNMAP.
const MAP_UNMAP: u64 = 1 << 2;
/// VIRTIO_IOMMU_F_PROBE.
const PROBE: u64 = 1 << 4;
/// VIRTIO_IOMMU_F_BYPASS_CONFIG.
pub const BYPASS_CONFIG: u64 = 1 << 6;

/// All that is offered.
pub const FEATURES: u64 = INPUT_RANGE | DOMAIN_RANGE | MAP_UNMAP | PROBE | BYPASS_CONFIG;

/// Bytes of the registers.
pub const CONFIG_BYTES: usize = 40;
/// The place of `bypass` among them, one byte.
pub const BYPASS: usize = 36;

/// The registers of a device that translates addresses up to this one.
pub fn config(last: u64) -> [u8; CONFIG_BYTES] {
    let mut bytes = [0; CONFIG_BYTES];
    let fields = [
        // page_size_mask: any whole number of pages is mapped at once.
        (0, !(PAGE - 1)),
        // input_range: first and last.
        (8, 0),
        (16, last),
        // domain_range: any number.
        (24, u64::from(u32::MAX) << 32),
        // probe_size, bypass.
        (32, u64::from(PROBE_BYTES) | 1 << 32),
    ];
    for (at, value) in fields {
        bytes.iter_mut().skip(at).zip(value.to_le_bytes()).for_each(|(to, byte)| *to = byte);
    }
    bytes
}
