//! The timers of all CPUs at once.

use crate::counters::{Policy, Window, policy};
use crate::{boot::Boot, console::check, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

/// Ticks each CPU waits for.
const TICKS: u64 = 25;
/// Some milliseconds, in ticks of QEMU's timer.
const PERIOD: u32 = 4_000_000;

static IN_SERVICE: [AtomicU64; smp::MAX] = [const { AtomicU64::new(0) }; smp::MAX];

fn vector(cpu: usize) -> u8 {
    0x50 + 0x11 * cpu as u8
}

/// Each ticks by itself, with a vector and a period of its own, and stops.
pub fn timers(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    for (cpu, served) in IN_SERVICE.iter().enumerate().take(count) {
        served.store(0, SeqCst);
        idt::on(vector(cpu), |_| {
            let cpu = smp::index();
            let good = x2apic::in_service(vector(cpu));
            IN_SERVICE[cpu].fetch_add(u64::from(good), SeqCst);
            x2apic::complete();
        });
    }
    let windows: [Window; smp::MAX] = core::array::from_fn(Window::of);
    let done = smp::all(count, |cpu| {
        x2apic::start_timer(vector(cpu), true, PERIOD + PERIOD / 4 * cpu as u32);
        wait::patiently(|| idt::count(vector(cpu)) >= TICKS);
        x2apic::stop_timer();
    });
    let counted = windows.map(Window::close);
    wait::settle();
    let first: [u64; smp::MAX] = core::array::from_fn(|cpu| idt::count_on(cpu, vector(cpu)));
    wait::settle();
    for cpu in 0..count {
        let n = idt::count_on(cpu, vector(cpu));
        let (served, strays) = (IN_SERVICE[cpu].load(SeqCst), idt::total(vector(cpu)) - n);
        check!(
            test,
            done && n >= TICKS && served == n && strays == 0 && n == first[cpu],
            "CPU {cpu}: {n} ticks, {served} in service, {strays} elsewhere"
        );
        if policy() == Policy::Direct {
            let exits = [Reason::TimerInterrupt, Reason::TimerEoi].map(|r| counted[cpu].of(r));
            check!(test, exits == [0, 0], "CPU {cpu}: exits for ticks and their EOI: {exits:?}");
        }
    }
}
