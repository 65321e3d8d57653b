//! A guest's own exceptions and software interrupts reach the guest's own handlers,
//! also those that a shadow IDT uses for itself (#NP, #GP).

use super::edu;
use crate::{boot::Boot, console::check, counters, counters::Policy, cpu, edu, idt, x2apic};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const DOUBLE_FAULT: u8 = 8;
const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;
/// Bit 1 of a selector error code: the index is into the IDT.
const IN_IDT: u64 = 2;

static OPCODE: AtomicU64 = AtomicU64::new(0);

/// The error code of a fault on the gate of `vector`, by an instruction.
fn gate_error(vector: u8) -> u64 {
    u64::from(vector) * 8 + IN_IDT
}

/// One of each kind.
pub fn exceptions(test: &str, _: &Boot) {
    idt::on(0, |f| f.rip += 2);
    // SAFETY: the handler skips the two bytes of DIV ECX; the quotient is never used.
    unsafe {
        asm!("xor edx, edx", "xor ecx, ecx", "div ecx", out("eax") _, out("ecx") _, out("edx") _)
    }
    check!(test, idt::count(0) == 1, "#DE");
    idt::on(3, |_| {});
    // SAFETY: the handler returns.
    unsafe { asm!("int3") }
    check!(test, idt::count(3) == 1, "#BP");
    idt::on(6, |f| f.rip += 2);
    // SAFETY: the handler skips it.
    unsafe { asm!("ud2") }
    check!(test, idt::count(6) == 1, "#UD");
    idt::on(1, |f| f.rflags &= !0x100);
    // SAFETY: the handler ends single-stepping.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop", "nop") }
    check!(test, idt::count(1) == 1, "#DB, single step");
    // Non-canonical: #GP without page tables.
    let fault = cpu::try_load(1 << 63).err();
    check!(test, fault == Some(idt::Fault { vector: PROTECTION, error: 0 }), "#GP: {fault:x?}");
    // Canonical and beyond the identity map.
    let fault = cpu::try_load(0x12_3456_7000).err();
    let good = fault == Some(idt::Fault { vector: PAGE_FAULT, error: 0 });
    check!(test, good && cpu::cr2() == 0x12_3456_7000, "#PF: {fault:x?}, CR2 {:#x}", cpu::cr2());
}

/// Gates the guest itself keeps not present, and INT n on every other.
pub fn true_np(test: &str, _: &Boot) {
    let table = idt::arena(0);
    idt::on(NOT_PRESENT, skip_software_interrupt);
    idt::on(PROTECTION, skip_software_interrupt);
    idt::on(DOUBLE_FAULT, skip_software_interrupt);

    idt::write_gate(table, 0x55, idt::gate(0x55, false));
    idt::software_interrupt(0x55);
    check_software_fault(test, NOT_PRESENT, 0x55, "a gate not present");
    idt::write_gate(table, 0x56, [0; 2]);
    idt::software_interrupt(0x56);
    check_software_fault(test, PROTECTION, 0x56, "an empty gate");
    for vector in [0x55, 0x56] {
        idt::write_gate(table, vector, idt::gate(vector, true));
    }

    idt::no_completion(true);
    for vector in 32..=255 {
        idt::software_interrupt(vector);
    }
    let missed = (32..=255).filter(|v| idt::count(*v) != 1).count();
    check!(test, missed == 0, "INT n reaches its handler for every n from 32: {missed} missed");
    idt::no_completion(false);

    if counters::policy() != Policy::Bare || edu::Edu::find().is_some() {
        device_gate(test, table);
    }

    let faults = idt::count(DOUBLE_FAULT);
    idt::write_gate(table, NOT_PRESENT, idt::gate(NOT_PRESENT, false));
    idt::write_gate(table, 0x55, idt::gate(0x55, false));
    idt::software_interrupt(0x55);
    let n = idt::count(DOUBLE_FAULT) - faults;
    check!(test, n == 1, "#NP's own gate not present: {n} double fault");
    for vector in [NOT_PRESENT, 0x55] {
        idt::write_gate(table, vector, idt::gate(vector, true));
    }
}

/// The same on the vector of an assigned device.
fn device_gate(test: &str, table: u64) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    idt::on(0x40, |_| {});
    let before = idt::count(0x40);
    idt::software_interrupt(0x40);
    check!(test, idt::count(0x40) == before + 1, "INT n on a device's vector");
    idt::write_gate(table, 0x40, idt::gate(0x40, false));
    idt::software_interrupt(0x40);
    check_software_fault(test, NOT_PRESENT, 0x40, "a device's gate not present, INT n");

    idt::on(NOT_PRESENT, complete_in_service);
    let faults = idt::count(NOT_PRESENT);
    cpu::enable_interrupts();
    edu::raise();
    let came = crate::wait::until(|| idt::count(NOT_PRESENT) > faults);
    cpu::disable_interrupts();
    let error = idt::last_error(NOT_PRESENT);
    // QEMU leaves the EXT bit out, hardware sets it.
    let right = error | 1 == gate_error(0x40) | 1;
    check!(test, came && right, "a device's gate not present, interrupt: error code {error:#x}");
    check!(test, !x2apic::in_service(0x40), "it was in service and completes");
    idt::on(NOT_PRESENT, skip_software_interrupt);
    idt::write_gate(table, 0x40, idt::gate(0x40, true));
    idt::on(0x40, edu::handler);
    cpu::enable_interrupts();
    let before = idt::count(0x40);
    let n = edu.raise_and_wait(0x40, 10) - before;
    cpu::disable_interrupts();
    check!(test, n == 10, "present again: {n} of 10 interrupts");
    edu.silence();
}

/// Notes the two bytes that faulted and steps over them.
pub fn skip_software_interrupt(frame: &mut idt::Frame) {
    // SAFETY: the address of code that just ran.
    OPCODE.store(u64::from(unsafe { (frame.rip as *const u16).read_unaligned() }), SeqCst);
    frame.rip += 2;
}

/// Completes an interrupt whose own gate failed.
pub fn complete_in_service(_: &mut idt::Frame) {
    edu::acknowledge();
    x2apic::complete();
}

fn check_software_fault(test: &str, exception: u8, vector: u8, what: &str) {
    let (n, error, opcode) =
        (idt::count(exception), idt::last_error(exception), OPCODE.swap(0, SeqCst));
    let at_instruction = opcode == 0xCD | u64::from(vector) << 8;
    let right = n > 0 && error == gate_error(vector) && at_instruction;
    check!(test, right, "{what}: exception {exception}, error code {error:#x}, at {opcode:#06x}");
}
