//! The local APIC timer, alone and among device interrupts: right counts, right
//! in-service bits, right nesting, and nothing left behind when it stops.

use super::{delivery::verdict_of_log, edu};
use crate::counters::{Policy, Window, policy};
use crate::idt::Step::{Enter, Leave};
use crate::{boot::Boot, console::check, cpu, edu, idt, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

/// About a millisecond, in ticks of QEMU's timer.
const SHORT: u32 = 1_000_000;

static BEFORE: AtomicU64 = AtomicU64::new(0);
static WITHIN: AtomicU64 = AtomicU64::new(0);
static AFTER: AtomicU64 = AtomicU64::new(0);

/// One-shot, masked and periodic.
pub fn alone(test: &str, _: &Boot) {
    WITHIN.store(0, SeqCst);
    AFTER.store(0, SeqCst);
    idt::on(0x50, |_| {
        WITHIN.fetch_add(u64::from(x2apic::in_service(0x50)), SeqCst);
        x2apic::complete();
        AFTER.fetch_add(u64::from(x2apic::in_service(0x50)), SeqCst);
    });
    cpu::enable_interrupts();
    x2apic::start_timer(0x50, false, SHORT);
    let fired = wait::until(|| idt::count(0x50) == 1);
    wait::settle();
    let once = idt::count(0x50) == 1 && x2apic::timer_count() == 0;
    check!(test, fired && once, "one-shot fires once");

    x2apic::start_timer(0x50, false, u32::MAX);
    let (a, b) = (x2apic::timer_count(), x2apic::timer_count());
    check!(test, a >= b && b > 0, "the count runs down: {a:#x}, {b:#x}");
    let divider = x2apic::timer_divider();
    check!(test, divider == 0xB, "the divider is as written before the entry: {divider:#x}");
    x2apic::stop_timer();
    check!(test, x2apic::timer_count() == 0, "writing 0 stops it");

    let window = Window::open();
    let before = idt::count(0x50);
    x2apic::start_timer(0x50, true, 2 * SHORT);
    let fired = wait::until(|| idt::count(0x50) >= before + 20);
    x2apic::stop_timer();
    let n = idt::count(0x50) - before;
    let counted = window.close();
    check!(test, fired, "periodic fires 20 times");
    if policy() == Policy::Direct {
        let n = counted.of(Reason::TimerProgram);
        check!(test, n == 4, "the entry exits, and the count of a periodic timer: {n} of 4");
    } else {
        counted.expect(test, Reason::TimerProgram, 5..=5, 5..=5);
    }
    counted.expect(test, Reason::TimerInterrupt, n..=n + 4, n..=n + 4);
    counted.expect(test, Reason::TimerEoi, n..=n + 4, 0..=n + 4);
    counted.expect_few(test, u64::MAX);
    wait::settle();
    let late = idt::count(0x50) - before - n;
    check!(test, late <= 1, "stopped, it fires no more");
    let (all, within, after) = (idt::count(0x50), WITHIN.load(SeqCst), AFTER.load(SeqCst));
    check!(
        test,
        within == all && after == 0,
        "in service {within} of {all} times, {after} after EOI"
    );
    if policy() == Policy::Direct {
        cleared(test);
    }
}

/// One that waits as the timer's entry is cleared comes all the same, and nothing exits for it: the
/// local APIC stays the guest's.
fn cleared(test: &str) {
    let before = idt::count(0x50);
    cpu::disable_interrupts();
    x2apic::start_timer(0x50, false, 1);
    let waits = wait::until(|| x2apic::requested(0x50));
    x2apic::clear_timer();
    let window = Window::open();
    let still = x2apic::requested(0x50);
    cpu::enable_interrupts();
    cpu::pause();
    let came = idt::count(0x50) - before;
    let counted = window.close();
    check!(test, waits && still && came == 1, "one waits as its entry is cleared: {came} came");
    counted.expect_none(test);
}

/// Ticks without end, while the CPU computes and while it sleeps: under `direct` nothing exits.
/// Options: `ticks=N`, for each of the two.
pub fn many(test: &str, boot: &Boot) {
    let ticks = boot.option("ticks").and_then(|n| n.parse().ok()).unwrap_or(20);
    idt::on(0x50, |_| x2apic::complete());
    cpu::enable_interrupts();
    x2apic::start_timer(0x50, true, SHORT);
    let window = Window::open();
    while idt::count(0x50) < ticks {
        cpu::pause();
    }
    while idt::count(0x50) < 2 * ticks {
        cpu::halt_until_interrupt();
    }
    let counted = window.close();
    x2apic::stop_timer();
    check!(test, true, "{ticks} ticks while it computes, and while it sleeps");
    if policy() == Policy::Direct {
        counted.expect_none(test);
    }
}

/// A host whose handler takes longer than a timer's period must not be caught in it. On bare
/// metal the guest would catch itself.
pub fn floor(test: &str, _: &Boot) {
    idt::on(0x50, |_| x2apic::complete());
    cpu::enable_interrupts();
    x2apic::start_timer(0x50, true, 1);
    let fired = wait::until(|| idt::count(0x50) >= 5);
    x2apic::stop_timer();
    check!(test, fired, "a period of one tick leaves the core to its guest");
    // Made periodic when it runs or has expired already: it needn't go on, but mustn't take the
    // core.
    x2apic::start_timer(0x50, false, 1);
    x2apic::make_periodic(0x50);
    wait::settle();
    x2apic::stop_timer();
    let before = idt::count(0x50);
    x2apic::start_timer(0x50, false, 1);
    let fired = wait::until(|| idt::count(0x50) > before);
    check!(test, fired, "made periodic later, it does so, too");
    // While it is periodic, its count and its divider are no way around.
    let fires = |how: &str| {
        let before = idt::count(0x50);
        let fired = wait::until(|| idt::count(0x50) >= before + 5);
        check!(test, fired, "a period of one tick by its {how} leaves the core to its guest");
    };
    x2apic::start_timer(0x50, true, 1);
    cpu::wrmsr(x2apic::INITIAL_COUNT, 1);
    fires("count");
    cpu::wrmsr(x2apic::DIVIDE, 0x8);
    cpu::wrmsr(x2apic::INITIAL_COUNT, 1);
    cpu::wrmsr(x2apic::DIVIDE, 0xB);
    fires("divider");
    if policy() == Policy::Direct {
        let least = x2apic::timer_initial();
        check!(test, least > 1000, "the count it has is {least}");
    }
    x2apic::stop_timer();
}

/// Device interrupts below and above a running timer.
pub fn mixed(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    cpu::enable_interrupts();
    for vector in [0x40, 0x7C, 0xA0] {
        edu.aim_handled(vector);
        let before = idt::count(0x70);
        let window = Window::open();
        x2apic::start_timer(0x70, true, SHORT / 4);
        let handled = edu.raise_and_wait(vector, 200);
        let ticking = wait::until(|| idt::count(0x70) >= before + 5);
        x2apic::stop_timer();
        let counted = window.close();
        check!(
            test,
            handled == 200 && ticking,
            "{handled} of 200 at {vector:#x} beside a timer at 0x70"
        );
        counted.expect_few(test, u64::MAX);
    }
    quiet_again(test, &edu);
    edu.silence();
}

/// With the timer gone, device interrupts cost no exit again.
fn quiet_again(test: &str, edu: &edu::Edu) {
    wait::settle();
    edu.aim_handled(0x48);
    let before = idt::count(0x48);
    let window = Window::open();
    let handled = edu.raise_and_wait(0x48, 50) - before;
    let counted = window.close();
    check!(test, handled == 50, "{handled} of 50 after the timer stopped");
    counted.expect(test, Reason::DeviceInterrupt, 50..=50, 0..=0);
    counted.expect(test, Reason::DeviceEoi, 50..=50, 0..=0);
    counted.expect_none(test);
}

/// Handlers that let others in.
pub fn nested(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    timer_inside_device(test, &edu);
    device_inside_timer(test, &edu);
    completed_last(test, &edu);
    waiting_together(test, &edu);
    cpu::enable_interrupts();
    quiet_again(test, &edu);
    edu.silence();
}

fn timer_inside_device(test: &str, edu: &edu::Edu) {
    idt::on(0x40, |_| {
        edu::acknowledge();
        x2apic::start_timer(0x70, false, SHORT);
        let before = idt::count(0x70);
        cpu::enable_interrupts();
        wait::until(|| idt::count(0x70) > before);
        cpu::disable_interrupts();
        WITHIN.store(u64::from(x2apic::in_service(0x40)), SeqCst);
        x2apic::complete();
    });
    edu.aim(0x40);
    idt::clear_log();
    cpu::enable_interrupts();
    edu.raise_and_wait(0x40, 1);
    cpu::disable_interrupts();
    let steps = [Enter(0x40), Enter(0x70), Leave(0x70), Leave(0x40)];
    verdict_of_log(test, &steps, "a higher timer enters a device's handler");
    let kept = WITHIN.load(SeqCst) == 1 && !x2apic::in_service(0x40);
    check!(test, kept, "its completion left the device's in service");
}

/// The timer's handler raises the device's interrupt, completes, and notes how many
/// came before and after its completion.
fn timer_that_raises(_: &mut idt::Frame) {
    let device = DEVICE.load(SeqCst) as u8;
    let count = idt::count(device);
    cpu::enable_interrupts();
    edu::raise();
    wait::settle();
    BEFORE.store(idt::count(device) - count, SeqCst);
    WITHIN.store(u64::from(x2apic::in_service(0x74)), SeqCst);
    x2apic::complete();
    wait::until(|| idt::count(device) > count);
    AFTER.store(idt::count(device) - count, SeqCst);
    cpu::disable_interrupts();
}

static DEVICE: AtomicU64 = AtomicU64::new(0);

fn device_inside_timer(test: &str, edu: &edu::Edu) {
    idt::on(0x74, timer_that_raises);
    for (vector, before) in [(0x40, 0), (0x71, 0), (0x7E, 0), (0x90, 1)] {
        DEVICE.store(u64::from(vector), SeqCst);
        edu.aim_handled(vector);
        let fired = idt::count(0x74);
        cpu::enable_interrupts();
        x2apic::start_timer(0x74, false, SHORT);
        wait::until(|| idt::count(0x74) > fired && AFTER.load(SeqCst) > 0);
        cpu::disable_interrupts();
        let seen = [&BEFORE, &WITHIN, &AFTER].map(|c| c.swap(0, SeqCst));
        check!(
            test,
            seen == [before, 1, 1],
            "in a timer's handler at 0x74, a device at {vector:#x} comes {} its EOI: {seen:?}",
            if before == 1 { "before" } else { "after" }
        );
    }
}

fn completed_last(test: &str, edu: &edu::Edu) {
    idt::on(0x41, |_| {
        edu::acknowledge();
        x2apic::start_timer(0x51, false, SHORT);
        cpu::enable_interrupts();
        wait::until(|| idt::count(0x61) > 0);
        cpu::disable_interrupts();
    });
    idt::on(0x51, |_| {
        cpu::enable_interrupts();
        x2apic::self_ipi(0x61);
        wait::until(|| idt::count(0x61) > 0);
        cpu::disable_interrupts();
    });
    idt::on(0x61, |_| {});
    edu.aim(0x41);
    idt::clear_log();
    cpu::enable_interrupts();
    edu.raise_and_wait(0x41, 1);
    cpu::disable_interrupts();
    let steps = [Enter(0x41), Enter(0x51), Enter(0x61), Leave(0x61), Leave(0x51), Leave(0x41)];
    verdict_of_log(test, &steps, "device, timer and self IPI nest three deep");
    let mut popped = [[false; 3]; 4];
    for row in &mut popped {
        *row = [0x41, 0x51, 0x61].map(x2apic::in_service);
        x2apic::complete();
    }
    let right = [[true, true, true], [true, true, false], [true, false, false], [false; 3]];
    check!(test, popped == right, "completed afterwards, highest first: {popped:?}");
}

fn waiting_together(test: &str, edu: &edu::Edu) {
    for vector in [0x43, 0x93] {
        edu.aim_handled(vector);
        edu::raise();
    }
    x2apic::start_timer(0x73, false, SHORT);
    let requested = wait::until(|| x2apic::requested(0x73));
    check!(test, requested, "with IF=0 the timer waits in the request register");
    idt::clear_log();
    cpu::enable_interrupts();
    wait::until(|| idt::count(0x43) == 1);
    cpu::disable_interrupts();
    let steps = [Enter(0x93), Leave(0x93), Enter(0x73), Leave(0x73), Enter(0x43), Leave(0x43)];
    verdict_of_log(test, &steps, "devices and timer that waited come highest first");
}
