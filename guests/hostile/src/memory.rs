//! DMA to where nothing of the guest's is, and MSI-X tables.
//!
//! At addresses from 0xFEE0_0000 to 0xFEEF_FFFF a write is an interrupt message. Those of the old
//! format are left out: QEMU delivers them whatever it is told (docs/security.md).

use crate::fixture::{self, VECTOR};
use core::arch::asm;
use machine::{
    boot::Boot, console::check, cpu, edu, idt, nvme::Nvme, random::Random, wait, x2apic,
};

const PAGE: u64 = 4096;
const SEED: u64 = 0xD3A;
/// The largest address that edu's engine can name (28 bits).
const EDU_LIMIT: u64 = 1 << 28;
const MESSAGES: core::ops::Range<u64> = 0xFEDF_F000..0xFEF0_0000;
const GIB: u64 = 1 << 30;

fn fill(at: u64, value: u64) {
    for i in 0..PAGE / 8 {
        // SAFETY: a page of memory that the loader says is free.
        unsafe { ((at + i * 8) as *mut u64).write_volatile(value) }
    }
}

fn is(at: u64, value: u64) -> bool {
    // SAFETY: as above.
    (0..PAGE / 8).all(|i| unsafe { ((at + i * 8) as *const u64).read_volatile() } == value)
}

/// By edu, out of memory that isn't the guest's and into it: what is read must tell nothing.
pub fn edu(test: &str, boot: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    let (pattern, target) = (boot.free_memory().start, boot.free_memory().start + PAGE);
    fill(pattern, 0x600D_600D_600D_600D);
    let end = boot.memory_end().next_multiple_of(1 << 20);
    let step = ((EDU_LIMIT - end.min(EDU_LIMIT)) / 6).max(PAGE) & !(PAGE - 1);
    let mut leaks = 0;
    for outside in (end..EDU_LIMIT).step_by(step as usize) {
        device.dma_from_memory(pattern, PAGE);
        device.dma_from_memory(outside, PAGE);
        fill(target, 0x1111_1111_1111_1111);
        device.dma_to_memory(target, PAGE);
        let silent = [0x600D_600D_600D_600D, 0, !0].into_iter().any(|v| is(target, v));
        leaks += u32::from(!silent);
        device.dma_to_memory(outside, PAGE);
    }
    if leaks > 0 {
        check!(test, false, "{leaks} reads of foreign memory showed something");
    }
}

/// By an NVMe controller, its answer written to addresses all over 64 bits: host, other VMs,
/// registers.
pub fn nvme(test: &str, boot: &Boot) {
    let Some(mut nvme) = fixture::needed_controller(test) else { return };
    let buffer = boot.free_memory().start;
    fill(buffer, 0);
    let own = nvme.start() && nvme.identify_to(buffer) == Some(0) && !is(buffer, 0);
    check!(test, own, "it answers to memory of its own");
    let end = boot.memory_end().next_multiple_of(1 << 20);
    // Where the machine has its memory, other VMs' and the host's, in small steps.
    let below = (end..5 * GIB / 4).step_by(3 << 20).chain((5 * GIB / 4..4 * GIB).step_by(37 << 20));
    let above = (4 * GIB..12 * GIB).step_by(409 << 20);
    let registers = [0xFEC0_0000, 0xFED0_0000, 0xFED9_0000, 0xE000_0000, 0xB000_0000, 0xD000_0000];
    let far = [1 << 39, 1 << 47, 1 << 51, 1 << 63, !0xFFF];
    for address in below.chain(above).chain(registers).chain(far) {
        // QEMU's controller says that all went well, whatever became of it.
        if !MESSAGES.contains(&address) && nvme.identify_to(address).is_none() {
            nvme.start();
        }
    }
    nvme.stop();
}

/// Its queues themselves in foreign memory, with a command to be fetched there, and doorbells of
/// queues that don't exist.
pub fn queues(test: &str, boot: &Boot) {
    let Some(mut nvme) = fixture::needed_controller(test) else { return };
    let end = boot.memory_end().next_multiple_of(1 << 20);
    for address in [0, end, end + (64 << 20), 2 * GIB - PAGE, 0xFED9_0000, 4 * GIB, 1 << 40, !0xFFF]
    {
        nvme.start_at(address, address);
        nvme.ring(1, 0);
        wait::ticks(2_000_000);
        nvme.ring_all();
        wait::ticks(2_000_000);
    }
    nvme.stop();
}

/// Writes to the interrupt window, four bytes each, in VT-d's own format (5.1.2.2): any handle, its
/// own source id.
pub fn forged(test: &str, _: &Boot) {
    let Some(mut nvme) = fixture::needed_controller(test) else { return };
    if !nvme.start() {
        return check!(test, false, "the controller doesn't start");
    }
    cpu::enable_interrupts();
    // Its own entry among them interrupts it; no other may.
    let others = || idt::everything() - idt::count(VECTOR);
    let before = others();
    let (mut sent, mut tried) = (0, 0);
    for handle in (0..256u64).chain([0x7FFF, 0xFFFF]) {
        let address = 0xFEE0_0000 | (handle & 0x7FFF) << 5 | 1 << 4 | handle >> 15 << 2;
        tried += 1;
        match nvme.word_to(address) {
            Some(_) => sent += 1,
            None => {
                nvme.start();
            }
        }
    }
    wait::settle();
    cpu::disable_interrupts();
    nvme.stop();
    let came = others() - before;
    check!(test, sent * 2 > tried, "{sent} of {tried} were sent by the controller");
    check!(test, came == 0, "{came} interrupts came of them");
}

/// A table of MSI-X, every word with noise, masked and unmasked at speed, enabled and not, while
/// the controller completes commands.
pub fn msix(test: &str, boot: &Boot) {
    let Some(mut nvme) = fixture::needed_controller(test) else { return };
    let Some((capability, table)) = nvme.table() else {
        return check!(test, false, "no MSI-X table");
    };
    let buffer = boot.free_memory().start;
    let mut random = Random::new(SEED);
    let control = nvme.function.read(capability);
    // QEMU's controller interrupts by MSI-X only if that was on when it was started.
    nvme.function.write(capability, control & 0xFFFF | 1 << 31);
    nvme.start();
    cpu::enable_interrupts();
    for round in 0..1500u32 {
        let r = random.number();
        let entry = table + (r & 3) * 16;
        // Mostly well-formed: this CPU or another, any vector, those of exceptions among them.
        let id = [0, r >> 8 & 0xF, 0x55, 0xFF][(r >> 16 & 3) as usize];
        let address = if r >> 20 & 7 == 0 { r >> 32 } else { 0xFEE0_0000 | id << 12 };
        let data = (r >> 24) as u32 & if r >> 56 & 3 == 0 { 0xFF1F } else { 0xFFFF };
        cpu::mmio_write(entry, address as u32);
        cpu::mmio_write(entry + 4, if r >> 60 == 0 { !0 } else { 0 });
        cpu::mmio_write(entry + 8, data & !0x700 | (r >> 40) as u32 & 0x700);
        cpu::mmio_write(entry + 12, round & 1);
        let _ = cpu::try_load(entry + (r >> 50 & 12));
        nvme.function.write(capability, control & 0xFFFF | (r as u32 & 3) << 30);
        if round % 16 == 0 {
            cpu::mmio_write(entry + 12, 0);
            nvme.function.write(capability, control & 0xFFFF | 1 << 31);
            let _ = nvme.identify_to(buffer);
        }
    }
    nvme.stop();
    nvme.function.write(capability, control & !(3 << 30));
    for entry in 0..4 {
        cpu::mmio_write(table + entry * 16 + 12, 1);
    }
    edu::acknowledge();
}

/// Vectors of exceptions: none of a local APIC's below 16; above it they may come, but don't have
/// to.
const RESERVED: [u32; 6] = [0x00, 0x02, 0x0E, 0x0F, 0x10, 0x1F];
/// The delivery modes fixed, lowest priority and NMI; fixed and level-triggered.
const MODES: [u32; 4] = [0, 1 << 8, 4 << 8, 0xC000];

/// The entry of the controller's completions at vectors that are exceptions', for every CPU that
/// might be, itself too: programmed so while nothing is sent, and made so of a good one while it
/// sends.
pub fn msix_reserved(test: &str, boot: &Boot) {
    let Some(mut nvme) = fixture::needed_controller(test) else { return };
    let Some((capability, table)) = nvme.table() else {
        return check!(test, false, "no MSI-X table");
    };
    let buffer = boot.free_memory().start;
    let control = nvme.function.read(capability) & !(3 << 30);
    [0x10, 0x1F, VECTOR].into_iter().for_each(|v| idt::on(v, |_| x2apic::complete()));
    // In this order: see above.
    nvme.function.write(capability, control | 1 << 31);
    nvme.start();
    cpu::enable_interrupts();
    let below = || (0..16).map(idt::count).sum::<u64>();
    let (before, mut sent) = (below(), 0);
    let at_first = completion_comes(&mut nvme, table, buffer);
    for id in (0..16).chain([0x55, 0xFF]) {
        for vector in RESERVED {
            for mode in MODES {
                aim(table, id, mode | vector);
                sent += u32::from(nvme.identify_to(buffer).is_some());
            }
            aim(table, 0, VECTOR.into());
            nvme.ring(sent, 0);
            cpu::mmio_write(table + 8, vector);
            cpu::mmio_write(table, edu::message_address(id) as u32);
            // Its queues have lost count by now.
            nvme.start();
        }
    }
    wait::settle();
    let n = below() - before;
    let at_last = completion_comes(&mut nvme, table, buffer);
    cpu::disable_interrupts();
    nvme.stop();
    nvme.function.write(capability, control);
    cpu::mmio_write(table + 12, 1);
    check!(
        test,
        at_first && at_last && n == 0,
        "{n} of {sent} came to vectors below 16; to a good one they come before {at_first}, after {at_last}"
    );
}

/// Programs the first entry, masked meanwhile.
fn aim(table: u64, id: u32, data: u32) {
    cpu::mmio_write(table + 12, 1);
    cpu::mmio_write(table, edu::message_address(id) as u32);
    cpu::mmio_write(table + 4, 0);
    cpu::mmio_write(table + 8, data);
    cpu::mmio_write(table + 12, 0);
}

/// Whether a completion interrupts by the first entry, when that is good.
fn completion_comes(nvme: &mut Nvme, table: u64, buffer: u64) -> bool {
    aim(table, 0, VECTOR.into());
    let before = idt::count(VECTOR);
    nvme.identify_to(buffer) == Some(0) && wait::until(|| idt::count(VECTOR) > before)
}

/// The table by odd widths, at odd places and beyond its end.
pub fn msix_widths(test: &str, _: &Boot) {
    let Some(nvme) = fixture::needed_controller(test) else { return };
    let Some((_, table)) = nvme.table() else { return check!(test, false, "no MSI-X table") };
    let mut random = Random::new(SEED);
    for _ in 0..2000 {
        let r = random.number();
        let at = table + (r & 0xFFF);
        // SAFETY: device registers, or nothing.
        unsafe {
            match r >> 12 & 3 {
                0 => asm!("mov [{}], {:l}", in(reg) at, in(reg_abcd) r >> 16),
                1 => asm!("mov [{}], {:x}", in(reg) at, in(reg) r >> 16),
                2 => asm!("mov [{}], {}", in(reg) at, in(reg) r),
                _ => asm!("mov {:x}, [{}]", out(reg) _, in(reg) at),
            }
        }
    }
    for entry in 0..4 {
        cpu::mmio_write(table + entry * 16 + 12, 1);
    }
}
