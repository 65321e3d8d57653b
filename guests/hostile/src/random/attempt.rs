//! Instructions made while running, each tried with registers of any content: whatever fault it
//! raises leads back here, with the stack and the registers that Rust relies on as they were.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::idt;

core::arch::global_asm!(
    r#"
# rdi: rax, rcx, rdx, rbx, rsi to begin with; rsi: where to resume after a fault is to be noted;
# rdx: the instructions, with a RET behind them.
.global random_attempt
random_attempt:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    pushq random_stack(%rip)
    movq %rsp, random_stack(%rip)
    leaq 2f(%rip), %rax
    movq %rax, (%rsi)
    movq %rdx, %r8
    movq (%rdi), %rax
    movq 8(%rdi), %rcx
    movq 16(%rdi), %rdx
    movq 24(%rdi), %rbx
    movq 32(%rdi), %rsi
    callq *%r8
2:  cli
    cld
    movq random_stack(%rip), %rsp
    popq random_stack(%rip)
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    retq

.section .bss.random, "aw", @nobits
.balign 8
random_stack: .skip 8
.text
"#,
    options(att_syntax)
);

unsafe extern "C" {
    fn random_attempt(registers: *const [u64; 5], recovery: *mut u64, code: *const u8);
}

/// The registers that instructions begin with: rax, rcx, rdx, rbx, rsi.
pub type Registers = [u64; 5];

/// Where to go on after a fault that comes outside an attempt.
static AROUND: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How many faults there were.
pub fn faults() -> u64 {
    FAULTS.load(SeqCst)
}

/// Takes over the exceptions' vectors, as interrupts too; an NMI is let pass.
pub fn prepare() {
    (0..32).filter(|v| *v != 2).for_each(|vector| {
        idt::on(vector, |frame| {
            FAULTS.fetch_add(1, SeqCst);
            // SAFETY: the cell is this CPU's own.
            let inner = unsafe { idt::recovery().replace(0) };
            frame.rip = if inner == 0 { AROUND.load(SeqCst) } else { inner };
        })
    });
}

/// Runs `f`; a fault in it, outside of attempts, ends it.
pub fn around(f: extern "C" fn()) {
    let mut code = [0xC3_u8; 24];
    // MOVABS r9, f; SUB rsp, 8; CALL r9; ADD rsp, 8: the stack is aligned as C wants it.
    code[..2].copy_from_slice(&[0x49, 0xB9]);
    code[2..10].copy_from_slice(&(f as usize as u64).to_le_bytes());
    code[10..21].copy_from_slice(&[0x48, 0x83, 0xEC, 8, 0x41, 0xFF, 0xD1, 0x48, 0x83, 0xC4, 8]);
    // SAFETY: as in `attempt`.
    unsafe { random_attempt(&[0; 5], AROUND.as_ptr(), code.as_ptr()) };
}

/// Tries `code` with these registers.
pub fn attempt(code: &[u8], registers: &Registers) {
    let mut buffer = [0xC3_u8; 24];
    buffer[..code.len()].copy_from_slice(code);
    // SAFETY: all memory is executable; what the instructions may do to this machine is the point,
    // and a fault or the RET behind them leads back with stack and callee-saved registers restored.
    unsafe { random_attempt(registers, idt::recovery(), buffer.as_ptr()) };
    // SAFETY: the cell is this CPU's own.
    unsafe { idt::recovery().write(0) };
}
