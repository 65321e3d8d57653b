//! The world switch: host registers out, guest registers in, VMLAUNCH or VMRESUME, and back.
//!
//! Guarantees: an NMI that comes before the guest runs is either taken before the look at the
//! requests, or has that look made once more ([`again`]). VMX has nothing that holds NMIs back, so
//! the look stands right before the entry, with the guest's registers in place: between the two are
//! instructions that may be executed twice.

use core::arch::global_asm;
use core::sync::atomic::AtomicU32;
use vmx::field;

// Registers are those of the System V ABI: RDI `registers`, RSI `requests`, RDX `launched`, RCX
// `stack`. On the stack, from RSP up: requests, launched, the guest's RAX, registers.
global_asm!(
    ".global vmx_enter, vmx_look, vmx_look_end, vmx_left",
    "vmx_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "push qword ptr [rdi]",
    "push rdx",
    "push rsi",
    // Most often it is where it was.
    "cmp rsp, [rcx]",
    "je 2f",
    "mov [rcx], rsp",
    "mov eax, {host_rsp}",
    "vmwrite rax, rsp",
    "2:",
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
    // The region that an NMI has executed again.
    "vmx_look:",
    "mov rax, [rsp]",
    "cmp dword ptr [rax], 0",
    "jne 4f",
    "cmp byte ptr [rsp + 8], 0",
    "mov rax, [rsp + 16]",
    "je 3f",
    "vmresume",
    "jmp vmx_look_end",
    "3:",
    "vmlaunch",
    // The entry failed.
    "vmx_look_end:",
    "mov eax, {failed}",
    "jmp 5f",
    // Something is asked for.
    "4:",
    "mov eax, {aborted}",
    "5:",
    "add rsp, 32",
    "jmp 6f",
    "vmx_left:",
    "mov [rsp + 16], rax",
    "mov rax, [rsp + 24]",
    "mov [rax + 8*1], rcx",
    "mov [rax + 8*2], rdx",
    "mov [rax + 8*3], rbx",
    "mov [rax + 8*5], rbp",
    "mov [rax + 8*6], rsi",
    "mov [rax + 8*7], rdi",
    "mov [rax + 8*8], r8",
    "mov [rax + 8*9], r9",
    "mov [rax + 8*10], r10",
    "mov [rax + 8*11], r11",
    "mov [rax + 8*12], r12",
    "mov [rax + 8*13], r13",
    "mov [rax + 8*14], r14",
    "mov [rax + 8*15], r15",
    "mov rcx, [rsp + 16]",
    "mov [rax], rcx",
    "mov eax, {left}",
    "add rsp, 32",
    "6:",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    host_rsp = const field::HOST_RSP.encoding(),
    left = const LEFT,
    aborted = const ABORTED,
    failed = const FAILED,
);

const LEFT: u32 = 0;
const ABORTED: u32 = 1;
const FAILED: u32 = 2;

unsafe extern "sysv64" {
    fn vmx_enter(registers: *mut u64, requests: *const u32, launched: bool, stack: *mut u64)
    -> u32;
    static vmx_look: u8;
    static vmx_look_end: u8;
    static vmx_left: u8;
}

/// What came of an entry.
pub enum Came {
    /// The guest was left, or couldn't be entered for its state.
    Left,
    /// Something is asked for.
    Aborted,
    /// VMLAUNCH or VMRESUME failed.
    Failed,
}

/// Enters the guest of the current control structure, unless `requests` isn't zero. `stack`: where
/// the host's stack was at the entry before, which the control structure has.
///
/// # Safety
/// The control structure is built, with the host's state as it is here and [`left`] as its RIP;
/// `launched` says whether it was entered since it was made.
#[inline]
pub unsafe fn switch(
    registers: &mut [u64; 16],
    requests: &AtomicU32,
    launched: bool,
    stack: &mut u64,
) -> Came {
    // SAFETY: of our caller's; all registers that the ABI wants kept are.
    match unsafe { vmx_enter(registers.as_mut_ptr(), requests.as_ptr(), launched, stack) } {
        LEFT => Came::Left,
        ABORTED => Came::Aborted,
        _ => Came::Failed,
    }
}

/// Where the host goes on at an exit.
pub fn left() -> u64 {
    &raw const vmx_left as u64
}

/// Where code goes on that an NMI interrupted at `rip`: at the look once more, if the entry hasn't
/// come.
pub fn again(rip: u64) -> u64 {
    let look = &raw const vmx_look as u64;
    if (look..&raw const vmx_look_end as u64).contains(&rip) { look } else { rip }
}
