//! A guest that computes, sleeps and takes its timer's interrupts, and nothing else. With
//! `direct` none of that exits for any reason, whoever watches the machine meanwhile.

use crate::{
    boot::Boot,
    console::{check, println},
    counters::{Policy, Window, policy},
    cpu, idt, x2apic,
};

/// A tenth of a second, in ticks of QEMU's timer.
const PERIOD: u32 = 100_000_000;
/// Ticks for which it computes, and for which it sleeps.
const TICKS: u64 = 15;

/// Computes, then sleeps.
pub fn quiet(test: &str, _: &Boot) {
    idt::on(0x50, |_| x2apic::complete());
    x2apic::start_timer(0x50, true, PERIOD);
    println!("quiet from here");
    let window = Window::open();
    cpu::enable_interrupts();
    while idt::count(0x50) < TICKS {
        cpu::pause();
    }
    while idt::count(0x50) < 2 * TICKS {
        cpu::halt_until_interrupt();
    }
    let counted = window.close();
    println!("quiet to here");
    x2apic::stop_timer();
    check!(test, idt::count(0x50) >= 2 * TICKS, "the timer's interrupts came");
    if policy() == Policy::Direct {
        check!(test, counted.all() == 0, "{} exits while it computed and slept", counted.all());
        counted.print();
    }
}
