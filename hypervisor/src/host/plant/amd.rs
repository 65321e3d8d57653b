//! What is planted in the tables and registers of an AMD-Vi unit (AMD IOMMU 48882, 2.2.2, 2.2.5,
//! 3.4). Where Intel's has a thing that this one hasn't, what comes next to it.

use super::words::{ADDRESS, Target, read, set, write};
use ::iommu::Bdf;

/// What says that an entry of its page tables is a leaf: no next level.
pub const LEAF: (u64, u64) = (7 << 9, 0);
/// In the device table's register: how many frames it has, less one.
const SIZE: u64 = 0x1FF;
/// In a device-table entry: how many levels there are to walk, and what becomes of interrupts.
const MODE: u64 = 7 << 9;
const FORWARD: u64 = 1 << 60;
const REMAP: u64 = 2 << 60;
/// In an interrupt entry: it is enabled; it is an NMI.
const REMAPS: u64 = 1;
const NMI: u64 = 3 << 2;

/// None if it isn't about the unit.
pub fn plant(target: &Target, what: u64) -> Option<bool> {
    let &Target { registers, device, entry, stranger, core } = target;
    let (own, other) = (device_entry(registers, device), device_entry(registers, stranger));
    let interrupts = read(own + 16) & ADDRESS;
    Some(match what {
        // Its device's interrupt is an NMI; another device has its interrupts.
        8 => set(interrupts + u64::from(entry) * 16, |e| e | NMI),
        9 => set(other + 16, |_| read(own + 16)),
        // Its device's interrupts pass as they are.
        10 => set(own + 16, |e| e & !REMAP | FORWARD),
        // An entry that nobody has.
        11 => {
            let at = interrupts + 255 * 16;
            write(at + 8, 0x40 | u64::from(core >> 24) << 56);
            set(at, |_| u64::from(core & 0xFF_FFFF) << 8 | REMAPS)
        }
        // Its device passes through; another one has its tables, or isn't confined at all.
        12 => set(own, |e| e & !MODE),
        13 => {
            write(other + 8, read(own + 8));
            set(other, |_| read(own))
        }
        14 => set(other, |_| 0),
        // Only the first 128 devices are confined. (A unit that is switched off is switched on
        // again with the next change of its control register, before anybody looks.)
        15 => set(registers, |table| table & !SIZE),
        _ => return None,
    })
}

/// A device's entry of the device table.
fn device_entry(registers: u64, device: Bdf) -> u64 {
    (read(registers) & ADDRESS) + u64::from(device.requester_id()) * 32
}
