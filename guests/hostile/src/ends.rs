//! What ends the VM, and what never ends.

use crate::tables;
use core::arch::asm;
use machine::{alias, attempt, boot::Boot, console::println, cpu, idt};

/// No memory, no device.
const NOWHERE: u64 = 0x9000_0000;

/// Takes away the IDT, then faults.
pub fn triple_fault(_: &str, _: &Boot) {
    cpu::load_idt(0, 0);
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// Code where nothing is.
pub fn wild_jump(_: &str, _: &Boot) {
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("jmp {}", in(reg) NOWHERE, options(noreturn)) }
}

/// Page tables where nothing is.
pub fn wild_tables(_: &str, _: &Boot) {
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("mov cr3, {}", "ud2", in(reg) NOWHERE, options(noreturn)) }
}

/// Reserved bits of CR3 and CR4.
pub fn bad_cr4(_: &str, _: &Boot) {
    for _ in 0..1000 {
        let _ = attempt!(1u64 << 63 | 0x20, "mov cr4, {v}");
        let _ = attempt!(1u64 << 51, "mov cr3, {v}");
    }
}

/// An interrupt table where nothing is, used.
pub fn wild_table(_: &str, _: &Boot) {
    cpu::load_idt(NOWHERE, 0xFFF);
    idt::software_interrupt(0x60);
}

/// Unmaps the page behind the IDTR's address, then needs it.
pub fn unmapped_table(_: &str, _: &Boot) {
    tables::fill(idt::arena(0x1000));
    alias::map_alias(idt::arena(0x1000));
    cpu::load_idt(alias::ALIAS, 0xFFF);
    alias::map_alias(0);
    idt::software_interrupt(0x60);
}

/// FXSAVE to the IOAPIC.
pub fn unemulated(_: &str, _: &Boot) {
    // SAFETY: 512 bytes of device registers, which no one needs.
    unsafe { asm!("fxsave [{}]", in(reg) 0xFEC0_0000u64) }
}

/// Keeps the core and lets nothing in.
pub fn off_for_ever(_: &str, _: &Boot) {
    cpu::disable_interrupts();
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("2:", "jmp 2b", options(noreturn)) }
}

/// Sleeps and lets nothing in.
pub fn idle_for_ever(_: &str, _: &Boot) {
    cpu::halt_forever()
}

/// Never comes out of a handler's storm of interrupts to itself.
pub fn storm_for_ever(_: &str, _: &Boot) {
    idt::on(0xFE, |_| {
        machine::x2apic::self_ipi(0xFE);
        machine::x2apic::complete();
    });
    cpu::enable_interrupts();
    machine::x2apic::self_ipi(0xFE);
    loop {
        cpu::pause();
    }
}

/// Resets; the plan has it start again, and there it does the same.
pub fn reboot(_: &str, _: &Boot) {
    println!("reboot");
    cpu::outb(0xCF9, 0x06);
    cpu::halt_forever()
}
