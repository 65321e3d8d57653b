//! NMIs from CPU to CPU, as a backtrace of all CPUs sends them; and commands without effect.

use crate::counters::{Policy, policy};
use crate::x2apic::command::{self, BROADCAST, LOGICAL, NMI, OTHERS};
use crate::{boot::Boot, console::check, cpu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const NMI_VECTOR: u8 = 2;

static DEPTH: AtomicU64 = AtomicU64::new(0);
static DEEPEST: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);
static AT_RETURN: AtomicU64 = AtomicU64::new(0);
static LEAVE: AtomicU64 = AtomicU64::new(0);
static READY: AtomicU64 = AtomicU64::new(0);

/// Interrupts off until told.
fn deaf(_: usize) {
    cpu::disable_interrupts();
    READY.fetch_add(1, SeqCst);
    while LEAVE.load(SeqCst) == 0 {
        cpu::pause();
    }
}

fn deaf_and_halted(_: usize) {
    cpu::disable_interrupts();
    READY.fetch_add(1, SeqCst);
    cpu::halt();
}

/// To CPUs that have interrupts off, that are halted, that are in an NMI's handler.
pub fn nmi(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    idt::on(NMI_VECTOR, |_| {});
    let backtrace = |what: &str, job: fn(usize)| {
        READY.store(0, SeqCst);
        LEAVE.store(0, SeqCst);
        let before: [u64; smp::MAX] = core::array::from_fn(|cpu| idt::count_on(cpu, NMI_VECTOR));
        let ready = || READY.load(SeqCst) == count as u64 - 1;
        let came = smp::others(count, job, || {
            let ready = wait::patiently(ready);
            x2apic::send(0, OTHERS | NMI);
            let came = wait::patiently(|| {
                (1..count).all(|cpu| idt::count_on(cpu, NMI_VECTOR) > before[cpu])
            });
            wait::settle();
            let once = (1..count).all(|cpu| idt::count_on(cpu, NMI_VECTOR) == before[cpu] + 1);
            // The second one lets those go that took the first just before they halted.
            LEAVE.store(1, SeqCst);
            x2apic::send(0, OTHERS | NMI);
            ready && came && once
        });
        wait::patiently(|| (1..count).all(|cpu| idt::count_on(cpu, NMI_VECTOR) >= before[cpu] + 2));
        wait::settle();
        let twice = (1..count).all(|cpu| idt::count_on(cpu, NMI_VECTOR) == before[cpu] + 2);
        let here = idt::count(NMI_VECTOR) == before[0];
        check!(test, came && twice && here, "to all others, {what}: each takes each");
    };
    backtrace("with interrupts off", deaf);
    backtrace("halted with interrupts off", deaf_and_halted);

    let before = idt::count_on(1, NMI_VECTOR);
    LEAVE.store(0, SeqCst);
    READY.store(0, SeqCst);
    let good = smp::others(2, deaf, || {
        let mut good = wait::patiently(|| READY.load(SeqCst) == 1);
        for i in 1..=100 {
            x2apic::send(1, NMI);
            good &= wait::patiently(|| idt::count_on(1, NMI_VECTOR) >= before + i);
        }
        LEAVE.store(1, SeqCst);
        good
    });
    wait::settle();
    let n = idt::count_on(1, NMI_VECTOR) - before;
    check!(test, good && n == 100, "to one, by its id, with interrupts off: {n} of 100");
    nested(test);
    to_itself(test, count);
}

/// While one is handled another waits, and a third is lost, as the CPU has one latch. The one that
/// waits comes behind the return of the first, not before it.
fn nested(test: &str) {
    idt::on(NMI_VECTOR, |frame| {
        AT_RETURN.fetch_add(u64::from(frame.at_return()), SeqCst);
        DEEPEST.fetch_max(DEPTH.fetch_add(1, SeqCst) + 1, SeqCst);
        HELD.fetch_add(1, SeqCst);
        wait::until(|| LEAVE.load(SeqCst) == 1);
        DEPTH.fetch_sub(1, SeqCst);
    });
    LEAVE.store(0, SeqCst);
    let before = idt::count_on(1, NMI_VECTOR);
    x2apic::send(1, NMI);
    let taken = wait::until(|| HELD.load(SeqCst) == 1);
    x2apic::send(1, NMI);
    x2apic::send(1, NMI);
    wait::settle();
    let within = idt::count_on(1, NMI_VECTOR) - before;
    LEAVE.store(1, SeqCst);
    wait::until(|| idt::count_on(1, NMI_VECTOR) >= before + 2);
    wait::settle();
    let (n, deepest) = (idt::count_on(1, NMI_VECTOR) - before, DEEPEST.load(SeqCst));
    check!(
        test,
        taken && within == 1 && n == 2 && deepest == 1,
        "two more while one is handled: {within} then, {n} at the end, {deepest} deep"
    );
    let at_return = AT_RETURN.load(SeqCst);
    check!(test, at_return == 0, "{at_return} of them before the return from another");
    idt::on(NMI_VECTOR, |_| {});
}

fn to_itself(test: &str, count: usize) {
    let before = idt::total(NMI_VECTOR);
    let done = smp::all(count, |cpu| {
        let before = idt::count(NMI_VECTOR);
        x2apic::send(cpu as u32, NMI);
        wait::until(|| idt::count(NMI_VECTOR) == before + 1);
    });
    wait::settle();
    let n = idt::total(NMI_VECTOR) - before;
    check!(test, done && n == count as u64, "each CPU to itself: {n} of {count}");
}

/// Commands that must do nothing: reserved delivery modes, illegal vectors, CPUs that
/// aren't there. A hypervisor may refuse what has reserved bits by #GP.
pub fn void(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    cpu::enable_interrupts();
    // The wake-ups of start-up are over.
    wait::settle();
    let nobody = 1 << 15;
    let everywhere: [(&str, u32, u64); 12] = [
        ("reserved mode 3", 1, command::RESERVED | 0x55),
        ("to an id that isn't there", 0x77, 0x55),
        ("to an id of another cluster", 0x11, 0x55),
        ("to a large id", 0x7FFF_FFFF, 0x55),
        ("to no bit of the cluster", 0, LOGICAL | 0x55),
        ("to a bit that isn't there", nobody, LOGICAL | 0x55),
        ("to another cluster", 0x0001_0001, LOGICAL | 0x55),
        ("NMI to an id that isn't there", 0x77, NMI),
        ("NMI to another cluster", 0x0007_0001, LOGICAL | NMI),
        ("INIT to an id that isn't there", 0x77, command::INIT),
        ("INIT de-assert", BROADCAST, command::INIT_DEASSERT),
        ("start-up to an id that isn't there", 0x77, command::START_UP | 8),
    ];
    // QEMU's machine delivers some of these, and its firmware takes the SMIs.
    let as_guest = [
        ("ExtINT", 1, command::EXT_INT | 0x55),
        ("SMI", 1, command::SMI),
        ("SMI to all", 0, command::ALL | command::SMI),
        ("vector 0", 1, 0),
        ("vector 15", 1, 15),
        ("vector 15 to itself", 0, command::SELF | 15),
        ("vector 3 to all", BROADCAST, 3),
    ];
    let as_guest = as_guest.into_iter().filter(|_| policy() != Policy::Bare);
    for (what, destination, command) in everywhere.into_iter().chain(as_guest) {
        let starts: u64 = (0..count).map(smp::starts).sum();
        let before = idt::everything();
        let value = u64::from(destination) << 32 | command;
        let fault = cpu::try_wrmsr(x2apic::ICR, value).is_err();
        wait::ticks(5_000_000);
        let n = idt::everything() - before - u64::from(fault);
        let starts = (0..count).map(smp::starts).sum::<u64>() - starts;
        check!(test, n == 0 && starts == 0, "{what}: {n} interrupts, {starts} starts");
    }
    let worked = smp::all(count, |_| {});
    check!(test, worked, "all CPUs work afterwards");
}
