//! Interrupts let in and kept out, and the host's sleep.
//!
//! Guarantees: a core doesn't fall asleep behind an interrupt or an NMI that was to keep it awake.

use crate::cpu::this;
use core::arch::{asm, global_asm};

/// Lets interrupts in.
#[inline]
pub fn enable() {
    x86_64::instructions::interrupts::enable();
}

/// Keeps interrupts out, NMIs excepted.
#[inline]
pub fn disable() {
    x86_64::instructions::interrupts::disable();
}

global_asm!(
    ".global interrupt_halt, interrupt_halt_at, interrupt_awake",
    "interrupt_halt:",
    "cmp byte ptr [rdi], 0",
    "jne interrupt_awake",
    "sti",
    "interrupt_halt_at:",
    "hlt",
    "interrupt_awake:",
    "sti",
    "ret",
);

unsafe extern "C" {
    /// Halts with interrupts let in, unless the byte at RDI says that an NMI has come; RDI and the
    /// registers besides stay.
    fn interrupt_halt();
    /// Its HLT.
    static interrupt_halt_at: u8;
    /// Behind it.
    static interrupt_awake: u8;
}

/// Sleeps until an interrupt comes, or an NMI: not at all, if there was one since the core last
/// forgot it ([`PerCpu::forget_nmi`](crate::cpu::PerCpu::forget_nmi)).
///
/// STI before HLT keeps interrupts from being taken too early, but not NMIs, and behind an NMI's
/// IRET nothing keeps interrupts either: what was to end the sleep would be over before it begins.
/// So the handlers never return to a sleep that hasn't begun ([`past_halt`]).
#[inline]
pub fn enable_and_halt() {
    let nmi = this().nmi_pending.as_ptr();
    // SAFETY: handlers only note interrupts; the stack and the flags are all that is used.
    unsafe { asm!("call {}", sym interrupt_halt, in("rdi") nmi) };
}

/// Where code goes on that was interrupted at `rip`: behind the HLT, if it was about to sleep.
pub(super) fn past_halt(rip: u64) -> u64 {
    let halt = interrupt_halt as *const () as u64..=&raw const interrupt_halt_at as u64;
    if halt.contains(&rip) { &raw const interrupt_awake as u64 } else { rip }
}

/// Sleeps until something arrives, on a core with no vCPU at work.
pub fn sleep() {
    enable_and_halt();
    this().forget_nmi();
}
