//! A machine check that is the guest's, since the machine has no intercept of it.

use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt, x2apic,
};
use core::arch::asm;

const MACHINE_CHECK: u8 = 18;
/// In CR4: machine checks are exceptions.
const MCE: u64 = 1 << 6;
/// A vector of the timer's that ends HLT, should the machine check have come just before.
const TICK: u8 = 0x50;
/// Ticks of QEMU's timer between two looks.
const PERIOD: u32 = 50_000_000;

/// Says that it waits, and does until one has come.
pub fn machine_check(test: &str, _: &Boot) {
    idt::on(MACHINE_CHECK, |_| {});
    // SAFETY: the exception has a handler, and nothing else changes.
    unsafe {
        asm!("mov {t}, cr4", "or {t}, {mce}", "mov cr4, {t}", t = out(reg) _, mce = in(reg) MCE)
    };
    x2apic::start_timer(TICK, true, PERIOD);
    println!("waiting for a machine check");
    while idt::count(MACHINE_CHECK) == 0 {
        cpu::halt_until_interrupt();
    }
    x2apic::stop_timer();
    check!(test, idt::count(MACHINE_CHECK) == 1, "it came once");
}
