//! Out of long mode and back: code of 32 bits in protected mode, with paging of any kind or none.
//!
//! Guarantees: the code runs in ring 0 with interrupts off, in flat segments, on a stack of its
//! own. It ends with its last byte, or by the first exception that it raises. Afterwards all
//! control registers, tables and segments are as before.
//!
//! Addresses are this kernel's: what is in force meanwhile must map it one to one.

use crate::idt::Fault;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

core::arch::global_asm!(
    r#"
    .text
    # EDI: CR0, CR3, CR4, then EAX, EBX, ECX, EDX, ESI, EDI of the code, which are stored back.
    .global legacy_visit
    legacy_visit:
        push rbx
        push rbp
        push r12
        push r13
        push r14
        push r15
        pushfq
        cli
        sgdt [rip + legacy_tables]
        sidt [rip + legacy_tables + 16]
        mov [rip + legacy_home], rsp
        mov rax, cr0
        mov [rip + legacy_home + 8], eax
        mov rax, cr3
        mov [rip + legacy_home + 12], eax
        mov rax, cr4
        mov [rip + legacy_home + 16], eax
        mov [rip + legacy_home + 20], edi
        mov dword ptr [rip + legacy_fault], 0
        lgdt [rip + legacy_gdt_pointer]
        lidt [rip + legacy_idt_pointer]
        mov ebp, edi
        lea rax, [rip + legacy_out]
        push 0x18
        push rax
        retfq

    .code32
    legacy_out:
        mov eax, 0x10
        mov ds, eax
        mov es, eax
        mov ss, eax
        mov esp, offset legacy_stack_end
        mov eax, cr0
        and eax, 0x7FFFFFFF
        mov cr0, eax
        mov ecx, 0xC0000080
        rdmsr
        and eax, 0xFFFFFEFF
        wrmsr
        mov eax, [ebp + 8]
        mov cr4, eax
        mov eax, [ebp + 4]
        mov cr3, eax
        mov eax, [ebp]
        mov cr0, eax
        mov eax, [ebp + 12]
        mov ebx, [ebp + 16]
        mov ecx, [ebp + 20]
        mov edx, [ebp + 24]
        mov esi, [ebp + 28]
        mov edi, [ebp + 32]
        mov ebp, offset legacy_code
        call ebp
    legacy_back:
        mov esp, offset legacy_stack_end
        mov ebp, [legacy_home + 20]
        mov [ebp + 12], eax
        mov [ebp + 16], ebx
        mov [ebp + 20], ecx
        mov [ebp + 24], edx
        mov [ebp + 28], esi
        mov [ebp + 32], edi
        mov eax, cr0
        mov [ebp], eax
        and eax, 0x7FFFFFFF
        mov cr0, eax
        mov eax, [legacy_home + 16]
        mov cr4, eax
        mov eax, [legacy_home + 12]
        mov cr3, eax
        mov ecx, 0xC0000080
        rdmsr
        or eax, 0x100
        wrmsr
        mov eax, [legacy_home + 8]
        mov cr0, eax
        .byte 0xEA
        .long legacy_home_again
        .word 0x08

    # On the stack: a vector below 32, and its error code.
    .global legacy_raised
    legacy_raised:
        push eax
        mov eax, [esp + 8]
        shl eax, 8
        or eax, [esp + 4]
        or eax, 0x80
        mov [legacy_fault], eax
        pop eax
        jmp legacy_back

    .balign 16
    .global legacy_stubs
    legacy_stubs:
    .set vector, 0
    .rept 32
        .balign 16
        .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17)
            push 0
        .endif
        push vector
        jmp legacy_raised
        .set vector, vector + 1
    .endr

    .code64
    legacy_home_again:
        mov eax, 0x10
        mov ds, eax
        mov es, eax
        mov ss, eax
        mov rsp, [rip + legacy_home]
        lgdt [rip + legacy_tables]
        lidt [rip + legacy_tables + 16]
        popfq
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbp
        pop rbx
        ret

    .section .data.legacy, "aw", @progbits
    .balign 16
    # Null, 64-bit code, data, 32-bit code; code and data of ring 3, a task state.
    legacy_gdt:
        .quad 0
        .quad 0x00AF9B000000FFFF
        .quad 0x00CF93000000FFFF
        .quad 0x00CF9B000000FFFF
        .quad 0x00CFFB000000FFFF
        .quad 0x00CFF3000000FFFF
        .quad 0x0000890000000067
    legacy_gdt_pointer:
        .word 7 * 8 - 1
        .quad legacy_gdt
    .balign 16
    legacy_idt_pointer:
        .word {gates} * 8 - 1
        .quad legacy_idt

    .section .bss.legacy, "aw", @nobits
    .balign 16
    legacy_tables: .skip 32
    legacy_home: .skip 24
    .global legacy_fault
    legacy_fault: .skip 4
    .balign 16
    .global legacy_idt
    legacy_idt: .skip {gates} * 8
    .global legacy_code
    legacy_code: .skip 128
    .balign 16
    .skip 4096
    legacy_stack_end:
    .text
    "#,
    gates = const GATES
);

const GATES: usize = 64;
const CODE_BYTES: usize = 128;
const RET: u8 = 0xC3;

/// Its segments: code and data of ring 3, and a task state that nobody has entered.
pub const USER_CODE: u16 = 0x20 | 3;
/// As above.
pub const USER_DATA: u16 = 0x28 | 3;
/// As above.
pub const TASK: u16 = 0x30;
const CODE: u16 = 0x18;

/// An interrupt gate, and a task gate, that ring 3 may use (SDM vol. 3, 7.11).
const INTERRUPT_GATE: u64 = 0xEE << 40;
const TASK_GATE: u64 = 0xE5 << 40;

unsafe extern "C" {
    fn legacy_visit(to: *mut [u32; 9]);
    static legacy_stubs: u8;
    static legacy_idt: [AtomicU64; GATES];
    static legacy_fault: AtomicU32;
    static legacy_code: [AtomicU32; CODE_BYTES / 4];
}

/// Control registers while the code runs.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// CR0, with PE.
    pub cr0: u32,
    /// CR3.
    pub cr3: u32,
    /// CR4.
    pub cr4: u32,
}

/// What became of code.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The exception that ended it.
    pub fault: Option<Fault>,
    /// CR0 at its end.
    pub cr0: u32,
    /// EAX, EBX, ECX, EDX, ESI and EDI at its end.
    pub registers: [u32; 6],
}

/// Where code stands while it runs.
pub fn place() -> u32 {
    (&raw const legacy_code) as u32
}

/// Has an interrupt of this vector, below 64, lead to code of this segment.
pub fn lead(vector: usize, selector: u16, code: u32) {
    let [low, high] = [code & 0xFFFF, code >> 16].map(u64::from);
    let gate = low | u64::from(selector) << 16 | INTERRUPT_GATE | high << 48;
    // SAFETY: atomic words of our own.
    unsafe { legacy_idt[vector].store(gate, SeqCst) }
}

/// Has an interrupt of this vector, below 64, switch to the task state.
pub fn lead_to_task(vector: usize) {
    // SAFETY: atomic words of our own.
    unsafe { legacy_idt[vector].store(TASK_GATE | u64::from(TASK) << 16, SeqCst) }
}

/// Has exceptions end the code.
pub fn prepare() {
    let stubs = (&raw const legacy_stubs) as u32;
    (0..32).for_each(|vector| lead(vector, CODE, stubs + 16 * vector as u32));
}

/// Executes code, with EAX, EBX, ECX, EDX, ESI and EDI.
///
/// # Safety
/// The code ends, or never comes back, and writes nothing that Rust holds a reference to; the mode
/// maps this kernel one to one.
pub unsafe fn execute(mode: &Mode, code: &[u8], registers: [u32; 6]) -> Outcome {
    let mut bytes = [RET; CODE_BYTES];
    bytes[..code.len()].copy_from_slice(code);
    let mut state = [0; 9];
    state[..3].copy_from_slice(&[mode.cr0, mode.cr3, mode.cr4]);
    state[3..].copy_from_slice(&registers);
    // SAFETY: atomic words of our own; what is executed is the caller's affair.
    let raised = unsafe {
        for (word, to) in bytes.chunks_exact(4).zip(&legacy_code) {
            to.store(u32::from_le_bytes(word.try_into().unwrap_or_default()), SeqCst);
        }
        legacy_visit(&raw mut state);
        legacy_fault.load(SeqCst)
    };
    let fault = Fault { vector: (raised & 0x7F) as u8, error: raised >> 8 };
    let [cr0, _, _, registers @ ..] = state;
    Outcome { fault: (raised != 0).then_some(fault), cr0, registers }
}
