//! The functions of device 0, which can only be read: the host bridge, and the guest's own IOMMU if
//! that has a function.

/// The host bridge's configuration header: Red Hat's generic host bridge (1b36:0008), class
/// 06.00.00.
const HOST_BRIDGE: [u32; 3] = [0x0008_1B36, 0, 0x0600_0000];
/// An AMD-Vi unit's, with the identity that QEMU's has (1022:1419), class 08.06.00, with
/// capabilities (the status register's bit 4).
const IOMMU: [u32; 3] = [0x1419_1022, 1 << 20, 0x0806_0000];
/// Where the header's type is, and its bit that says that the device has several functions (PCI
/// 3.0, 6.2.1).
const TYPE: u8 = 0x0C;
const SEVERAL: u32 = 1 << 23;
/// Where the header has its first capability.
const CAPABILITIES: u8 = 0x34;

/// Where the IOMMU has its capability block.
pub const IOMMU_CAPABILITY: u8 = 0x40;
/// Its requester id: 00:00.2, as on AMD's machines.
pub const IOMMU_FUNCTION: u8 = 2;
/// The words of the block (AMD IOMMU, 3.2): header, base address, range, and two of other things.
pub type IommuCapability = [u32; 6];

fn header(of: &[u32; 3], register: u8) -> u32 {
    of.get(usize::from(register / 4)).copied().unwrap_or(0)
}

/// The dword at this offset of the host bridge, which may not be alone.
pub fn host_bridge(register: u8, is_alone: bool) -> u32 {
    match register & !3 {
        TYPE if !is_alone => SEVERAL,
        register => header(&HOST_BRIDGE, register),
    }
}

/// The dword at this offset of an IOMMU's function.
pub fn iommu(register: u8, capability: &IommuCapability) -> u32 {
    match register & !3 {
        TYPE => SEVERAL,
        CAPABILITIES => IOMMU_CAPABILITY.into(),
        IOMMU_CAPABILITY.. => {
            let at = usize::from((register - IOMMU_CAPABILITY) / 4);
            capability.get(at).copied().unwrap_or(0)
        }
        register => header(&IOMMU, register),
    }
}
