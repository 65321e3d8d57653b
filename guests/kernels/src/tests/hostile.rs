//! What only a broken or hostile guest does. Each ends this VM, or is refused.

use crate::counters::{Policy, policy};
use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt,
};
use core::arch::asm;

const UNDEFINED: u8 = 6;
const PROTECTION: u8 = 13;
/// No memory, no device: beyond any test VM's memory, below every window.
const NOWHERE: u64 = 0x9000_0000;

/// Takes away the IDT, then faults.
pub fn triple_fault(_: &str, _: &Boot) {
    println!("triple fault now");
    cpu::load_idt(0, 0);
    // SAFETY: never returns; that is the test.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// Loads from memory that isn't there.
pub fn wild_load(test: &str, _: &Boot) {
    println!("load from {NOWHERE:#x} now");
    let value = cpu::mmio_read(NOWHERE);
    check!(test, value == 0 || value == !0, "survived, and read {value:#x}");
}

/// Stores to memory that isn't there.
pub fn wild_store(test: &str, _: &Boot) {
    println!("store to {NOWHERE:#x} now");
    cpu::mmio_write(NOWHERE, 0x0BAD_CAFE);
    let value = cpu::mmio_read(NOWHERE);
    check!(test, value == 0 || value == !0, "survived, and read back {value:#x}");
}

/// Jumps there.
pub fn wild_jump(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: QEMU can't");
    }
    println!("jump to {NOWHERE:#x} now");
    idt::expect_fault();
    // SAFETY: a fault resumes after the call; nothing there returns.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "mov {s}, rsp", "call {a}", "2:", "mov rsp, {s}",
             t = out(reg) _, r = in(reg) idt::recovery(), a = in(reg) NOWHERE, s = out(reg) _)
    }
    check!(test, idt::take_fault().is_some(), "survived with a fault");
}

/// Puts the page tables and the IDT where no memory is.
pub fn wild_tables(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: it would only stop");
    }
    println!("page tables to {NOWHERE:#x} now");
    // SAFETY: no instruction can be fetched after it; that is the test.
    unsafe { asm!("mov cr3, {}", "ud2", in(reg) NOWHERE, options(noreturn)) }
}

/// Reserved bits in control registers, EFER and XCR0.
pub fn bad_cr(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        // QEMU leaves a guest mode it isn't in (helper_write_crN).
        return check!(test, true, "not on the bare machine: QEMU goes astray");
    }
    macro_rules! refuses {
        ($what:literal, $instruction:literal, $value:expr) => {{
            idt::expect_fault();
            // SAFETY: every value has a reserved bit set, so the write can only fault,
            // and a fault resumes at label 2.
            unsafe {
                asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", $instruction, "2:",
                     t = out(reg) _, r = in(reg) idt::recovery(), v = in(reg) $value,
                     out("rax") _, out("rcx") _, out("rdx") _)
            }
            let fault = idt::take_fault();
            let good = fault == Some(idt::Fault { vector: PROTECTION, error: 0 });
            check!(test, good, "{}: {fault:x?}", $what);
        }};
    }
    refuses!("CR0 with bit 63", "mov cr0, {v}", 1u64 << 63 | 0x8001_0011);
    refuses!("CR0 with PG and no PE", "mov cr0, {v}", 0x8001_0010u64);
    refuses!("CR0 with NW and no CD", "mov cr0, {v}", 0xA001_0011u64);
    refuses!("CR4 with bit 63", "mov cr4, {v}", 1u64 << 63 | 0x20);
    refuses!("CR4 with bit 31", "mov cr4, {v}", 1u64 << 31 | 0x20);
    refuses!("CR4 without PAE", "mov cr4, {v}", 0u64);
    refuses!("CR8 with bit 4", "mov cr8, {v}", 0x10u64);
    let fault = cpu::try_wrmsr(0xC000_0080, 1 << 63 | 0x500).err();
    check!(test, fault.is_some_and(|f| f.vector == PROTECTION), "EFER with bit 63: {fault:x?}");
    let before = cpu::rdmsr(0xC000_0080);
    let _ = cpu::try_wrmsr(0xC000_0080, before | 1 << 12);
    let svme = cpu::rdmsr(0xC000_0080) >> 12 & 1;
    check!(test, svme == 0, "EFER.SVME can't be set");
}

/// Instructions of a hypervisor, executed by a guest.
pub fn bad_instruction(test: &str, _: &Boot) {
    let mut refused = 0;
    macro_rules! try_all {
        ($($name:literal $bytes:literal),+ $(,)?) => { $({
            idt::expect_fault();
            // SAFETY: a fault resumes at label 2; RAX points at no structure of ours.
            unsafe {
                asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", concat!(".byte ", $bytes), "2:",
                     t = out(reg) _, r = in(reg) idt::recovery(),
                     inout("rax") 0x20_0000u64 => _, inout("rcx") 0u64 => _, inout("rdx") 0u64 => _)
            }
            let fault = idt::take_fault();
            let good = fault.is_some_and(|f| f.vector == UNDEFINED || f.vector == PROTECTION);
            refused += u32::from(good);
            check!(test, good, "{} is refused: {fault:x?}", $name);
        })+ };
    }
    try_all!(
        "VMRUN" "0x0F, 0x01, 0xD8",
        "VMLOAD" "0x0F, 0x01, 0xDA",
        "VMSAVE" "0x0F, 0x01, 0xDB",
        "CLGI" "0x0F, 0x01, 0xDD",
        "INVLPGA" "0x0F, 0x01, 0xDF",
        "VMXOFF" "0x0F, 0x01, 0xC4",
        "RSM" "0x0F, 0xAA",
    );
    check!(test, refused == 7, "{refused} of 7 refused, and the guest goes on");
}
