//! What an interrupt from CPU to CPU costs: exits, and, for the counting plugin, windows
//! around some of them.

use crate::counters::{Policy, Window, policy};
use crate::x2apic::command::OTHERS;
use crate::{boot::Boot, console::check, cpu, idt, smp, wait, x2apic};
use ledger::Reason;

const VECTOR: u8 = 0x45;
/// Interrupts in a window of exits, unless `ipis=N` says other.
const COUNTED: u64 = 100;
/// Interrupts in a window of instructions; the harness knows the number.
const MEASURED: u64 = 1000;

/// Sends, and waits until each of `targets` has it.
fn send(destination: u32, what: u64, targets: core::ops::Range<usize>) -> bool {
    let before: [u64; smp::MAX] = core::array::from_fn(|cpu| idt::count_on(cpu, VECTOR));
    x2apic::send(destination, what | u64::from(VECTOR));
    wait::patiently(|| targets.clone().all(|cpu| idt::count_on(cpu, VECTOR) > before[cpu]))
}

/// One exit each, however many CPUs it goes to; with `direct` and `posted` none for those who get
/// and complete it, whether they compute or sleep; with `posted` who falls asleep exits for that.
pub fn exits(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    let times = boot.option("ipis").and_then(|n| n.parse().ok()).unwrap_or(COUNTED);
    cpu::enable_interrupts();
    // The first one may be slow: the receiver has yet to halt.
    send(1, 0, 1..2);
    for (what, destination, command, targets) in
        [("to one", 1, 0, 1..2), ("to all others", 0, OTHERS, 1..count)]
    {
        let windows: [Window; smp::MAX] = core::array::from_fn(Window::of);
        let came = (0..times).all(|_| send(destination, command, targets.clone()));
        let counted = windows.map(Window::close);
        check!(test, came, "{what}: all {times} came");
        if policy() == Policy::Bare {
            continue;
        }
        let n = counted[0].of(Reason::Ipi);
        check!(test, n == times, "{what}: {n} ipi exits of the sender for {times}");
        if matches!(policy(), Policy::Direct | Policy::Posted) {
            let sender = counted[0].own();
            check!(test, sender == times, "{what}: {sender} exits of the sender in all");
            // The notification of what is posted is the host's interrupt, and HLT exits.
            let posted = policy() == Policy::Posted;
            let receivers = counted[1..count].iter().map(|c| match posted {
                true => c.own() - c.of(Reason::Halt) + c.of(Reason::HostInterrupt),
                false => c.own() + c.of(Reason::Ipi),
            });
            let receivers: u64 = receivers.sum();
            check!(test, receivers == 0, "{what}: {receivers} exits of the receivers");
            if sender != times || receivers != 0 {
                counted.iter().for_each(|c| c.print());
            }
        }
    }
}

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! marker {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

/// A window around interrupts to one CPU, one around interrupts to all others, and one around an
/// exit that does little.
pub fn instructions(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    cpu::enable_interrupts();
    let mut came = (0..COUNTED).all(|_| send(1, 0, 1..2));
    marker!("0x45580001");
    for _ in 0..MEASURED {
        came &= send(1, 0, 1..2);
    }
    marker!("0x45580002");
    came &= (0..COUNTED).all(|_| send(0, OTHERS, 1..count));
    marker!("0x45580001");
    for _ in 0..MEASURED {
        came &= send(0, OTHERS, 1..count);
    }
    marker!("0x45580002");
    for _ in 0..COUNTED {
        cpu::cpuid(0);
    }
    marker!("0x45580001");
    for _ in 0..MEASURED {
        cpu::cpuid(0);
    }
    marker!("0x45580002");
    check!(test, came, "{MEASURED} to one, {MEASURED} to all {} others", count - 1);
}
