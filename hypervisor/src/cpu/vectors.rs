//! The guest's vector registers, which stay in the CPU at an exit because the host uses none.
//!
//! Guarantees that AVX is used only while XCR0 has it: the guest may have put another instruction
//! where the one that exited was.

use super::control;
use core::arch::asm;
use decode::Vectors;

/// XCR0: SSE and AVX.
const AVX: u32 = 1 << 1 | 1 << 2;

/// Those of the guest whose exit this core handles.
pub struct GuestVectors;

/// Moves the vector register of a number to or from memory.
macro_rules! for_each_register {
    ($move:ident, $number:expr, $vex:expr, $pointer:expr) => {
        for_each_register!(@all $move, $number, $vex, $pointer,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@all $move:ident, $number:expr, $vex:expr, $pointer:expr, $($n:literal)*) => {
        match ($number & 15, $vex) {
            $(
                ($n, false) => for_each_register!(@$move "movups", "xmm", $n, $pointer),
                ($n, true) => for_each_register!(@$move "vmovups", "ymm", $n, $pointer),
            )*
            _ => {}
        }
    };
    (@store $opcode:literal, $file:literal, $n:literal, $pointer:expr) => {
        asm!(concat!($opcode, " [{}], ", $file, $n), in(reg) $pointer, options(nostack))
    };
    (@load $opcode:literal, $file:literal, $n:literal, $pointer:expr) => {
        asm!(concat!($opcode, " ", $file, $n, ", [{}]"), in(reg) $pointer, options(nostack))
    };
}

impl Vectors for GuestVectors {
    fn usable(&self, vex: bool) -> bool {
        !vex || control::xcr0().0 & AVX == AVX
    }

    fn read(&self, number: u8, vex: bool) -> [u64; 4] {
        let mut value = [0u64; 4];
        if self.usable(vex) {
            // SAFETY: 32 bytes of ours; CR4.OSFXSR and OSXSAVE are set and CR0.TS isn't, by
            // `control::setup`, and XCR0 has AVX where that is used.
            unsafe { for_each_register!(store, number, vex, value.as_mut_ptr()) }
        }
        value
    }

    fn write(&mut self, number: u8, value: [u64; 4], vex: bool) {
        if self.usable(vex) {
            // SAFETY: as in `read`; the host's code uses no vector register.
            unsafe { for_each_register!(load, number, vex, value.as_ptr()) }
        }
    }
}
