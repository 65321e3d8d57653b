//! Writing into a device what it is to send: its physical MSI capability, the entries of its MSI-X
//! table.
//!
//! What the messages say, and whether a guest may have them, is the caller's.

use crate::pci::{COMMAND, COMMAND_BUS_MASTER, Config, Pci};
use ::iommu::{Bdf, Message};

/// The capability's id (PCI 3.0, appendix H).
pub const CAPABILITY_MSI: u8 = 0x05;
/// In an MSI capability's control word (PCI 3.0, 6.8.1.3): addresses of 64 bits, a mask for each
/// message.
const WIDE: u16 = 1 << 7;
const MASKABLE: u16 = 1 << 8;

/// The id of MSI-X's.
pub const CAPABILITY_MSIX: u8 = 0x11;

/// How many messages a function can send by MSI (PCI 3.0, 6.8.1.3); 0 if it can't.
pub fn messages(pci: &Pci, bdf: Bdf) -> u16 {
    let control = pci.capability(bdf, CAPABILITY_MSI).map(|at| pci.read16(bdf, at + 2));
    control.map_or(0, |control| 1 << (control >> 1 & 7))
}

/// How many entries a function's MSI-X table has (PCI 3.0, 6.8.2.3); 0 if there is none.
pub fn entries(pci: &Pci, bdf: Bdf) -> u16 {
    let control = pci.capability(bdf, CAPABILITY_MSIX).map(|at| pci.read16(bdf, at + 2));
    control.map_or(0, |control| (control & 0x7FF) + 1)
}

/// Where the capability at `at` has its data; the mask bits, if it has them, are four bytes behind.
fn data_at(at: u16, control: u16) -> u16 {
    if control & WIDE != 0 { at + 12 } else { at + 8 }
}

/// Masks the MSI capability at `at` and returns when what the device had sent has reached the root
/// complex, if it can be masked. The local APIC may get it a little later.
pub fn hold(pci: &Pci, bdf: Bdf, at: u16) {
    let control = pci.read16(bdf, at + 2);
    if control & MASKABLE != 0 {
        pci.write32(bdf, data_at(at, control) + 4, 1);
        pci.read32(bdf, data_at(at, control) + 4);
    }
}

/// Programs the physical MSI capability (PCI 3.0, 6.8.1) for one message, or turns it off.
pub fn program(
    pci: &Pci,
    bdf: Bdf,
    capability: Option<u16>,
    message: Option<Message>,
    masked: bool,
) {
    const ENABLE: u16 = 1;
    let Some(at) = capability else { return };
    let control = pci.read16(bdf, at + 2);
    let Some(m) = message else { return pci.write16(bdf, at + 2, 0) };
    let data = data_at(at, control);
    pci.write32(bdf, at + 4, m.address as u32);
    if control & WIDE != 0 {
        pci.write32(bdf, at + 8, (m.address >> 32) as u32);
    }
    pci.write16(bdf, data, m.data as u16);
    if control & MASKABLE != 0 {
        pci.write32(bdf, data + 4, masked.into());
    }
    pci.write16(bdf, at + 2, ENABLE);
}

/// Has a function of the host's own send this message.
pub fn program_own(pci: &Pci, bdf: Bdf, message: Message) {
    let command = pci.read16(bdf, COMMAND);
    pci.write16(bdf, COMMAND, command | COMMAND_BUS_MASTER);
    program(pci, bdf, pci.capability(bdf, CAPABILITY_MSI), Some(message), false);
}

/// Writes a physical MSI-X entry; without a message it is masked.
pub fn write_entry(at: u64, message: Option<Message>) {
    let write = |offset: u64, value: u32| {
        // SAFETY: callers pass an entry of a device's MSI-X table, whose pages
        // `AssignedDevice::new` mapped and which the guest can't reach.
        unsafe { core::ptr::write_volatile((at + offset) as *mut u32, value) }
    };
    write(12, 1);
    if let Some(m) = message {
        write(0, m.address as u32);
        write(4, (m.address >> 32) as u32);
        write(8, m.data);
        write(12, 0);
    }
}
