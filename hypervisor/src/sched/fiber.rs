//! Stacks that share a core: how a vCPU that shares its core yields it in the middle of what
//! the host does for it.
//!
//! Guarantees: a fiber goes on exactly where it yielded, with its registers and its stack; control
//! moves by [`switch`] alone, never by an interrupt. It doesn't switch what the host doesn't use
//! itself: extended state and debug registers are their owner's to save.

use core::arch::global_asm;
use core::cell::Cell;

/// Where a fiber that doesn't run goes on: its stack pointer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suspended(u64);

unsafe extern "C" {
    fn fiber_switch(from: *mut u64, to: u64);
    fn fiber_start();
}

// The registers that a call preserves are saved on the stack that is left; `fiber_start` is where a
// new one begins, with its function in RBX and its argument in R12.
global_asm!(
    ".global fiber_switch",
    "fiber_switch:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".global fiber_start",
    "fiber_start:",
    "mov rdi, r12",
    "xor ebp, ebp",
    "call rbx",
    "ud2",
);

impl Suspended {
    /// A fiber that will run `f(argument)` on the stack below `top`.
    ///
    /// # Safety
    /// `top` is the 16-byte aligned upper end of a stack of its own, of some KiB, for good.
    pub unsafe fn new(top: u64, f: extern "C" fn(usize) -> !, argument: usize) -> Self {
        // As `fiber_switch` pops them: R15, R14, R13, R12, RBP, RBX, the return address; then two
        // empty slots, so that the stack is aligned at the call.
        let start = fiber_start as *const () as u64;
        let words = [0, 0, 0, argument as u64, 0, f as usize as u64, start, 0, 0];
        let at = top - size_of_val(&words) as u64;
        // SAFETY: the caller vouches for the stack.
        unsafe { core::ptr::copy_nonoverlapping(words.as_ptr(), at as *mut u64, words.len()) };
        Suspended(at)
    }
}

/// Leaves the fiber this runs on, to go on here when it is switched to again, and goes on with
/// `to`.
///
/// # Safety
/// `to` was left by `switch` or made by [`Suspended::new`], on this core, and not gone on with
/// since.
pub unsafe fn switch(from: &Cell<Suspended>, to: Suspended) {
    // SAFETY: the caller vouches for `to`; `Suspended` is the word that is stored.
    unsafe { fiber_switch(from.as_ptr().cast::<u64>(), to.0) }
}
