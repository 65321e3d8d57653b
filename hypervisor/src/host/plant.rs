//! Wrong entries, planted in what confines a guest when that guest asks for it: for the tests of
//! the audit, which must find each.
//!
//! Only in the image of those tests, `hypervisor-planted` (feature `plant`), where a guest with
//! this file's hypercall gets out of its VM. Knows formats by heart rather than by the code that
//! writes them: x86-64 page tables, those of each vendor's IOMMU (`vtd`, `amd`), SVM's control
//! block and maps (APM vol. 2, appendix B, 15.10, 15.11).

mod amd;
mod vtd;
mod words;

use crate::cpu;
use crate::cpu::vendor::audit::Outline;
use crate::iommu;
use crate::pci::{self, Config};
use crate::vm::Vm;
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::pc::Pc;
use ::iommu::{Bdf, Delivery, InterruptRoute, Vendor};
use words::{ADDRESS, LARGE, Target, read, set, write};

/// RAX of the hypercall; RCX says what is to be planted.
pub const HYPERCALL: u64 = u64::from_le_bytes(*b"PLANTED!");

const PAGE: u64 = 4096;
const WRITE: u64 = 1 << 1;
const UNCACHED: u64 = 1 << 4;
/// Guest-physical: nothing is there.
const NOWHERE: u64 = 0x9000_0000;
/// In the guest's memory.
const SOMEWHERE: u64 = 0x60_0000;
/// In the memory of the VM's own guest.
const INNER: u64 = 0x1_0000_0000 - 0x20_0000;
const BAR0: u16 = 0x10;

/// Where the leaf for an address is, in tables of so many levels whose entries tell by these bits,
/// with this value, that they are one.
fn leaf(root: u64, levels: u8, address: u64, (bits, value): (u64, u64)) -> u64 {
    let mut table = root;
    for level in (0..levels).rev() {
        let at = table + (address >> (12 + 9 * level) & 0x1FF) * 8;
        if level == 0 || read(at) & bits == value {
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

/// Puts in what must not be, about this VM or its vCPU of this outline, which is the one here;
/// false if there is no such thing.
pub fn plant(vm: &Vm, pc: &mut Pc, vcpu: &impl Outline, what: u64) -> bool {
    let block = vcpu.control_block();
    let (host, _) = crate::memory::image();
    let nested = pc.board().tables().nested_root();
    let (dma, levels) = (pc.board().tables().dma_root(), iommu::page_format());
    let levels = paging::Format::levels(&levels) as u8;
    let Some((_, device)) = pc.pci().assigned().next() else { return false };
    let (bdf, entry) = (device.bdf(), device.sources().entries().next().unwrap_or(0));
    let Some((vendor, registers)) = iommu::registers(bdf) else { return false };
    let own = vm.guest.remotes[0].apic_id;
    let route = |destination| {
        let delivery = Delivery::Fixed(0xF2);
        iommu::set_irte(entry, InterruptRoute { source: bdf, destination, delivery }).is_ok()
    };
    let stranger = Bdf::new(0, 0x1F, 0).unwrap_or(bdf);
    let target = Target { registers, device: bdf, entry, stranger, core: own };
    let (dma_leaf, unit): (_, fn(&Target, u64) -> Option<bool>) = match vendor {
        Vendor::Intel => (vtd::LEAF, vtd::plant),
        Vendor::Amd => (amd::LEAF, amd::plant),
    };
    if let Some(planted) = unit(&target, what) {
        return planted;
    }
    match what {
        // The host's own page, to be read.
        0 => pc.board_mut().tables_mut().map(NOWHERE, host, PAGE, paging::Access::READ).is_ok(),
        // The counters, writable.
        1 => set(leaf(nested, 4, crate::vm::LEDGER_PAGES, LARGE), |e| e | WRITE),
        // A page of its own memory leads to the host.
        2 => set(leaf(nested, 4, SOMEWHERE, LARGE), |e| e & !ADDRESS | host & !0x1F_FFFF),
        // A table that lies in its own memory.
        3 => {
            let (at, copy) = (top(nested, 4, 0), vm.guest.memory.resolve(SOMEWHERE, PAGE));
            let Some(copy) = copy else { return false };
            let table = read(at) & ADDRESS;
            (0..512).for_each(|i| write(copy + i * 8, read(table + i * 8)));
            set(at, |e| e & !ADDRESS | copy)
        }
        // Devices reach the host.
        4 => set(leaf(dma, levels, SOMEWHERE, dma_leaf), |e| e & !ADDRESS | host & !0x1F_FFFF),
        5 => set(top(dma, levels, 0), |e| e & !ADDRESS | host & ADDRESS),
        // Its device interrupts core 0, by a vector of nobody's; 8 to 15 are the unit's.
        6 => route(host_core()),
        7 => route(own),
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
        // A page of its guest's leads to the host, or to registers that aren't its device's.
        25 | 26 => {
            let Some(tables) = vcpu.inner_tables(read) else { return false };
            let (to, bits) = if what == 25 { (host, 0) } else { (registers, UNCACHED) };
            let to = to & ADDRESS | bits;
            set(leaf(tables.outline.root(), 4, INNER, LARGE), |e| e & !ADDRESS | to)
        }
        // A controller that a sidecore drives reaches the host instead of its last VM's memory.
        24 => {
            let Some((root, run)) = iommu::domain::root_and_last_run() else { return false };
            set(leaf(root, levels, run, dma_leaf), |e| e & !ADDRESS | host & !0x1F_FFFF)
        }
        _ => false,
    }
}

/// The APIC id of core 0.
fn host_core() -> u32 {
    cpu::get(0).map_or(0, |core| core.apic_id)
}
