//! What the function's configuration space says (4.1.2, 4.1.4).

use crate::{Kind, bar};
use virtual_pc::pci::{self, BarInfo, BarKind, Identity, Place, Structure, Unsuitable};

/// Red Hat's, for virtio (4.1.2).
const VENDOR: u16 = 0x1AF4;
/// Device ids of modern functions are this and the number of the device's type (4.1.2.1).
const FIRST_DEVICE: u16 = 0x1040;
/// The least with which no legacy driver takes the function for its own (4.1.2.1).
const REVISION: u8 = 1;
const SUBSYSTEM: u16 = 0x40;

/// The function as a guest finds it on its bus: its BAR is at `address`, a multiple of
/// [`bar::SIZE`] below 4 GiB. `device_bytes`: of the device configuration, at most a page.
pub fn on_bus(
    kind: Kind,
    queues: u16,
    device_bytes: u32,
    address: u64,
) -> Result<pci::Function, Unsuitable> {
    let (number, class) = match kind {
        // Network controller, Ethernet.
        Kind::Net => (1, 0x02_00_00),
        // Mass storage, SCSI: as QEMU's.
        Kind::Block => (2, 0x01_00_00),
        // Base system peripheral, IOMMU.
        Kind::Iommu => (23, 0x08_06_00),
    };
    let identity = Identity {
        vendor: VENDOR,
        device: FIRST_DEVICE + number,
        revision: REVISION,
        class,
        subsystem_vendor: VENDOR,
        subsystem: SUBSYSTEM,
    };
    let mut bars = [None; 6];
    if let Some(bar) = bars.get_mut(usize::from(bar::INDEX)) {
        let (kind, size) = (BarKind::Mem32, bar::SIZE);
        *bar = Some(BarInfo { kind, size, prefetchable: false, address });
    }
    let place = |structure, offset: u64, length| Place {
        structure,
        bar: bar::INDEX,
        offset: offset as u32,
        length,
    };
    let multiplier = bar::NOTIFY_MULTIPLIER;
    let places = [
        place(Structure::Common, bar::COMMON, bar::COMMON_BYTES),
        place(Structure::Isr, bar::ISR, 1),
        place(Structure::Device, bar::DEVICE, device_bytes),
        place(Structure::Notify { multiplier }, bar::NOTIFY, u32::from(queues) * multiplier),
    ];
    let msix = bar::msix(queues);
    pci::Function::paravirtual(&identity, &bars, Some(msix), &places)
}

#[cfg(test)]
mod tests;
