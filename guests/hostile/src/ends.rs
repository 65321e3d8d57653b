//! What ends the VM, and what never ends.

use core::arch::asm;
use machine::{boot::Boot, cpu};

/// Takes away the IDT, then faults.
pub fn triple_fault(_: &str, _: &Boot) {
    cpu::load_idt(0, 0);
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// Keeps the core and lets nothing in.
pub fn off_for_ever(_: &str, _: &Boot) {
    cpu::disable_interrupts();
    // SAFETY: never returns; that is the attack.
    unsafe { asm!("2:", "jmp 2b", options(noreturn)) }
}
