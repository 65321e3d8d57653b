//! Another CPU is in a guest of its own, when it gets an NMI or INIT, when the machine is reset,
//! and when the test is over.

use super::block::{self, Guest, exit};
use super::{SVME, ahead, inits, inside, waiting};
use crate::counters::{Policy, policy};
use crate::tests::restart::{lives, reset};
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const EFER: u32 = 0xC000_0080;
const VM_HSAVE_PA: u32 = 0xC001_0117;
const NMI_VECTOR: u8 = 2;
const VECTOR: u8 = 0x51;
const ROUNDS: u64 = 10;

static INSIDE: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(u64::MAX);
static TOLD: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);

/// Turns SVM on, on this CPU.
pub fn turn_on() {
    FOUND.store(cpu::rdmsr(EFER) & SVME | cpu::rdmsr(VM_HSAVE_PA), SeqCst);
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) | SVME);
    cpu::wrmsr(VM_HSAVE_PA, block::host_save());
}

/// A guest that never leaves by itself.
fn spin(_: usize) {
    turn_on();
    let mut guest = Guest::new(inside::spins());
    INSIDE.fetch_add(1, SeqCst);
    loop {
        guest.enter_open();
        block::let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
    }
}

/// Interrupts end its guest, and it never takes them. Its flag stays clear.
fn hold_untaken(_: usize) {
    untaken(|| ());
}

/// The same with the flag set, and IF clear.
fn wait_untaken(_: usize) {
    untaken(block::let_in);
}

fn untaken(then: fn()) {
    turn_on();
    cpu::disable_interrupts();
    let mut guest = Guest::new(inside::spins());
    for _ in 0..2 {
        x2apic::self_ipi(VECTOR);
        guest.enter_open();
    }
    then();
    INSIDE.fetch_add(1, SeqCst);
    loop {
        cpu::pause();
    }
}

/// The same, until an NMI came.
fn spin_until_nmi(_: usize) {
    turn_on();
    let mut guest = Guest::new(inside::spins());
    guest.leave_for(block::NMI_WANTED);
    for _ in 0..ROUNDS {
        let before = idt::count(NMI_VECTOR);
        INSIDE.fetch_add(1, SeqCst);
        guest.enter_through();
        let early = idt::count(NMI_VECTOR) - before;
        block::let_in();
        let came = idt::count(NMI_VECTOR) - before;
        TOLD.fetch_add(u64::from(guest.code() == exit::NMI && early == 0 && came == 1), SeqCst);
    }
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !SVME);
}

/// With the flag clear an NMI waits, too, whoever keeps the flag.
fn hold_nmis(_: usize) {
    turn_on();
    for _ in 0..ROUNDS {
        block::hold_again();
        let before = idt::count(NMI_VECTOR);
        INSIDE.fetch_add(1, SeqCst);
        wait::patiently(|| SENT.load(SeqCst) >= INSIDE.load(SeqCst));
        wait::settle();
        let early = idt::count(NMI_VECTOR) - before;
        block::let_in();
        wait::settle();
        let came = idt::count(NMI_VECTOR) - before;
        TOLD.fetch_add(u64::from(early == 0 && came == 1), SeqCst);
    }
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !SVME);
}

/// Gives the second CPU this to do, and waits until it is in its guest.
fn inside(job: fn(usize)) -> bool {
    INSIDE.store(0, SeqCst);
    smp::give(1, job);
    let came = wait::patiently(|| INSIDE.load(SeqCst) == 1);
    wait::settle();
    came
}

/// NMIs, INITs, and the end of the VM.
pub fn events(test: &str, boot: &Boot) {
    if super::super::cpus(test, boot).is_none() {
        return;
    }
    idt::on(NMI_VECTOR, |_| {});
    INSIDE.store(0, SeqCst);
    let came = smp::others(2, spin_until_nmi, || {
        (1..=ROUNDS).all(|round| {
            let ready = wait::patiently(|| INSIDE.load(SeqCst) == round);
            wait::settle();
            x2apic::send(1, x2apic::command::NMI);
            ready && wait::patiently(|| INSIDE.load(SeqCst) > round || TOLD.load(SeqCst) == ROUNDS)
        })
    });
    let told = TOLD.load(SeqCst);
    check!(test, came && told == ROUNDS, "{told} NMIs ended a guest, and came with STGI");

    INSIDE.store(0, SeqCst);
    TOLD.store(0, SeqCst);
    let came = smp::others(2, hold_nmis, || {
        (1..=ROUNDS).all(|round| {
            let ready = wait::patiently(|| INSIDE.load(SeqCst) == round);
            x2apic::send(1, x2apic::command::NMI);
            SENT.store(round, SeqCst);
            ready
        })
    });
    let waited = TOLD.load(SeqCst);
    check!(test, came && waited == ROUNDS, "{waited} NMIs waited for STGI");

    waiting::sent(test);
    inits::sent(test);
    ahead::edited(test);
    let mut right = 0;
    for _ in 0..ROUNDS {
        let spins = inside(spin);
        let starts = smp::starts(1);
        let started = smp::start(1) && smp::starts(1) > starts;
        right += u64::from(spins && started);
    }
    check!(test, right == ROUNDS, "{right} of {ROUNDS} INITs ended a guest");
    let mut right = 0;
    for _ in 0..ROUNDS {
        let waits = inside(wait_untaken);
        let starts = smp::starts(1);
        let started = smp::start(1) && smp::starts(1) > starts;
        let clean = smp::left_over(1) == 0 && idt::count_on(1, VECTOR) == 0;
        right += u64::from(waits && started && clean);
    }
    check!(test, right == ROUNDS, "{right} of {ROUNDS} with an interrupt that wasn't taken");
    check!(test, inside(spin), "and it is in one when the VM ends");
    let found = FOUND.load(SeqCst);
    let wanted = if policy() == Policy::Bare { found } else { block::host_save() };
    check!(test, found == wanted, "INIT left VM_HSAVE_PA alone and cleared EFER.SVME: {found:#x}");
}

/// Resets of the machine meanwhile.
pub fn restart(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    if super::super::cpus(test, boot).is_none() {
        return;
    }
    let left = (x2apic::left_over_at_start(), smp::left_over(1));
    check!(test, left == (0, 0), "life {life}: nothing was left in the local APICs: {left:x?}");
    // Its guest runs, or was left for an interrupt that isn't taken.
    let job = if life == 1 { hold_untaken } else { spin };
    check!(test, inside(job), "life {life}: the second CPU has a guest of its own");
    let found = FOUND.load(SeqCst);
    check!(test, found == 0, "life {life}: nothing was left of SVM: {found:#x}");
    if life == 1 {
        // Its flag is clear: an INIT waits, and is forgotten with what it was for.
        smp::stop(1);
        wait::settle();
        // Nor does this one take the interrupt.
        turn_on();
        cpu::disable_interrupts();
        x2apic::self_ipi(VECTOR);
        Guest::new(inside::spins()).enter_open();
    }
    if life < 2 {
        reset();
    }
}

/// A guest's triple fault that its hypervisor doesn't intercept is the hypervisor's own.
pub fn shutdown(test: &str, _: &Boot) {
    if !super::begin(test) {
        return;
    }
    let mut guest = Guest::new(inside::undefined());
    guest.block().put(block::IDTR, 0);
    let wanted = guest.block().get(block::EXCEPTIONS);
    guest.block().put(block::EXCEPTIONS, wanted & !(1 << 63));
    check!(test, true, "to be shut down");
    guest.run();
    check!(test, false, "it goes on: {:#x}", guest.code());
}
