//! Exits out of code in a state that compilers don't make: the hypervisor must go on behind the
//! right instruction, and not be led astray by a flag of the guest's.

use crate::{boot::Boot, console::check, cpu};
use core::arch::asm;

/// The direction flag is the guest's own: the hypervisor copies upwards whatever it is.
pub fn direction(test: &str, _: &Boot) {
    const DF: u64 = 1 << 10;
    let ask = || {
        let (vendor, line, flags): (u64, u32, u64);
        // SAFETY: the flag is cleared again before any other code runs; CPUID changes the registers
        // that are named, and RBX, which is kept, and so can't be an operand.
        unsafe {
            asm!(
                "pushfq", "or qword ptr [rsp], {df}", "popfq", "push rbx", "xor eax, eax", "cpuid",
                "mov r8, rbx", "mov dx, 0x3FB", "xor eax, eax", "in al, dx", "pop rbx",
                "pushfq", "pop r9", "cld",
                df = const DF, out("r8") vendor, out("r9") flags,
                out("eax") line, out("ecx") _, out("edx") _,
            )
        };
        (vendor, line, flags & DF != 0)
    };
    let expected =
        (u64::from(core::arch::x86_64::__cpuid(0).ebx), u32::from(cpu::inb(0x3FB)), true);
    let right = (0..100).filter(|_| ask() == expected).count();
    check!(test, right == 100, "{right} of 100 exits with DF set give what they do without it");
}

/// Null, null, 64-bit code (0x10), 32-bit code with a base of 4 GiB less 64 KiB (0x18).
static GDT: [u64; 4] = [0, 0, 0x00AF_9B00_0000_FFFF, 0xFFCF_9BFF_0000_FFFF];
const BASE: u64 = 0xFFFF_0000;

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// In compatibility mode CS.base + EIP is 32 bits wide: an instruction that exits is found behind 4
/// GiB from below. It has a prefix, so that nobody can guess its length.
pub fn compatibility(test: &str, _: &Boot) {
    let new = Pointer { limit: 31, base: (&raw const GDT) as u64 };
    let mut old = Pointer { limit: 0, base: 0 };
    let vendor: u32;
    // SAFETY: interrupts are off in a test's beginning; the table has what is loaded from it; the
    // stack isn't used in 32-bit code; the old table and its selector come back; RBX is kept.
    unsafe {
        asm!(
            "cli",
            "push rbx",
            "sgdt [{old}]",
            "lgdt [{new}]",
            "mov r9, cs",
            "lea rax, [rip + 2f]",
            "sub eax, {base:e}",
            "push 0x18",
            "push rax",
            "xor eax, eax",
            "retfq",
            "2:",
            // CPUID with a segment prefix; a far jump to 64-bit code.
            ".byte 0x3E, 0x0F, 0xA2",
            ".byte 0xEA",
            ".long 3f",
            ".word 0x10",
            "3:",
            "lgdt [{old}]",
            "mov r10, rbx",
            "push r9",
            "lea rax, [rip + 4f]",
            "push rax",
            "retfq",
            "4:",
            "pop rbx",
            old = in(reg) &raw mut old,
            new = in(reg) &raw const new,
            base = in(reg) BASE,
            out("rax") _,
            out("rcx") _,
            out("rdx") _,
            out("r9") _,
            out("r10") vendor,
        )
    };
    check!(test, vendor != 0, "CPUID in 32-bit code across 4 GiB: {vendor:#x}");
}
