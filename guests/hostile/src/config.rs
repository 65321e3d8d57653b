//! PCI configuration space: what isn't there, what isn't the guest's, and its own device's
//! registers.

use crate::fixture::{self, VECTOR};
use machine::{
    boot::Boot, console::check, cpu, edu, idt, nvme::Nvme, pci, pci::Function, random::Random, wait,
};

const SEED: u64 = 0xC0F1;
const ADDRESS: u16 = 0xCF8;
const DATA: u16 = 0xCFC;
const IOAPIC: u32 = 0xFEC0_0000;
const LOCAL_APIC: u32 = 0xFEE0_0000;
const LEDGER: u32 = 0xFED0_0000;
const IOMMU: u32 = 0xFED9_0000;
/// Configuration space in memory, as the MCFG of these guests has it.
const WINDOW: u64 = 0xE000_0000;
const WINDOW_BYTES: u64 = 1 << 20;
/// Inside the window that guests have for BARs.
const INSIDE: u32 = 0xD000_0000;

/// Functions and buses that aren't there, read and written.
pub fn absent(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for function in Function::all().filter(|f| !f.present()) {
        for register in [0, 4, 0x10, 0x34, 0x3C, 0xFC] {
            function.write(register, random.number() as u32);
        }
    }
    for bus in 1..=255u32 {
        for register in [0, 4, 0x10, 0x18, 0x34] {
            cpu::outl(ADDRESS, 1 << 31 | bus << 16 | register);
            cpu::outl(DATA, !0);
            cpu::inl(DATA);
        }
    }
}

/// The mechanism itself: every width, unaligned, reserved bits, not enabled.
pub fn mechanism(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for _ in 0..5000 {
        let r = random.number();
        cpu::outl(ADDRESS, (r >> 32) as u32);
        let port = ADDRESS + (r & 7) as u16;
        match r >> 3 & 3 {
            0 => cpu::outb(port, if port == 0xCF9 { 0 } else { r as u8 }),
            1 => cpu::outw(port, (r >> 8) as u16),
            2 => cpu::outl(port, (r >> 8) as u32),
            _ => {
                cpu::inb(port);
                cpu::inl(port);
            }
        }
    }
}

/// Every register of every function that answers, with noise and with single bits; command, BARs,
/// capabilities among them.
pub fn noise(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for function in Function::all().filter(|f| f.present()) {
        let saved = registers(function);
        for _ in 0..3000 {
            let (register, value) = (random.number() as u8, random.number());
            let value = if value >> 63 == 1 { value as u32 } else { 1 << (value % 32) };
            function.write(register, value);
            function.read(register);
        }
        restore(function, &saved);
    }
}

fn registers(function: Function) -> [u32; 64] {
    core::array::from_fn(|i| function.read(i as u8 * 4))
}

fn restore(function: Function, saved: &[u32; 64]) {
    function.write(pci::COMMAND, 0);
    for i in (4..64).rev() {
        function.write(i as u8 * 4, saved[i]);
    }
    function.write(pci::COMMAND, saved[1]);
}

/// Configuration space in memory, its window and a little beyond, by every width, aligned or not,
/// with noise; half of it in the registers of functions that answer.
pub fn memory(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for function in Function::all().filter(|f| f.present()) {
        let saved = registers(function);
        let own = u64::from(function.device) << 15 | u64::from(function.function) << 12;
        for _ in 0..1500 {
            let (place, value) = (random.number(), random.number());
            let register = place >> 32 & if place >> 2 & 3 == 0 { 0xFFF } else { 0xFF };
            let anywhere = (place >> 16) % (WINDOW_BYTES + 16);
            let at = WINDOW + if place & 1 == 0 { anywhere } else { own | register };
            let aligned = if place >> 1 & 1 == 0 { 0 } else { 7 };
            match place >> 4 & 7 {
                0 => cpu::mmio_write8(at, value as u8),
                1 => cpu::mmio_write16(at & !(aligned & 1), value as u16),
                2 | 3 => cpu::mmio_write(at & !(aligned & 3), value as u32),
                4 => cpu::mmio_write64(at & !aligned, value),
                5 => _ = cpu::mmio_read8(at),
                6 => _ = cpu::mmio_read16(at & !(aligned & 1)),
                _ => _ = cpu::try_load(at & !(aligned & 3)),
            }
        }
        restore(function, &saved);
    }
}

/// Its device's registers over memory, over the APICs, the ledger, the host's IOMMU, nothing.
pub fn bars(test: &str, boot: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    let home = device.base() as u32;
    let memory = boot.memory_end() as u32;
    let fixed =
        [0, 0x10_0000, 0x100_0000, memory - 0x10_0000, memory, IOAPIC, LOCAL_APIC, LEDGER, IOMMU];
    for target in fixed.into_iter().chain([INSIDE, 0xFFF0_0000, home]) {
        device.function.write(pci::BAR0, target);
        device.function.write(pci::COMMAND, 0);
        device.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        let at = u64::from(device.function.read(pci::BAR0) & !0xF);
        if at >= boot.memory_end() && at != u64::from(IOAPIC) && at != u64::from(LEDGER) {
            cpu::mmio_write(at + 0x20, 0);
            let _ = cpu::try_load(at);
        }
    }
}

/// The registers of its two devices on top of each other, the one's whole and a part of the
/// other's, while both do DMA; switched off in turns, when the other has the place, and at speed.
pub fn overlaid(test: &str, boot: &Boot) {
    let (Some(device), Some(mut nvme)) = (fixture::device(), Nvme::find()) else {
        return check!(test, false, "no two devices");
    };
    let (edu_home, nvme_home, buffer) =
        (device.base() as u32, nvme.base() as u32, boot.free_memory().start);
    let mut wrong = [0; 3];
    // Edu's onto the controller's; then the controller's onto edu's: its beginning, its middle, its
    // end.
    let places = [
        (nvme_home, nvme_home),
        (edu_home, edu_home),
        (edu_home, edu_home + 0x8_0000),
        (edu_home, edu_home + 0xF_C000),
    ];
    for (edu_at, nvme_at) in places {
        device.move_to(edu_home);
        nvme.move_to(nvme_home);
        wrong[0] += u32::from(!nvme.start());
        device.start_from_memory(buffer, 4096);
        nvme.ring(4, 0);
        device.move_to(edu_at);
        nvme.move_to(nvme_at);
        for offset in (0..EDU_BYTES).step_by(4096) {
            cpu::mmio_write(device.base() + offset, 0);
            let _ = cpu::try_load(device.base() + offset);
        }
        wrong[1] += u32::from(identity(&device) || version(&nvme));
        nvme.function.write(pci::COMMAND, 0);
        wrong[2] += u32::from(!identity(&device));
        device.function.write(pci::COMMAND, 0);
        nvme.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        wrong[2] += u32::from(!version(&nvme));
        for i in 0..40u32 {
            device.function.write(pci::COMMAND, (i & 1) * pci::MEMORY_AND_MASTER);
            nvme.function.write(pci::COMMAND, (i >> 1 & 1) * pci::MEMORY_AND_MASTER);
            nvme.ring(4 + i, i);
            edu::raise();
        }
        device.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        nvme.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    }
    device.move_to(edu_home);
    nvme.move_to(nvme_home);
    let answers = identity(&device) && nvme.start() && nvme.identify_to(buffer) == Some(0);
    nvme.stop();
    let [apart, both, alone] = wrong;
    check!(
        test,
        wrong == [0; 3] && answers,
        "wrong: {apart} times apart, {both} on top of each other, {alone} when one is off; both answer at last: \
         {answers}"
    );
}

/// Bytes of edu's registers.
const EDU_BYTES: u64 = 1 << 20;

/// Does it answer where it says it is?
fn identity(device: &edu::Edu) -> bool {
    cpu::try_load(device.base()) == Ok(edu::IDENTIFICATION)
}

/// The same of a controller: its version's register.
fn version(nvme: &Nvme) -> bool {
    cpu::try_load(nvme.base() + 8).is_ok_and(|version| version >> 16 == 1)
}

/// Sized, moved and switched off while its DMA is under way and its interrupts come.
pub fn under_way(test: &str, boot: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    let home = device.base() as u32;
    let buffer = boot.free_memory().start;
    cpu::enable_interrupts();
    for i in 0..30u32 {
        device.start_from_memory(buffer, 4096);
        edu::raise();
        for _ in 0..20 {
            device.function.write(pci::BAR0, !0);
            device.function.read(pci::BAR0);
            device.function.write(pci::BAR0, if i % 2 == 0 { INSIDE } else { home });
            device.function.write(pci::COMMAND, (i % 8) << 1);
            device.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        }
        device.move_to(home);
    }
    device.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    device.move_to(home);
}

/// Capabilities that reset, hide or multiply a function: every bit of each, whether it is shown or
/// not, and of extended ones at the same place.
pub fn capabilities(_: &str, _: &Boot) {
    for function in Function::all().filter(|f| f.present()) {
        for id in [0x01u8, 0x05, 0x10, 0x11, 0x13, 0x03, 0x12] {
            let Some(at) = function.capability(id) else { continue };
            let saved: [u32; 6] =
                core::array::from_fn(|i| function.read(at.saturating_add(i as u8 * 4)));
            for bit in 0..32 {
                for register in 0..6u8 {
                    function.write(at.saturating_add(register * 4), 1 << bit);
                }
            }
            // Power state D3 and back, function-level reset.
            function.write(at.saturating_add(4), 3);
            function.write(at.saturating_add(8), 1 << 15);
            wait::ticks(1_000_000);
            for (i, value) in (0..6u8).zip(saved).rev() {
                function.write(at.saturating_add(i * 4), value);
            }
        }
    }
}

/// MSI switched on and off, aimed anew, while the device raises.
pub fn rewritten(test: &str, _: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    (0x41..0x80).for_each(|v| idt::on(v, edu::handler));
    cpu::enable_interrupts();
    for i in 0..2000u32 {
        let vector = 0x41 + (i % 0x3F) as u8;
        device.aim(vector);
        edu::raise();
        match i % 4 {
            0 => device.set_vector(VECTOR),
            1 => device.silence(),
            2 => device.route((i % 16) as usize),
            _ => {}
        }
        edu::raise();
    }
}

/// Messages to every CPU that might be, in every mode, at vectors that nobody may send; in VT-d's
/// own format; to memory.
pub fn messages(test: &str, _: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    cpu::enable_interrupts();
    for id in (0..16).chain([0x55, 0xFF]) {
        for mode in 0..8u32 {
            for vector in [0x00, 0x0E, 0x1F, 0xF1, 0xF2, 0xFF] {
                let own = id == 0 && mode <= 1 || id == 0xFF;
                if own && vector < 0x20 {
                    continue;
                }
                for flags in [0, 0xC, 1 << 15] {
                    device.program(
                        edu::message_address(id) | flags & 0xC,
                        flags as u32 & 0xC000 | mode << 8 | vector,
                        true,
                    );
                    edu::raise();
                }
            }
        }
    }
    for handle in 0..256 {
        device.program(0xFEE0_0000 | handle << 5 | 1 << 4 | handle >> 7 << 3, handle as u32, true);
        edu::raise();
    }
    for address in [0x20_0000, 0xFED9_0000, 0xFEC0_0000, 1 << 40 | 0xFEE0_0000, 0xFEDF_FFFC] {
        device.program(address, 0x41, true);
        edu::raise();
    }
}
