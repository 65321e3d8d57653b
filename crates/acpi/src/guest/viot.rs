//! The VIOT (ACPI 6.5, 5.2.35): which functions of the guest's bus are behind its virtio-iommu.

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::AmlSink;
use acpi_tables::sdt::Sdt;
use alloc::vec::Vec;

const HEADER: u16 = 48;
/// Node types, and their lengths.
const PCI_RANGE: (u8, u16) = (1, 24);
const VIRTIO_PCI: (u8, u16) = (3, 16);
/// The place of the IOMMU on bus 0, as a device number.
pub const IOMMU_DEVICE: u16 = 1;

/// Of this many devices, which follow the IOMMU on the bus. An endpoint's id is its place there.
pub fn build(devices: u8) -> Sdt {
    let place = |device: u16| device << 3;
    let (first, last) = (IOMMU_DEVICE + 1, IOMMU_DEVICE + u16::from(devices));
    let mut body = Vec::new();
    let node = |body: &mut Vec<u8>, (kind, len): (u8, u16)| {
        body.byte(kind);
        body.byte(0);
        body.word(len);
    };
    // How many nodes, and where the first is.
    body.word(2);
    body.word(HEADER);
    body.qword(0);
    node(&mut body, VIRTIO_PCI);
    body.word(0);
    body.word(place(IOMMU_DEVICE));
    body.qword(0);
    node(&mut body, PCI_RANGE);
    body.dword(place(first).into());
    body.dword(0); // segments 0 to 0
    body.word(place(first));
    body.word(place(last));
    body.word(HEADER); // its IOMMU's node
    body.word(0);
    body.dword(0);
    let mut viot = Sdt::new(*b"VIOT", 36, 0, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    viot.append_slice(&body);
    viot
}
