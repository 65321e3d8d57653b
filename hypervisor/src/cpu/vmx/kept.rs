//! The guest's state on its core that no entry loads and no exit saves, and the other vendor
//! switches: the registers of SYSCALL and SWAPGS, CR2 and DR6.
//!
//! Guarantees: as of [`Extra`](crate::cpu::extra::Extra). The host uses none of it: it makes no
//! system calls, and a page fault of its own is the end.

use crate::cpu::msr;
use core::arch::asm;

/// STAR, LSTAR, CSTAR, SFMASK, KERNEL_GS_BASE.
const MSRS: [u32; 5] = [0xC000_0081, 0xC000_0082, 0xC000_0083, 0xC000_0084, 0xC000_0102];
const DR6_AT_RESET: u64 = 0xFFFF_0FF0;

/// The state of a vCPU that isn't on its core.
pub struct Kept {
    msrs: [u64; MSRS.len()],
    cr2: u64,
    dr6: u64,
}

impl Kept {
    /// As after a reset.
    pub const AT_RESET: Kept = Kept { msrs: [0; MSRS.len()], cr2: 0, dr6: DR6_AT_RESET };

    /// Takes the state from this core.
    pub fn save(&mut self) {
        // SAFETY: long mode has these registers, and a CPU with VMX has long mode.
        self.msrs = MSRS.map(|register| unsafe { msr::read(register) });
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, cr2", out(reg) self.cr2, options(nostack, nomem)) };
        self.dr6 = dr6();
    }

    /// Gives it to this core.
    pub fn load(&self) {
        for (register, value) in MSRS.into_iter().zip(self.msrs) {
            // SAFETY: the value was the core's, or is that of a reset; the host uses none of them.
            unsafe { msr::write(register, value) };
        }
        set_cr2(self.cr2);
        set_dr6(self.dr6);
    }
}

/// Sets the guest's CR2.
pub fn set_cr2(value: u64) {
    // SAFETY: the host doesn't read it but to report a fault of its own.
    unsafe { asm!("mov cr2, {}", in(reg) value, options(nostack, nomem)) };
}

/// What INIT changes of it.
pub fn start_up() {
    set_cr2(0);
    set_dr6(DR6_AT_RESET);
}

/// The guest's DR6.
pub fn dr6() -> u64 {
    let value;
    // SAFETY: reads a register; the host's DR7 doesn't guard it.
    unsafe { asm!("mov {}, dr6", out(reg) value, options(nostack, nomem)) };
    value
}

/// Sets the guest's DR6; the upper half of `value` is 0.
pub fn set_dr6(value: u64) {
    // SAFETY: the host doesn't read it.
    unsafe { asm!("mov dr6, {}", in(reg) value, options(nostack, nomem)) };
}
