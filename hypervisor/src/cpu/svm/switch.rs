//! The world switch: host registers out, guest registers in, VMRUN, and back.

use core::arch::global_asm;

/// The guest's general registers that VMRUN doesn't switch, numbered as instructions
/// encode them. Slots 0 (RAX) and 4 (RSP) live in the VMCB and aren't used here.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct GeneralRegisters(pub [u64; 16]);

unsafe extern "C" {
    /// Enters the guest of the VMCB at `vmcb` and returns after its exit.
    ///
    /// # Safety
    /// SVM is on; `vmcb` and `host_vmcb` are physical addresses of valid VMCB pages that
    /// nobody else uses, `host_vmcb` filled by VMSAVE on this core; `registers` is valid.
    /// GIF is clear before and after.
    pub fn svm_switch(registers: *mut GeneralRegisters, vmcb: u64, host_vmcb: u64);
}

// RDI = registers, RSI = vmcb, RDX = host_vmcb. STI before VMRUN: with V_INTR_MASKING it
// is the host's IF that lets a physical interrupt exit (APM vol. 2, 15.21.1); GIF holds
// everything back meanwhile. The NOP after VMRUN tells the counting plugin where the
// host begins (docs/figures.md).
global_asm!(
    ".global svm_switch",
    "svm_switch:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdx",
    "push rdi",
    "mov rax, rsi",
    "mov rcx, [rdi + 8*1]",
    "mov rdx, [rdi + 8*2]",
    "mov rbx, [rdi + 8*3]",
    "mov rbp, [rdi + 8*5]",
    "mov rsi, [rdi + 8*6]",
    "mov r8, [rdi + 8*8]",
    "mov r9, [rdi + 8*9]",
    "mov r10, [rdi + 8*10]",
    "mov r11, [rdi + 8*11]",
    "mov r12, [rdi + 8*12]",
    "mov r13, [rdi + 8*13]",
    "mov r14, [rdi + 8*14]",
    "mov r15, [rdi + 8*15]",
    "mov rdi, [rdi + 8*7]",
    "sti",
    "vmload rax",
    "vmrun rax",
    ".byte 0x0f, 0x1f, 0x84, 0x00",
    ".long 0x45580010",
    "vmsave rax",
    "push rdi",
    "mov rdi, [rsp + 8]",
    "mov [rdi + 8*1], rcx",
    "mov [rdi + 8*2], rdx",
    "mov [rdi + 8*3], rbx",
    "mov [rdi + 8*5], rbp",
    "mov [rdi + 8*6], rsi",
    "mov [rdi + 8*8], r8",
    "mov [rdi + 8*9], r9",
    "mov [rdi + 8*10], r10",
    "mov [rdi + 8*11], r11",
    "mov [rdi + 8*12], r12",
    "mov [rdi + 8*13], r13",
    "mov [rdi + 8*14], r14",
    "mov [rdi + 8*15], r15",
    "pop [rdi + 8*7]",
    "pop rdi",
    "pop rax",
    "vmload rax",
    "cli",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);
