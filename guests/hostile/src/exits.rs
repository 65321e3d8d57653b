//! Exits of every reason, as fast as they go.

use crate::fixture::{self, VECTOR};
use machine::{attempt, boot::Boot, console::check, cpu, idt, pci::Function, x2apic};

const STORM: u32 = 10_000;
const NOWHERE: u64 = 0x9000_0000;
const IOAPIC: u64 = 0xFEC0_0000;

/// CPUID of one leaf after the other.
pub fn cpuid(_: &str, _: &Boot) {
    for leaf in 0..STORM {
        cpu::cpuid([leaf, 0x4000_0000 | leaf, 0x8000_0000 | leaf][leaf as usize % 3]);
    }
}

/// RDMSR and WRMSR of what the host emulates.
pub fn msr(_: &str, _: &Boot) {
    for i in 0..STORM / 2 {
        let _ = cpu::try_rdmsr(0x1B);
        let _ = cpu::try_wrmsr(0x2FF, u64::from(i & 1) << 11);
    }
}

/// A port that nobody has.
pub fn port(_: &str, _: &Boot) {
    (0..STORM).for_each(|i| cpu::outb(0x80, i as u8));
}

/// Configuration space.
pub fn config(_: &str, _: &Boot) {
    for _ in 0..STORM / 512 {
        Function::all().for_each(|f| {
            f.read(0);
        });
    }
}

/// Loads and stores where nothing is.
pub fn nowhere(_: &str, _: &Boot) {
    for i in 0..u64::from(STORM) / 2 {
        cpu::mmio_write(NOWHERE + i * 4096, 1);
        let _ = cpu::try_load(NOWHERE + i * 4096);
    }
}

/// The IOAPIC's registers, every value.
pub fn ioapic(_: &str, _: &Boot) {
    for i in 0..STORM / 4 {
        cpu::mmio_write(IOAPIC, i & 0xFF);
        cpu::mmio_write(IOAPIC + 0x10, 1 << 16 | i << 8 | i & 0xFF);
        let _ = cpu::try_load(IOAPIC + 0x10);
        cpu::mmio_write(IOAPIC + 0x40, i & 0xFF);
    }
}

/// The MSI-X table of a controller.
pub fn msix(test: &str, _: &Boot) {
    let Some(nvme) = fixture::needed_controller(test) else { return };
    let Some((_, table)) = nvme.table() else { return check!(test, false, "no MSI-X table") };
    for i in 0..STORM / 2 {
        cpu::mmio_write(table + 12, 1);
        cpu::mmio_write(table + 8, i & 0xFFFF);
    }
}

/// Hypercalls and refused instructions, of either vendor's.
pub fn refused(_: &str, _: &Boot) {
    for _ in 0..STORM / 4 {
        let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xD9");
        let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xD8");
        let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xC1");
        let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xC2");
    }
}

/// LIDT of the table that is there, and a store to it. With an exit before: on a shared core a vCPU
/// may be in injection mode, in which neither exits, from a switch to its next exit.
pub fn table(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    for i in 0..STORM / 4 {
        cpu::cpuid(i);
        idt::load();
        idt::write_gate(idt::arena(0), VECTOR, idt::gate(VECTOR, true));
    }
    cpu::disable_interrupts();
}

/// Interrupt commands to itself.
pub fn command(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    (0..STORM / 2).for_each(|_| x2apic::send(x2apic::id(), 0x60));
    cpu::disable_interrupts();
}

/// INT of the vectors that the host keeps for itself.
pub fn hidden(_: &str, _: &Boot) {
    idt::no_completion(true);
    cpu::enable_interrupts();
    for _ in 0..STORM / 4 {
        idt::software_interrupt(0xF1);
        idt::software_interrupt(0xF2);
    }
    cpu::disable_interrupts();
    idt::no_completion(false);
}

/// HLT with a timer behind it, as often as it goes.
pub fn halt(_: &str, _: &Boot) {
    for _ in 0..300 {
        x2apic::start_timer(0x51, false, 20_000);
        cpu::halt_until_interrupt();
    }
    x2apic::stop_timer();
}
