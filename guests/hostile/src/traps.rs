//! Single steps, breakpoints and the exceptions behind them, where the host has a part in an
//! instruction.

use core::arch::asm;
use machine::{attempt, boot::Boot, console::check, cpu, edu, idt};

const DEBUG: u8 = 1;
const IOAPIC: u64 = 0xFEC0_0000;
const OFF: u64 = 0x400;
/// The vector of an INT that does nothing.
const NOTHING: u8 = 0x60;

/// Executes instructions with TF set, on `$value` in RAX; RCX, RDX, RSI, RDI and R8 are free.
macro_rules! stepped {
    ($value:expr, $($instruction:literal),+ $(,)?) => {{
        idt::expect_fault();
        // SAFETY: the handler of #DB only counts; a fault resumes at label 2, where stepping ends.
        unsafe {
            asm!("lea r8, [rip + 2f]", "mov [{r}], r8",
                 "pushfq", "or qword ptr [rsp], 0x100", "popfq",
                 $($instruction,)+
                 "2:", "pushfq", "and qword ptr [rsp], -0x101", "popfq", "cld",
                 r = in(reg) idt::recovery(), inout("rax") $value => _, out("rcx") _,
                 out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _)
        }
        let _ = idt::take_fault();
    }};
}

/// Single steps through exits of every reason, under interrupts.
pub fn steps(test: &str, _: &Boot) {
    idt::on(DEBUG, |_| {});
    idt::on(NOTHING, |_| {});
    cpu::enable_interrupts();
    let buffer = [0u64; 32];
    let at = buffer.as_ptr() as u64;
    let home = cpu::cr0();
    for i in 0..100u64 {
        edu::raise();
        let before = idt::count(DEBUG);
        stepped!(i, "mov r9, rbx", "cpuid", "mov rbx, r9");
        stepped!(0u64, "mov ecx, 0x1B", "rdmsr");
        stepped!(0u64, "mov ecx, 0x80B", "xor edx, edx", "wrmsr");
        stepped!(0x4_0062u64, "mov ecx, 0x830", "xor edx, edx", "wrmsr");
        stepped!(0u64, "mov edx, 0x80", "out dx, al", "in eax, dx");
        stepped!(at, "mov rsi, rax", "mov edx, 0x80", "mov ecx, 8", "rep outsb");
        stepped!(at, "mov rdi, rax", "mov edx, 0x80", "mov ecx, 8", "rep insb");
        stepped!(at, "mov rdi, rax", "mov esi, 0xFEC00000", "mov ecx, 40", "rep movsd");
        stepped!(IOAPIC, "mov [rax], ecx", "lock or dword ptr [rax], 1");
        stepped!(0u64, "wbinvd", "invd");
        stepped!(home, "mov cr0, rax");
        stepped!(0u64, "vmmcall");
        stepped!(0u64, "xsetbv");
        stepped!(OFF, "mov dr7, rax");
        stepped!(0u64, "mov r9, rbx", "int 0x60", "sti", "cpuid", "mov rbx, r9");
        let steps = idt::count(DEBUG) - before;
        if steps < 60 {
            check!(test, false, "{steps} steps in round {i}");
            break;
        }
    }
}

/// Sets a breakpoint: eight bytes, read or written.
fn watch(address: u64) {
    // SAFETY: the handler of #DB only counts.
    unsafe { asm!("mov dr0, {}", "mov dr7, {}", in(reg) address, in(reg) 0xB_0003u64 | OFF) }
}

fn watch_nothing() {
    // SAFETY: no breakpoint.
    unsafe { asm!("mov dr7, {}", in(reg) OFF) }
}

/// MOV SS with a breakpoint on its operand, and behind it, where no trap may come yet, what exits.
pub fn late_traps(_: &str, _: &Boot) {
    idt::on(DEBUG, |_| {});
    idt::on(3, |_| {});
    idt::on(NOTHING, |_| {});
    let selector = 0x10u64;
    let at = &raw const selector as u64;
    macro_rules! behind {
        ($($instruction:literal),+) => {
            let _ = attempt!(at, "mov rdx, 0x80", "mov ss, word ptr [{v}]", $($instruction),+);
        };
    }
    for _ in 0..200 {
        watch(at);
        behind!("push rbx", "cpuid", "pop rbx");
        behind!("int 0x60");
        behind!("int3");
        behind!("vmmcall");
        behind!("out dx, al");
        behind!("mov ecx, 0x1B", "rdmsr");
        behind!("mov ss, word ptr [{v}]", "mov ss, word ptr [{v}]", "wbinvd");
        behind!("in al, dx");
        watch_nothing();
    }
}

/// ICEBP, INT3 and #DB in thousands, with their gates and those of what follows missing in turns.
pub fn gateless(test: &str, _: &Boot) {
    let table = idt::arena(0);
    let mut lost = 0;
    cpu::enable_interrupts();
    for i in 0..1000u32 {
        let missing = [&[1u8, 3][..], &[1, 11], &[3, 13], &[]][i as usize % 4];
        missing.iter().for_each(|v| idt::write_gate(table, *v, idt::gate(*v, false)));
        edu::raise();
        lost += u32::from(attempt!(0u64, "mov rax, {v}", ".byte 0xF1").is_none());
        lost += u32::from(attempt!(0u64, "mov rax, {v}", "int3").is_none());
        lost += u32::from(attempt!(0u64, "mov rax, {v}", ".byte 0xCD, 0x01").is_none());
        missing.iter().for_each(|v| idt::write_gate(table, *v, idt::gate(*v, true)));
    }
    cpu::disable_interrupts();
    check!(test, lost == 0, "{lost} of them raised nothing");
}
