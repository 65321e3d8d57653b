//! Cores without work: parked until they are given some.
//!
//! Guarantees: work begins on a fresh stack, with nothing pending of what woke the core. What
//! guests sent to a parked core is completed and forgotten.

use super::{NO_VM, get, this, x2apic};
use crate::interrupts;
use core::{arch::asm, sync::atomic::Ordering};

/// Has the parked core `index` (1 or more) run `f(argument)` on a fresh stack.
///
/// # Panics
/// If there is no such core, or it has work already.
pub fn run_on(index: usize, f: fn(usize) -> !, argument: usize) {
    let cpu = get(index).filter(|cpu| cpu.index != 0);
    let cpu = cpu.filter(|cpu| cpu.parked.swap(false, Ordering::AcqRel));
    let Some(cpu) = cpu else { panic!("core {index} isn't parked and can't be given work") };
    cpu.argument.store(argument, Ordering::Relaxed);
    cpu.work.store(f as usize, Ordering::Release);
    x2apic::send_ipi(cpu.apic_id, interrupts::WAKE);
}

/// Leaves whatever this core (not core 0) does for good and waits for [`run_on`].
pub fn park() -> ! {
    // SAFETY: the stack is this core's own, and nothing on it is used again.
    unsafe {
        asm!(
            "cli",
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {wait}",
            "ud2",
            stack = in(reg) this().stack_top,
            wait = sym wait_for_work,
            options(noreturn),
        )
    }
}

extern "C" fn wait_for_work() -> ! {
    let cpu = this();
    cpu.vm.store(NO_VM, Ordering::Relaxed);
    // Interrupts of guests may still be on their way, by vectors that are exceptions to the host.
    interrupts::load_tolerant();
    cpu.parked.store(true, Ordering::Release);
    #[cfg(feature = "plant")]
    x2apic::late::arrive();
    loop {
        interrupts::disable();
        // The wake-up is consumed with the work it announces; left pending, it would be the
        // first thing to interrupt what runs next on this core.
        let woken = interrupts::take().any(|vector| vector == interrupts::WAKE);
        let work = if woken { cpu.work.swap(0, Ordering::Acquire) } else { 0 };
        if work != 0 {
            // SAFETY: `run_on` stored a function of this type.
            let f: fn(usize) -> ! = unsafe { core::mem::transmute(work) };
            interrupts::load();
            interrupts::enable();
            f(cpu.argument.load(Ordering::Relaxed));
        }
        interrupts::sleep();
    }
}
