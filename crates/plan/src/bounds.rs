//! What a plan may have at most, and at the least.

/// The highest core a plan may name.
pub const MAX_CORE: u32 = 1023;
/// vCPUs of one VM.
pub const MAX_VCPUS: usize = 64;
/// The smallest kernels that people run need this much.
pub const MIN_MEMORY: u64 = 64 << 20;
/// Guest memory ends below the guest's 64-bit PCI window at 256 GiB, with 2 GiB of
/// it spared below 4 GiB for 32-bit devices.
pub const MAX_MEMORY: u64 = 254 << 30;
/// Linux's COMMAND_LINE_SIZE on x86, without its closing zero.
pub const MAX_CMDLINE: usize = 2047;
/// Network controllers that a plan may say something of.
pub const MAX_NETWORKS: usize = 16;
/// Virtual functions of one network controller.
pub const MAX_VFS: u8 = 64;

pub(crate) const MAX_NAME: usize = 32;
/// Slots 1 to 31 of the guest's PCI bus; slot 0 is the host bridge.
pub(crate) const MAX_DEVICES: usize = 31;
/// Devices behind an IOMMU of the guest's own; `viommu` has room for no more.
pub(crate) const MAX_BEHIND_IOMMU: usize = 8;
pub(crate) const LARGE_PAGE: u64 = 2 << 20;
