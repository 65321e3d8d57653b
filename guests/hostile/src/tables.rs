//! What a guest does to its interrupt descriptor table, which the host reads and shadows.

use crate::fixture::{self, VECTOR};
use machine::alias::{ALIAS, map_alias};
use machine::{boot::Boot, cpu, edu, idt, pci, random::Random, wait, x2apic};

const WHOLE: u16 = (idt::TABLE_BYTES - 1) as u16;
const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;
const DOUBLE_FAULT: u8 = 8;
/// The host's own vectors.
const HOST: [u8; 2] = [0xF1, 0xF2];
const SEED: u64 = 0x1D7;

/// A whole table.
pub fn fill(base: u64) {
    (0..=255).for_each(|vector| idt::write_gate(base, vector, idt::gate(vector, true)));
}

/// Steps over INT n, whose gate failed, or completes the interrupt whose gate did.
fn forgive(frame: &mut idt::Frame) {
    // SAFETY: the address of code that was about to run.
    let software = unsafe { (frame.rip as *const u8).read() } == 0xCD;
    if software && frame.error & 1 == 0 && !x2apic::in_service((frame.error >> 3) as u8) {
        frame.rip += 2;
    } else {
        edu::acknowledge();
        x2apic::complete();
    }
}

/// Forgives every fault that a table's state can raise.
pub fn forgive_all() {
    [NOT_PRESENT, PROTECTION, DOUBLE_FAULT].iter().for_each(|v| idt::on(*v, forgive));
}

fn raise_some() {
    for _ in 0..20 {
        edu::raise();
        wait::ticks(100_000);
    }
}

/// Tables everywhere: across pages, odd, at the end of memory, in device registers, in the ledger's
/// page, where nothing is, at addresses that aren't canonical; used where they can be.
pub fn anywhere(_: &str, boot: &Boot) {
    for offset in [0x1000, 0x2008, 0x0A50, 0x20C3, 0x2FF0] {
        fill(idt::arena(offset));
        cpu::load_idt(idt::arena(offset), WHOLE);
        cpu::enable_interrupts();
        raise_some();
        cpu::disable_interrupts();
    }
    cpu::load_idt(idt::arena(0), WHOLE);
    let bar = fixture::device().map_or(0, |d| d.base());
    let places =
        [0, bar, 0xFEC0_0000, 0xFED0_0000, 0xFEE0_0000, 0x9000_0000, boot.memory_end() - 8];
    for base in places.into_iter().chain([0x7FFF_FFFF_FFFF, !0 << 47, !0xFFF]) {
        for limit in [0, 0xFF, 0xEFF, 0xF1F, WHOLE, 0xFFFF] {
            // SAFETY: interrupts are off and nothing faults until the old table is back.
            unsafe {
                let pointer = descriptor(base, limit);
                let home = descriptor(idt::arena(0), WHOLE);
                core::arch::asm!("lidt [{}]", "nop", "lidt [{}]", in(reg) pointer.as_ptr(),
                                 in(reg) home.as_ptr(), options(nostack, readonly));
            }
        }
        // Not canonical: #GP, or a base that never works.
        let pointer = descriptor(1 << 63 | base, WHOLE);
        let home = descriptor(idt::arena(0), WHOLE);
        idt::expect_fault();
        // SAFETY: as above; a fault resumes at label 2.
        unsafe {
            core::arch::asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "lidt [{p}]", "2:", "lidt [{h}]",
                t = out(reg) _, r = in(reg) idt::recovery(), p = in(reg) pointer.as_ptr(),
                h = in(reg) home.as_ptr())
        }
        let _ = idt::take_fault();
    }
}

fn descriptor(base: u64, limit: u16) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&limit.to_le_bytes());
    bytes[2..].copy_from_slice(&base.to_le_bytes());
    bytes
}

/// Limits that leave out the host's vectors, the device's, or cut a gate in two, while interrupts
/// come.
pub fn limits(_: &str, _: &Boot) {
    forgive_all();
    cpu::enable_interrupts();
    for limit in [WHOLE, 0xF2F, 0xF1F, 0xF1E, 0xF0F, 0xEFF, 0x40F, 0x408, 0x3FF, 0x1FF, WHOLE] {
        cpu::load_idt(idt::arena(0), limit);
        raise_some();
        for vector in HOST.into_iter().chain([VECTOR, 0xFF]) {
            idt::no_completion(true);
            idt::software_interrupt(vector);
            idt::no_completion(false);
        }
    }
}

/// Gates of every type, present and not, for the device's vector and the host's own: used by the
/// device and by INT n.
pub fn gates(_: &str, _: &Boot) {
    forgive_all();
    let table = idt::arena(0);
    for attributes in 0..=0xFFu64 {
        // Task gates among them, which raise #GP in long mode; all lead to the same segment, so
        // that no ring changes.
        for vector in HOST.into_iter().chain([VECTOR]) {
            let [low, high] = idt::gate(vector, true);
            idt::write_gate(table, vector, [low & !(0xFF << 40) | attributes << 40, high]);
        }
        cpu::enable_interrupts();
        edu::raise();
        wait::ticks(50_000);
        cpu::disable_interrupts();
        for vector in HOST {
            idt::no_completion(true);
            idt::software_interrupt(vector);
            idt::no_completion(false);
        }
    }
    fill(table);
}

/// Stores to the table's page as fast as they go, each way round, while interrupts come through it.
pub fn stores(_: &str, _: &Boot) {
    forgive_all();
    let table = idt::arena(0);
    let mut random = Random::new(SEED);
    cpu::enable_interrupts();
    for i in 0..3000u32 {
        let vector = [VECTOR, 0xF1, 0xF2, random.number() as u8 | 0x20][i as usize % 4];
        idt::write_gate(table, vector, idt::gate(vector, random.number() & 7 != 0));
        if i % 4 == 0 {
            edu::raise();
        }
        if i % 16 == 0 {
            (0x20..=0xFF).for_each(|v| idt::write_gate(table, v, idt::gate(v, true)));
        }
    }
    cpu::disable_interrupts();
    fill(table);
}

/// INT n on gates that it keeps not present itself, thousands of times.
pub fn not_present(_: &str, _: &Boot) {
    forgive_all();
    let table = idt::arena(0);
    for vector in HOST.into_iter().chain([0x55]) {
        idt::write_gate(table, vector, idt::gate(vector, false));
    }
    cpu::enable_interrupts();
    for i in 0..3000u32 {
        idt::software_interrupt([0x55, 0xF1, 0xF2][i as usize % 3]);
        if i % 50 == 0 {
            edu::raise();
        }
    }
    cpu::disable_interrupts();
    fill(table);
}

/// The handler of the fault not present either, so that a fault in delivery becomes a double fault.
pub fn double_faults(_: &str, _: &Boot) {
    forgive_all();
    let table = idt::arena(0);
    for vector in [NOT_PRESENT, 0x55, VECTOR] {
        idt::write_gate(table, vector, idt::gate(vector, false));
    }
    cpu::enable_interrupts();
    for i in 0..1000u32 {
        if i % 4 == 0 {
            edu::raise();
        }
        idt::software_interrupt(0x55);
    }
    cpu::disable_interrupts();
    fill(table);
}

/// The page behind the table's address exchanged, with LIDT and without, between two interrupts; in
/// the other page the host's gates lead to handlers of the guest's.
pub fn remapped(_: &str, _: &Boot) {
    forgive_all();
    let (first, second) = (idt::arena(0x1000), idt::arena(0x2000));
    fill(first);
    fill(second);
    map_alias(first);
    cpu::load_idt(ALIAS, WHOLE);
    cpu::enable_interrupts();
    x2apic::start_timer(0x51, true, 1_000_000);
    for i in 0..500u32 {
        map_alias(if i % 2 == 0 { second } else { first });
        edu::raise();
        wait::ticks(20_000);
        if i % 10 == 0 {
            cpu::load_idt(ALIAS, WHOLE);
        }
        idt::write_gate(first, 0xF1, idt::gate(0xF1, i % 4 == 0));
    }
    x2apic::stop_timer();
    cpu::disable_interrupts();
    cpu::load_idt(idt::arena(0), WHOLE);
}

/// The table moved in memory by the device's own DMA: a copy written over it from outside the CPU.
pub fn by_device(test: &str, boot: &Boot) {
    forgive_all();
    let Some(device) = fixture::needed_device(test) else { return };
    let (table, copy) = (idt::arena(0), boot.free_memory().start);
    for i in 0..idt::TABLE_BYTES as u64 / 8 {
        // SAFETY: a page of memory that the loader says is free, and the table.
        unsafe {
            let gate = ((table + i * 8) as *const u64).read_volatile();
            ((copy + i * 8) as *mut u64).write_volatile(gate);
        }
    }
    device.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    cpu::enable_interrupts();
    let _ = device.dma_from_memory(copy, idt::TABLE_BYTES as u64);
    edu::raise();
    let _ = device.dma_to_memory(table, idt::TABLE_BYTES as u64);
    edu::raise();
    wait::settle();
    cpu::disable_interrupts();
}
