//! No device is assigned: ELI then has nothing to gain, and must cost nothing either (paper 4.1:
//! never worse than the baseline). The same counts are wanted under `trap` and under `eli`.

use crate::{boot::Boot, console::check, counters::Window, cpu, idt, wait, x2apic};
use core::ops::RangeInclusive;
use ledger::Reason;

/// How often each thing is done.
const TIMES: u64 = 1000;
const VECTOR: u8 = 0x51;
/// Sleeps, each until the timer has counted down.
const SLEEPS: u64 = 100;
const TIMER: u8 = 0x52;
const COUNT: u32 = 100_000;
const ALL: RangeInclusive<u64> = TIMES..=TIMES;
const NONE: RangeInclusive<u64> = 0..=0;

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! marker {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

/// Interrupts to itself with their completions, timers slept for, stores to the interrupt table,
/// LIDT.
pub fn unassigned(test: &str, _: &Boot) {
    let (table, limit) = cpu::stored_idt();
    let gate = idt::read_gate(table, VECTOR);
    cpu::enable_interrupts();
    let before = idt::count(VECTOR);
    let window = Window::open();
    marker!("0x45580001");
    let mut came = true;
    for n in 1..=TIMES {
        x2apic::self_ipi(VECTOR);
        came &= wait::until(|| idt::count(VECTOR) == before + n);
    }
    marker!("0x45580002");
    let interrupts = window.close();
    check!(test, came, "all {TIMES} interrupts came");
    interrupts.expect(test, Reason::Ipi, ALL, ALL);
    interrupts.expect(test, Reason::OtherEoi, ALL, ALL);
    check!(test, interrupts.own() == 2 * TIMES, "{} exits in all", interrupts.own());

    cpu::disable_interrupts();
    let before = idt::count(TIMER);
    let window = Window::open();
    for _ in 0..SLEEPS {
        x2apic::start_timer(TIMER, false, COUNT);
        cpu::halt_until_interrupt();
    }
    let sleeps = window.close();
    let ticks = idt::count(TIMER) - before;
    check!(test, ticks == SLEEPS, "{ticks} of {SLEEPS} sleeps ended by the timer");
    for reason in [Reason::TimerInterrupt, Reason::TimerEoi] {
        sleeps.expect(test, reason, SLEEPS..=SLEEPS, SLEEPS..=SLEEPS);
    }
    // Its divider, its entry of the local vector table, its count.
    sleeps.expect(test, Reason::TimerProgram, 3 * SLEEPS..=3 * SLEEPS, 3 * SLEEPS..=3 * SLEEPS);
    check!(test, sleeps.own() == 5 * SLEEPS, "{} exits for them", sleeps.own());

    let window = Window::open();
    for _ in 0..TIMES {
        idt::write_gate(table, VECTOR, gate);
        cpu::load_idt(table, limit);
    }
    let tables = window.close();
    tables.expect(test, Reason::IdtLoad, NONE, NONE);
    tables.expect(test, Reason::IdtWrite, NONE, NONE);
    check!(test, tables.own() == 0, "{} exits for its interrupt table", tables.own());
}
