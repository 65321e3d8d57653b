//! Interrupts that are easily lost: this kernel's own, while its guest holds interrupts back and
//! has exits that are the host's alone; and what is posted to a CPU that is off, or moved twice
//! before it is taken.

use super::super::block::{self, exit, let_in};
use super::super::smp::turn_on;
use super::super::{end as turn_off, inside};
use super::{
    BACKING, INDEX, LOW, Posts, REQUEST, TIMER, VECTOR, begin_at, by_itself, code, guest, has,
    is_empty,
};
use crate::amdvi::guests::Posted;
use crate::edu as device;
use crate::{boot::Boot, console::check, cpu, smp as cpus, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROUNDS: u64 = 10;
/// A millisecond or more: the guest has begun by then.
const SOON: u32 = 2_000_000;
/// The local APIC's id. How often what exits is done, and what doesn't for long: it takes much
/// longer than the host waits.
const ID: u32 = 0x802;
const SERVED: u64 = 30_000;
const NATIVE: u64 = 20_000_000;
/// CPUID, in the upper half of the word of exceptions.
const CPUID: u64 = 1 << (32 + 18);
/// A third vector of the device's.
const LAST: u8 = 0xB1;

/// Why the guest on the second CPU was left; it is ready, and to begin.
static LEFT: AtomicU64 = AtomicU64::new(0);
static TURN: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

/// With one CPU: this kernel's ticks.
pub fn kept(test: &str, boot: &Boot) {
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    served(test, &mut posts);
    by_itself(test, &mut posts);
    posts.end(test);
}

/// A guest that holds interrupts back, and is left again and again for what the host does for it.
fn served(test: &str, posts: &mut Posts) {
    let wanted = posts.guest.block().get(block::EXCEPTIONS);
    block::let_msr(ID, true, false);
    for (name, rip, times) in [
        ("reads a register of its local APIC", code::asks(), SERVED),
        ("executes CPUID", code::identifies(), SERVED),
        ("executes SIDT", code::shows(), NATIVE),
        ("sets its task priority", code::sets(), NATIVE),
        ("executes INT F5h", code::calls_on(), NATIVE),
    ] {
        posts.guest.block().put(block::EXCEPTIONS, wanted & !CPUID);
        code::put(code::MODE, code::SILENT);
        let (mut told, mut longest, mut last) = (0, 0, 0);
        for _ in 0..ROUNDS {
            posts.at(rip);
            posts.guest.registers.rdx = times;
            x2apic::start_timer(TIMER, false, SOON);
            let began = cpu::tsc();
            posts.guest.enter_open();
            longest = longest.max(cpu::tsc() - began);
            last = posts.guest.code();
            told += u64::from(last == exit::INTR);
            posts.let_in();
            x2apic::stop_timer();
        }
        let detail = "ticks came, after";
        check!(test, told == ROUNDS, "{name}: {told} of {ROUNDS} {detail} {longest}: {last:#x}");
    }
    code::put(code::MODE, 0);
    block::let_msr(ID, false, false);
    posts.guest.block().put(block::EXCEPTIONS, wanted);
}

/// With two CPUs: what is posted to one that is off.
pub fn offline(test: &str, boot: &Boot) {
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    // It was never started.
    to_nobody(test, &posts, "not started yet");
    if super::super::super::cpus(test, boot).is_none() {
        return;
    }
    to_nobody(test, &posts, "on");
    cpus::stop(1);
    wait::settle();
    to_nobody(test, &posts, "off again");
    check!(test, cpus::start(1), "the second CPU is on again");
    check!(test, posts.post(VECTOR, true, None), "at this CPU again");
    by_itself(test, &mut posts);
    posts.end(test);
}

/// With two CPUs: what is posted, and moved.
pub fn rerouted(test: &str, boot: &Boot) {
    if super::super::super::cpus(test, boot).is_none() {
        return;
    }
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    twice(test, &posts);
    check!(test, posts.post(VECTOR, true, None), "at this CPU again");
    by_itself(test, &mut posts);
    posts.end(test);
}

/// The device posts to the guest, which was at the second CPU last.
fn at_second(posts: &Posts, vector: u8) -> bool {
    let to = Posted { vector, page: BACKING.address(), cpu: 1, runs: false, tag: None };
    posts.unit.post(INDEX, posts.source, to) && posts.ask()
}

/// The guest was last at a CPU that is so: what is posted waits in its page.
fn to_nobody(test: &str, posts: &Posts, name: &str) {
    let is_set = at_second(posts, VECTOR);
    let mut waits = 0;
    for _ in 0..ROUNDS {
        device::raise();
        let start = cpu::tsc();
        // Some tenths of a second.
        while !has(REQUEST, VECTOR) && cpu::tsc() - start < 300_000_000 {
            cpu::pause();
        }
        waits += u64::from(has(REQUEST, VECTOR));
        device::acknowledge();
        BACKING.0.iter().for_each(|word| word.store(0, SeqCst));
    }
    check!(test, is_set && waits == ROUNDS, "{name}: {waits} of {ROUNDS} wait in the page");
}

/// The second CPU's part: its guest takes its own, and then holds them back.
fn hold(_: usize) {
    turn_on();
    let mut guest = guest(device::base());
    for round in 1..=2 * ROUNDS {
        if !wait::patiently(|| TURN.load(SeqCst) == round) {
            break;
        }
        // Nothing is on its way to it by then.
        for _ in 0..5 {
            begin_at(&mut guest, inside::hypercall());
            guest.enter_open();
            let_in();
            wait::ticks(100_000);
        }
        begin_at(&mut guest, code::holds());
        guest.enter_open();
        while guest.code() == exit::INTR {
            let_in();
            guest.enter_open();
        }
        let_in();
        LEFT.store(guest.code(), SeqCst);
        DONE.store(round, SeqCst);
    }
    turn_off();
}

/// An interrupt that the guest holds back is moved, once or twice, before the guest takes it.
fn twice(test: &str, posts: &Posts) {
    code::put(code::MODE, 0);
    let took = |moves: u64, round: u64| {
        BACKING.0.iter().for_each(|word| word.store(0, SeqCst));
        let is_set = at_second(posts, VECTOR);
        let all = || [VECTOR, LOW, LAST].map(code::count).iter().sum::<u64>();
        let before = all();
        code::put(code::STAYS, 0);
        TURN.store(round, SeqCst);
        wait::patiently(|| code::get(code::STAYS) == 1);
        let began = cpu::tsc();
        device::raise();
        (0..moves).for_each(|n| {
            at_second(posts, [LOW, LAST][n as usize]);
        });
        let took = cpu::tsc() - began;
        // The host has it left meanwhile.
        (0..3).for_each(|_| wait::settle());
        code::put(code::STAYS, 2);
        let done = wait::patiently(|| DONE.load(SeqCst) == round);
        wait::settle();
        device::acknowledge();
        let came = all() - before + u64::from(!is_empty(REQUEST));
        (is_set && done && came >= 1, took)
    };
    let (mut once, mut again, mut longest) = (0, 0, 0);
    let done = cpus::others(2, hold, || {
        for n in 0..ROUNDS {
            once += u64::from(took(1, 2 * n + 1).0);
            let (right, took) = took(2, 2 * n + 2);
            again += u64::from(right);
            longest = longest.max(took);
        }
        true
    });
    let left = LEFT.load(SeqCst);
    check!(test, done && left == exit::VMMCALL, "the guest there: {left:#x}");
    check!(test, once == ROUNDS, "moved once: {once} of {ROUNDS} came");
    check!(test, again == ROUNDS, "moved twice: {again} of {ROUNDS} came, each in {longest} ticks");
}
