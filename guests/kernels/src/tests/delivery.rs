//! Device interrupts: delivered, held back by IF, by the task priority and by what
//! is in service, and waking a halted CPU. With `eli` and `direct` none of it exits.

use super::edu;
use crate::idt::Step::{Enter, Leave};
use crate::{boot::Boot, console::check, counters::Window, cpu, edu, idt, wait, x2apic};
use ledger::Reason;

/// A hundred interrupts.
pub fn delivery(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let window = Window::open();
    let handled = edu.raise_and_wait(0x40, 100);
    let counted = window.close();
    check!(test, handled == 100, "{handled} handled of 100 raised");
    counted.expect(test, Reason::DeviceInterrupt, 100..=100, 0..=0);
    counted.expect(test, Reason::DeviceEoi, 100..=100, 0..=0);
    counted.expect_none(test);
    edu.silence();
}

/// Held back, then released.
pub fn masked(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    for vector in [0x41, 0x61, 0x81] {
        idt::on(vector, edu::handler);
    }
    edu.aim(0x41);
    let window = Window::open();
    edu::raise();
    wait::settle();
    let early = idt::count(0x41);
    cpu::enable_interrupts();
    let arrived = wait::until(|| idt::count(0x41) == 1);
    let counted = window.close();
    check!(test, early == 0 && arrived, "IF=0 holds an interrupt back, STI releases it");
    counted.expect(test, Reason::DeviceEoi, 1..=1, 0..=0);
    counted.expect_none(test);

    cpu::disable_interrupts();
    idt::clear_log();
    for vector in [0x41, 0x81, 0x61] {
        edu.aim(vector);
        edu::raise();
    }
    wait::settle();
    let requested = [0x41, 0x61, 0x81].map(x2apic::requested);
    check!(test, requested == [true; 3], "three wait in the request register");
    let window = Window::open();
    cpu::enable_interrupts();
    wait::until(|| idt::count(0x41) == 2);
    let counted = window.close();
    cpu::disable_interrupts();
    let order = [Enter(0x81), Leave(0x81), Enter(0x61), Leave(0x61), Enter(0x41), Leave(0x41)];
    verdict_of_log(test, &order, "three waiting ones come highest first");
    counted.expect_none(test);

    cpu::enable_interrupts();
    priority(test, &edu, "TPR", |class| cpu::wrmsr(x2apic::TPR, class << 4));
    priority(test, &edu, "CR8", cpu::set_cr8);
    edu.silence();
}

fn priority(test: &str, edu: &edu::Edu, name: &str, set: fn(u64)) {
    let (low, high) = (idt::count(0x41), idt::count(0x61));
    set(4);
    let told = cpu::cr8() == 4 && cpu::rdmsr(x2apic::TPR) == 0x40;
    check!(test, told, "{name}: CR8 and TPR agree");
    edu.aim(0x41);
    edu::raise();
    edu.aim(0x61);
    edu::raise();
    let passed = wait::until(|| idt::count(0x61) == high + 1);
    wait::settle();
    let held = idt::count(0x41) == low;
    check!(test, held, "{name} of class 4 holds 0x41 back");
    check!(test, passed, "{name} of class 4 passes 0x61");
    set(0);
    let released = wait::until(|| idt::count(0x41) == low + 1);
    check!(test, released, "{name} lowered releases it");
}

/// Prints whether the log is as wanted, and the log when it isn't.
pub fn verdict_of_log(test: &str, steps: &[idt::Step], what: &str) {
    let good = idt::log_is(steps);
    check!(test, good, "{what}");
    if !good {
        idt::print_log();
    }
}

/// A handler that doesn't complete.
pub fn no_eoi(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    idt::on(0x41, |_| edu::acknowledge());
    edu.aim(0x41);
    cpu::enable_interrupts();
    let taken = edu.raise_and_wait(0x41, 1) == 1;
    check!(test, taken && x2apic::in_service(0x41), "0x41 is taken and stays in service");

    edu::raise();
    edu.aim_handled(0x31);
    edu::raise();
    x2apic::self_ipi(0x42);
    wait::settle();
    let counts = [0x41, 0x31, 0x42].map(idt::count);
    check!(test, counts == [1, 0, 0], "again 0x41, lower 0x31, same class 0x42 wait: {counts:?}");

    edu.aim_handled(0x91);
    let higher = edu.raise_and_wait(0x91, 1) == 1;
    x2apic::self_ipi(0xA1);
    let higher = higher && wait::until(|| idt::count(0xA1) == 1);
    check!(test, higher, "higher 0x91 and 0xA1 come through");
    let order = x2apic::in_service(0x41) && !x2apic::in_service(0x91) && !x2apic::in_service(0xA1);
    check!(test, order, "their completion left 0x41 in service");

    idt::clear_log();
    x2apic::complete();
    wait::until(|| idt::count(0x41) == 2);
    x2apic::complete();
    wait::until(|| idt::count(0x31) == 1);
    let order = [Enter(0x42), Leave(0x42), Enter(0x41), Leave(0x41), Enter(0x31), Leave(0x31)];
    verdict_of_log(test, &order, "completion releases the waiting ones, highest first");

    adopted(test, &edu);

    for _ in 0..3 {
        x2apic::complete();
    }
    edu.aim_handled(0x51);
    let window = Window::open();
    let after = edu.raise_and_wait(0x51, 20);
    let counted = window.close();
    check!(test, after == 20, "completions of nothing do no harm: {after} of 20 came after");
    counted.expect_none(test);
    edu.silence();
}

/// What the CPU took by itself stays in service when its interrupt table is loaded, of which a
/// hypervisor that hides vectors in the table must know; completed once, it holds nothing back.
fn adopted(test: &str, edu: &edu::Edu) {
    edu.aim(0x41);
    let before = idt::count(0x41);
    let taken = edu.raise_and_wait(0x41, 1) == before + 1;
    idt::load();
    let stays = taken && x2apic::in_service(0x41);
    check!(test, stays, "0x41 stays in service when the interrupt table is loaded");
    x2apic::complete();
    let done = !x2apic::in_service(0x41);
    edu.aim_handled(0x32);
    let lower = edu.raise_and_wait(0x32, 5);
    check!(test, done && lower == 5, "completed, it holds nothing back: {lower} of 5 lower ones");
}

/// HLT, woken by the end of a computation.
pub fn halt(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    let window = Window::open();
    let mut right = 0;
    for i in 1..=20 {
        edu.compute(5);
        while idt::count(0x40) < i {
            cpu::halt_until_interrupt();
        }
        right += u64::from(edu.result() == Some(120));
    }
    // A result comes at once, the end of DMA when the core sleeps, or another has it.
    for i in 21..=25 {
        edu.start_and_tell(boot.free_memory().start, 64);
        while idt::count(0x40) < i {
            cpu::halt_until_interrupt();
        }
    }
    let counted = window.close();
    let woken = idt::count(0x40);
    check!(test, woken == 25 && right == 20, "{woken} wake-ups of 25, {right} right results of 20");
    counted.expect(test, Reason::DeviceInterrupt, 25..=25, 0..=0);
    counted.expect(test, Reason::DeviceEoi, 25..=25, 0..=0);
    counted.expect_none(test);
    edu.silence();
}
