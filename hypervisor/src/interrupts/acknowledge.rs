//! An interrupt that the host takes and doesn't complete: it stays in service in the core's local
//! APIC, for a guest that is to complete it.
//!
//! Guarantees: it is one, the highest that is pending and that the local APIC lets in; none that
//! the host would take for an exception. The core's handlers complete all others.

use crate::cpu::{PerCpu, this, x2apic};
use core::arch::asm;
use core::sync::atomic::Ordering;

/// In `PerCpu::acknowledged`: one is to stay in service, and from here on which one.
const WANTED: u32 = 1;
const TAKEN: u32 = 0x100;

/// In the handler: is this one to stay in service? Then no other is let in behind it.
pub(super) fn stays(cpu: &PerCpu, vector: u8) -> bool {
    let wanted = cpu.acknowledged.load(Ordering::Relaxed) == WANTED;
    if wanted {
        cpu.acknowledged.store(TAKEN | u32::from(vector), Ordering::Relaxed);
    }
    wanted
}

/// Takes one. The host's state is complete, and interrupts are held; they are afterwards.
pub fn acknowledge() -> Option<u8> {
    // Vectors below 32 are exceptions to the host. Where another is pending, it comes before them.
    if !(1..8).any(|word| x2apic::requested(word) != 0) {
        return None;
    }
    let cpu = this();
    cpu.acknowledged.store(WANTED, Ordering::Relaxed);
    // SAFETY: every vector has a handler; IF is as before afterwards.
    unsafe { asm!("sti", "nop", "cli") };
    let found = cpu.acknowledged.swap(0, Ordering::Relaxed);
    (found & TAKEN != 0).then_some(found as u8)
}
