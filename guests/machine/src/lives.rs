//! Lives of a VM that resets itself. Nothing of a guest's survives a reset, so the host's counters
//! tell which one it is: before it resets a kernel makes a hypercall.
//!
//! Doesn't guarantee anything for a kernel that makes hypercalls for other reasons.

use crate::{attempt, counters, cpu};
use ledger::Reason;

const PORT_RESET: (u16, u8) = (0xCF9, 0x06);

/// How many resets by [`reset`] there were of this VM.
pub fn lives() -> u64 {
    counters::ever().of(Reason::Hypercall)
}

/// Resets this VM, which counts as a life.
pub fn reset() -> ! {
    // One of the two is the processor's own, and the other one is undefined.
    let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xD9");
    let _ = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xC1");
    cpu::outb(PORT_RESET.0, PORT_RESET.1);
    cpu::halt_forever()
}
