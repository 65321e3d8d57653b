//! The world switch: host registers out, guest registers in, VMRUN, and back.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
use svm::{GeneralRegisters, Vmcb};

/// All of a switch. `own`: the control block in RAX at first; `keep`: what is pushed beside the two
/// registers that can't be named as clobbered, the host's control block and `registers`; `run`:
/// from VMLOAD to VMSAVE, with that popped again; then how RSI goes in. What `run` can't do without
/// is in [`switch`].
///
/// STI before VMRUN: with V_INTR_MASKING it is the host's IF that lets a physical interrupt exit
/// (APM vol. 2, 15.21.1); GIF holds everything back meanwhile. STGI comes when GS, TR and IF are
/// the host's: what was held is taken right behind it.
macro_rules! switch {
    (
        ($registers:expr, $own:expr, $host:expr, $requests:expr),
        keep: [$($keep:literal),*],
        run: [$($run:literal),*],
        $($rsi:tt)*
    ) => {
        asm!(
            "clgi",
            "cmp dword ptr [rcx], 0",
            "jne {aborted}",
            "push rbx",
            "push rbp",
            "push rdx",
            "push rdi",
            $($keep,)*
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
            $($run,)*
            "pop rax",
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
            "pop rax",
            "vmload rax",
            "cli",
            "stgi",
            "pop rbp",
            "pop rbx",
            tlb_control = const offset_of!(Vmcb, tlb_control),
            inout("rax") $own => _,
            inout("rcx") $requests.as_ptr() => _,
            inout("rdx") $host => _,
            inout("rdi") $registers => _,
            $($rsi)*,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            aborted = label {
                // SAFETY: the host's state is complete.
                unsafe { asm!("stgi", options(nostack)) };
                return false;
            }
        )
    };
}

/// Enters the guest of the control block at `vmcb` and returns true after its exit; false at once,
/// if `requests` isn't zero.
///
/// The look at the requests stands behind CLGI: an NMI that came before was taken, and its request
/// was stored before it was sent; one that comes behind is held until VMRUN, and the guest exits
/// for it at once.
///
/// # Safety
/// SVM is on; `vmcb` and `host_vmcb` are physical addresses of valid control-block pages that
/// nobody else uses, `host_vmcb` filled by VMSAVE on this core. IF is clear; GIF is set afterwards.
#[inline(always)]
pub unsafe fn switch(
    registers: &mut GeneralRegisters,
    vmcb: u64,
    host_vmcb: u64,
    requests: &AtomicU32,
) -> bool {
    // The NOP after VMRUN tells the counting plugin where the host begins (docs/figures.md). Behind
    // it the flush is done: the request is cleared. SAFETY: the caller vouches for the control
    // blocks; all registers that the guest leaves behind are saved or named as clobbered; the exit
    // gives the flags back.
    unsafe {
        switch!(
            (registers, vmcb, host_vmcb, requests),
            keep: [],
            run: [
                "vmload rax",
                "vmrun rax",
                ".byte 0x0f, 0x1f, 0x84, 0x00",
                ".long 0x45580010",
                "vmsave rax",
                "mov dword ptr [rax + {tlb_control}], 0"
            ],
            out("rsi") _
        );
    }
    true
}

/// The control blocks of [`switch_inner`].
pub struct InnerBlocks {
    /// The vCPU's own, from which VMLOAD loads and to which VMSAVE saves, whoever runs.
    pub own: u64,
    /// By which its inner guest runs.
    pub inner: u64,
    /// As in [`switch`].
    pub host: u64,
}

/// As [`switch`], into the inner guest of a vCPU.
///
/// # Safety
/// As for [`switch`], for all the control blocks.
pub unsafe fn switch_inner(
    registers: &mut GeneralRegisters,
    blocks: &InnerBlocks,
    requests: &AtomicU32,
) -> bool {
    // As in `switch`, but for the two blocks. SAFETY: as there.
    unsafe {
        switch!(
            (registers, blocks.own, blocks.host, requests),
            keep: ["push rax", "push rsi"],
            run: [
                "vmload rax",
                "mov rax, [rsp]",
                "vmrun rax",
                ".byte 0x0f, 0x1f, 0x84, 0x00",
                ".long 0x45580010",
                "mov dword ptr [rax + {tlb_control}], 0",
                "pop rax",
                "pop rax",
                "vmsave rax"
            ],
            inout("rsi") blocks.inner => _
        );
    }
    true
}
