//! What ends the VM, and what never ends.

use crate::{rings, tables};
use core::arch::asm;
use machine::legacy::{self, Mode, USER_CODE, USER_DATA};
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

/// Protected mode without paging, with alignment checked.
const PLAIN: Mode = Mode { cr0: 0x4_0011, cr3: 0, cr4: 0 };
const ALIGNMENT: usize = 17;

/// A user whose stack isn't aligned and whose #AC has its handler in the same ring, so that its
/// delivery raises #AC, for ever (CVE-2015-5307).
pub fn alignment_for_ever(_: &str, _: &Boot) {
    static STACK: [core::sync::atomic::AtomicU64; 64] =
        [const { core::sync::atomic::AtomicU64::new(0) }; 64];
    const PUSHES: usize = 5 * 5;
    let stack = (&raw const STACK) as u32 + 257;
    let at = legacy::place() + PUSHES as u32 + 1;
    let mut code = [0; PUSHES + 4];
    let flags = 1 << 18 | 2;
    for (i, word) in [USER_DATA.into(), stack, flags, USER_CODE.into(), at].into_iter().enumerate()
    {
        // PUSH of a constant.
        code[5 * i] = 0x68;
        code[5 * i + 1..5 * i + 5].copy_from_slice(&word.to_le_bytes());
    }
    // IRET; PUSH EAX; JMP to itself.
    code[PUSHES..].copy_from_slice(&[0xCF, 0x50, 0xEB, 0xFE]);
    legacy::prepare();
    legacy::lead(ALIGNMENT, USER_CODE, at);
    // SAFETY: never returns; that is the attack. It writes words of its own stack.
    unsafe { legacy::execute(&PLAIN, &code, [0; 6]) };
}

/// A breakpoint on what the delivery of #DB writes, so that each raises the next (CVE-2015-8104).
pub fn debug_for_ever(_: &str, _: &Boot) {
    const ON_STACK_1: u64 = 1 << 32;
    let stack = rings::load_task_below();
    let table = idt::arena(0);
    let [low, high] = idt::gate(1, true);
    idt::write_gate(table, 1, [low | ON_STACK_1, high]);
    idt::on(1, |_| {});
    // SAFETY: never returns; that is the attack. Eight bytes, written.
    unsafe {
        asm!("mov dr0, {}", "mov dr7, {}", "2:", ".byte 0xF1", "jmp 2b",
             in(reg) stack - 8, in(reg) 0x9_0403u64, options(noreturn))
    }
}

/// An interrupt through a task gate.
pub fn task_gate(_: &str, _: &Boot) {
    const VECTOR: u8 = 0x30;
    legacy::prepare();
    legacy::lead_to_task(VECTOR.into());
    // SAFETY: the VM ends by it, or it comes back by an exception.
    unsafe { legacy::execute(&PLAIN, &[0xCD, VECTOR], [0; 6]) };
}

/// Resets; the plan has it start again, and there it does the same.
pub fn reboot(_: &str, _: &Boot) {
    println!("reboot");
    cpu::outb(0xCF9, 0x06);
    cpu::halt_forever()
}
