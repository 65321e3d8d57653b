//! What the function's configuration space says (4.1.2, 4.1.4), and the window through it to the
//! BAR (4.1.4.9).

use crate::{Kind, bar};

/// Red Hat's, for virtio (4.1.2).
const VENDOR: u16 = 0x1AF4;
/// Device ids of modern functions begin here (4.1.2.1).
const FIRST_DEVICE: u16 = 0x1040;
/// So that no legacy driver takes it for its own (4.1.2.1): 1 and 0x40 at least.
const REVISION: u8 = 1;
const SUBSYSTEM: u16 = 0x40;
/// STATUS: there is a list of capabilities.
const CAPABILITIES: u8 = 1 << 4;

/// Capability ids.
const MSIX: u8 = 0x11;
const VENDOR_SPECIFIC: u8 = 0x09;

/// cfg_type of `struct virtio_pci_cap`.
const COMMON_CFG: u8 = 1;
const NOTIFY_CFG: u8 = 2;
const ISR_CFG: u8 = 3;
const DEVICE_CFG: u8 = 4;
const PCI_CFG: u8 = 5;

/// Where the capabilities are, in the order of the list.
const MSIX_AT: usize = 0x40;
const COMMON_AT: usize = 0x50;
const ISR_AT: usize = 0x60;
const DEVICE_AT: usize = 0x70;
const NOTIFY_AT: usize = 0x80;
const WINDOW_AT: usize = 0x94;

/// Bytes of `struct virtio_pci_cap`, and of the two that have a word more.
const PLAIN: u8 = 16;
const LONG: u8 = 20;

/// Offsets in the space of what the guest writes in the window's capability: the BAR (8 bits), the
/// offset in it and the length (32 bits each).
pub const WINDOW_BAR: u8 = WINDOW_AT as u8 + 4;
/// See [`WINDOW_BAR`].
pub const WINDOW_OFFSET: u8 = WINDOW_AT as u8 + 8;
/// See [`WINDOW_BAR`].
pub const WINDOW_LENGTH: u8 = WINDOW_AT as u8 + 12;
/// pci_cfg_data, 4 bytes: a load or store there is one of the BAR ([`window`]).
pub const WINDOW_DATA: u8 = WINDOW_AT as u8 + 16;

/// The bits that the guest may change besides COMMAND, BARs and MSI-X control: offset and mask of
/// each 32-bit word.
pub const GUEST_BITS: [(u8, u32); 4] =
    [(WINDOW_BAR, 0xFF), (WINDOW_OFFSET, !0), (WINDOW_LENGTH, !0), (WINDOW_DATA, !0)];

/// The space as it is after reset, its BAR not placed. `queues` is at most
/// [`crate::MAX_QUEUES`]; `device_bytes` is the length of the device configuration.
pub fn space(kind: Kind, queues: u16, device_bytes: u32) -> [u8; 256] {
    let mut space = Space([0; 256]);
    space.put16(0x00, VENDOR);
    space.put16(0x02, FIRST_DEVICE + kind.number());
    space.put8(0x06, CAPABILITIES);
    space.put8(0x08, REVISION);
    // Network controller, Ethernet; mass storage, SCSI: as QEMU's are.
    space.put8(0x0B, if kind == Kind::Net { 0x02 } else { 0x01 });
    space.put16(0x2C, VENDOR);
    space.put16(0x2E, SUBSYSTEM);
    space.put8(0x34, MSIX_AT as u8);

    let msix = bar::msix(queues);
    space.put8(MSIX_AT, MSIX);
    space.put8(MSIX_AT + 1, COMMON_AT as u8);
    space.put16(MSIX_AT + 2, msix.entries - 1);
    space.put32(MSIX_AT + 4, msix.table_offset | u32::from(msix.table_bar));
    space.put32(MSIX_AT + 8, msix.pba_offset | u32::from(msix.pba_bar));

    let notify = u32::from(queues) * bar::NOTIFY_MULTIPLIER;
    space.structure(COMMON_AT, ISR_AT, COMMON_CFG, bar::COMMON, bar::COMMON_BYTES);
    space.structure(ISR_AT, DEVICE_AT, ISR_CFG, bar::ISR, 1);
    space.structure(DEVICE_AT, NOTIFY_AT, DEVICE_CFG, bar::DEVICE, device_bytes);
    space.structure(NOTIFY_AT, WINDOW_AT, NOTIFY_CFG, bar::NOTIFY, notify);
    space.put8(NOTIFY_AT + 2, LONG);
    space.put32(NOTIFY_AT + 16, bar::NOTIFY_MULTIPLIER);
    space.structure(WINDOW_AT, 0, PCI_CFG, 0, 0);
    space.put8(WINDOW_AT + 2, LONG);
    space.0
}

/// What an access to pci_cfg_data reaches, by the capability's fields as the guest wrote them:
/// offset in the BAR and size, or nothing (4.1.4.9.2: the length is 1, 2 or 4, the offset a
/// multiple of it).
pub fn window(bar: u8, offset: u32, length: u32) -> Option<(u64, u8)> {
    let fits = matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length);
    (bar == bar::INDEX && fits).then_some((offset.into(), length as u8))
}

struct Space([u8; 256]);

impl Space {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    }

    fn put8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// `struct virtio_pci_cap` of a structure in the BAR (4.1.4).
    fn structure(&mut self, at: usize, next: usize, kind: u8, offset: u64, length: u32) {
        self.put(at, &[VENDOR_SPECIFIC, next as u8, PLAIN, kind, bar::INDEX]);
        self.put32(at + 8, offset as u32);
        self.put32(at + 12, length);
    }
}

#[cfg(test)]
mod tests;
