//! Wrong entries, planted in what confines a guest when that guest asks for it: for the tests of
//! the audit, which must find each.
//!
//! Only in the image of those tests, `hypervisor-planted` (feature `plant`), where a guest with
//! this file's hypercall gets out of its VM. Knows formats by heart rather than by the code that
//! writes them: x86-64 page tables, VT-d's (11.4, 9.1, 9.10), SVM's control block and maps (APM
//! vol. 2, appendix B, 15.10, 15.11).

use crate::cpu;
use crate::iommu;
use crate::pci::{self, Config};
use crate::vm::Vm;
use crate::vm::pc::Pc;
use ::iommu::{Bdf, Delivery, InterruptRoute};

/// RAX of the hypercall; RCX says what is to be planted.
pub const HYPERCALL: u64 = u64::from_le_bytes(*b"PLANTED!");

const PAGE: u64 = 4096;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
/// Guest-physical: nothing is there.
const NOWHERE: u64 = 0x9000_0000;
/// In the guest's memory.
const SOMEWHERE: u64 = 0x60_0000;
/// Where VT-d has what (11.4).
const COMMAND: u64 = 0x18;
const STATUS: u64 = 0x1C;
const ROOT: u64 = 0x20;
const INTERRUPTS: u64 = 0xB8;
const TRANSLATES: u32 = 1 << 31;
const BAR0: u16 = 0x10;
/// Commands that are done once, and not status.
const ONCE: u32 = 0x6900_0000;

fn read(pa: u64) -> u64 {
    // SAFETY: a table of ours, identity-mapped; that what is done with it is wrong is the purpose.
    unsafe { (pa as *const u64).read_volatile() }
}

fn write(pa: u64, value: u64) {
    // SAFETY: as above.
    unsafe { (pa as *mut u64).write_volatile(value) }
}

/// Where the leaf for an address is, in tables of so many levels.
fn leaf(root: u64, levels: u8, address: u64) -> u64 {
    let mut table = root;
    for level in (0..levels).rev() {
        let at = table + (address >> (12 + 9 * level) & 0x1FF) * 8;
        if level == 0 || read(at) & LARGE != 0 {
            return at;
        }
        table = read(at) & ADDRESS;
    }
    table
}

/// The entry of the root itself for an address.
fn top(root: u64, levels: u8, address: u64) -> u64 {
    root + (address >> (12 + 9 * (levels - 1)) & 0x1FF) * 8
}

/// Puts in what must not be, about this VM or its vCPU with this control block, which is the one
/// here; false if there is no such thing.
pub fn plant(vm: &Vm, pc: &mut Pc, block: u64, what: u64) -> bool {
    let (host, _) = crate::memory::image();
    let nested = pc.board().tables().nested_root();
    let (dma, levels) = (pc.board().tables().dma_root(), iommu::page_format());
    let levels = paging::Format::levels(&levels) as u8;
    let Some(device) = pc.pci().devices().first() else { return false };
    let (bdf, entry) = (device.bdf(), device.entries().next().unwrap_or(0));
    let registers = iommu::registers(bdf).unwrap_or(0);
    let own = vm.guest.remotes[0].apic_id;
    let route = |source, destination, delivery| {
        iommu::set_irte(entry, InterruptRoute { source, destination, delivery }).is_ok()
    };
    let fixed = Delivery::Fixed(0xF2);
    let stranger = Bdf::new(0, 0x1F, 0).unwrap_or(bdf);
    match what {
        // The host's own page, to be read.
        0 => pc.board_mut().tables_mut().map(NOWHERE, host, PAGE, paging::Access::READ).is_ok(),
        // The counters, writable.
        1 => set(leaf(nested, 4, crate::vm::LEDGER_PAGES), |e| e | WRITE),
        // A page of its own memory leads to the host.
        2 => set(leaf(nested, 4, SOMEWHERE), |e| e & !ADDRESS | host & !0x1F_FFFF),
        // A table that lies in its own memory.
        3 => {
            let (at, copy) = (top(nested, 4, 0), vm.guest.memory.resolve(SOMEWHERE, PAGE));
            let Some(copy) = copy else { return false };
            let table = read(at) & ADDRESS;
            (0..512).for_each(|i| write(copy + i * 8, read(table + i * 8)));
            set(at, |e| e & !ADDRESS | copy)
        }
        // Devices reach the host.
        4 => set(leaf(dma, levels, SOMEWHERE), |e| e & !ADDRESS | host & !0x1F_FFFF),
        5 => set(top(dma, levels, 0), |e| e & !ADDRESS | host & ADDRESS),
        // Its device interrupts core 0, by a vector of nobody's, as an NMI, for another's source.
        6 => route(bdf, host_core(), fixed),
        7 => route(bdf, own, fixed),
        8 => route(bdf, own, Delivery::Nmi),
        9 => route(stranger, own, fixed),
        // Any source.
        10 => {
            let at = (read(registers + INTERRUPTS) & ADDRESS) + u64::from(entry) * 16;
            write(at + 8, 0);
            set(at, |e| e | PRESENT)
        }
        // An entry that no device has.
        11 => {
            let at = (read(registers + INTERRUPTS) & ADDRESS) + 4095 * 16;
            write(at + 8, 1 << 18 | u64::from(bdf.requester_id()));
            set(at, |_| u64::from(own) << 32 | 0x40 << 16 | PRESENT)
        }
        // Its device passes through; another one has its tables; a bus that has none.
        12 => set(context(registers, bdf), |e| e | 2 << 2),
        13 => {
            let (from, to) = (context(registers, bdf), context(registers, stranger));
            write(to + 8, read(from + 8));
            set(to, |_| read(from))
        }
        14 => set((read(registers + ROOT) & ADDRESS) + 0x55 * 16, |_| host | PRESENT),
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
        // Its device answers at ports; its registers are elsewhere.
        16 => {
            let bus = pc.pci().physical();
            bus.write16(bdf, pci::COMMAND, bus.read16(bdf, pci::COMMAND) | pci::COMMAND_IO);
            true
        }
        17 => {
            let bus = pc.pci().physical();
            bus.write32(bdf, BAR0, bus.read32(bdf, BAR0) ^ 0x1000_0000);
            true
        }
        // WBINVD doesn't exit; writes of APIC_BASE and accesses to port 0x60 don't.
        18 => set(block + 0x10, |e| e & !(1 << 9)),
        19 => set(read(block + 0x48), |e| e & !(1 << (2 * 0x1B + 1))),
        20 => set(read(block + 0x40) + 8, |e| e & !(1 << (0x60 - 64))),
        // A local source of its core sends interrupts.
        21 => {
            cpu::x2apic::plant_source();
            true
        }
        // Interrupts come to its core when the guest is gone; then the host itself faults there.
        22 | 23 => {
            cpu::x2apic::late::expect(what == 23);
            true
        }
        _ => false,
    }
}

/// The APIC id of core 0.
fn host_core() -> u32 {
    cpu::get(0).map_or(0, |core| core.apic_id)
}

fn set(at: u64, change: impl FnOnce(u64) -> u64) -> bool {
    write(at, change(read(at)));
    true
}

/// A device's context entry; its bus has a table.
fn context(registers: u64, device: Bdf) -> u64 {
    let root = read(registers + ROOT) & ADDRESS;
    let table = read(root + u64::from(device.bus()) * 16) & ADDRESS;
    table + u64::from(device.requester_id() & 0xFF) * 16
}
