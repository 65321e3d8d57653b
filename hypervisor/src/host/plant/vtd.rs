//! What is planted in the tables and registers of a VT-d unit (VT-d 11.4, 9.1, 9.3, 9.10).

use super::words::{ADDRESS, LARGE, Target, read, set, write};
use crate::iommu;
use ::iommu::{Bdf, Delivery, InterruptRoute};

/// What says that an entry of its page tables is a leaf.
pub const LEAF: (u64, u64) = LARGE;
const COMMAND: u64 = 0x18;
const STATUS: u64 = 0x1C;
const ROOT: u64 = 0x20;
const INTERRUPTS: u64 = 0xB8;
const PRESENT: u64 = 1;
const TRANSLATES: u32 = 1 << 31;
/// Commands that are done once, and not status.
const ONCE: u32 = 0x6900_0000;

/// None if it isn't about the unit.
pub fn plant(target: &Target, what: u64) -> Option<bool> {
    let &Target { registers, device, entry, stranger, core } = target;
    let route = |source, delivery| {
        iommu::set_irte(entry, InterruptRoute { source, destination: core, delivery }).is_ok()
    };
    Some(match what {
        // Its device's interrupt is an NMI, or another's.
        8 => route(device, Delivery::Nmi),
        9 => route(stranger, Delivery::Fixed(0xF2)),
        // Any source.
        10 => {
            let at = (read(registers + INTERRUPTS) & ADDRESS) + u64::from(entry) * 16;
            write(at + 8, 0);
            set(at, |e| e | PRESENT)
        }
        // An entry that no device has.
        11 => {
            let at = (read(registers + INTERRUPTS) & ADDRESS) + 4095 * 16;
            write(at + 8, 1 << 18 | u64::from(device.requester_id()));
            set(at, |_| u64::from(core) << 32 | 0x40 << 16 | PRESENT)
        }
        // Its device passes through; another one has its tables; a bus that has none.
        12 => set(context(registers, device), |e| e | 2 << 2),
        13 => {
            let (from, to) = (context(registers, device), context(registers, stranger));
            write(to + 8, read(from + 8));
            set(to, |_| read(from))
        }
        14 => set((read(registers + ROOT) & ADDRESS) + 0x55 * 16, |_| {
            crate::memory::image().0 | PRESENT
        }),
        // Nothing is translated any more.
        15 => {
            let at = |offset| (registers + offset) as *mut u32;
            // SAFETY: the unit's registers, mapped since boot.
            unsafe {
                let status = at(STATUS).read_volatile();
                at(COMMAND).write_volatile(status & !(TRANSLATES | ONCE));
            }
            true
        }
        _ => return None,
    })
}

/// A device's context entry; its bus has a table.
fn context(registers: u64, device: Bdf) -> u64 {
    let root = read(registers + ROOT) & ADDRESS;
    let table = read(root + u64::from(device.bus()) * 16) & ADDRESS;
    table + u64::from(device.requester_id() & 0xFF) * 16
}
