//! NMIs from one CPU to another that leaves its guest all the time: each must be seen, wherever the
//! hypervisor is when it comes.
//!
//! The receiver makes a random number of exits and none from then on: an NMI whose announcement
//! came when the hypervisor had looked for it already, and before the guest was entered, would wait
//! for an exit that doesn't come. It is lost if the receiver gets far without it, by its own count
//! of steps since it was sent: time says nothing on a busy machine, where the sender may stand
//! still. `rounds=N` on the command line says how often, `exits=N` how many exits a round has at
//! most, `far=N` what far is.

use crate::{boot::Boot, console::check, cpu, idt, random::Random, smp, wait, x2apic};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const SEED: u64 = 0x0E81_71E5_5000_0003;
const NMI: u8 = 2;
/// How often one is sent, if the command line doesn't say.
const FEW: u64 = 2000;
/// Steps of the receiver after which an NMI is lost, if the command line doesn't say: an NMI takes
/// some hundreds, and core 0 announces again after half a second what nobody has seen. Less, where
/// so many steps take longer than that: then a lost one comes in time.
const FAR: u64 = 30_000_000;
/// After so many the rest tells nothing new.
const ENOUGH: u64 = 3;

/// How many exits a round has at most, if the command line doesn't say, and the sender's steps for
/// each of them.
const EXITS: u64 = 47;
const STEPS: u64 = 425;

static MOST: AtomicU64 = AtomicU64::new(EXITS);
static LOST_AT: AtomicU64 = AtomicU64::new(FAR);
/// How often one is sent.
static ROUNDS: AtomicU64 = AtomicU64::new(FEW);
/// The round that the receiver is in.
static ROUND: AtomicU64 = AtomicU64::new(0);
/// The last round whose NMI is sent.
static SENT: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

fn steps(count: u64) {
    for _ in 0..count {
        // SAFETY: does nothing.
        unsafe { asm!("nop", options(nomem, nostack, preserves_flags)) };
    }
}

fn came() -> u64 {
    idt::count_on(1, NMI)
}

fn receive(_: usize) {
    let mut random = Random::new(SEED);
    let before = came();
    cpu::disable_interrupts();
    for round in 1..=ROUNDS.load(SeqCst) {
        ROUND.store(round, SeqCst);
        for _ in 0..random.number() % (MOST.load(SeqCst) + 1) {
            cpu::cpuid(0);
            steps(random.number() % 64);
        }
        let mut far = 0;
        while came() < before + round && !OVER.load(SeqCst) {
            steps(1);
            far += u64::from(SENT.load(SeqCst) == round);
            if far == LOST_AT.load(SeqCst) {
                LOST.fetch_add(1, SeqCst);
                far += 1;
            }
        }
    }
}

/// Each is seen.
pub fn kicks(test: &str, boot: &Boot) {
    if super::cpus(test, boot).is_none() {
        return;
    }
    let rounds = boot.option("rounds").map_or(Some(FEW), |n| n.parse().ok());
    check!(test, rounds.is_some(), "seed {SEED:#x}, {rounds:?} rounds");
    let rounds = rounds.unwrap_or(FEW);
    let number = |key, or| boot.option(key).and_then(|n| n.parse().ok()).unwrap_or(or);
    let exits = number("exits", EXITS);
    MOST.store(exits, SeqCst);
    LOST_AT.store(number("far", FAR), SeqCst);
    ROUNDS.store(rounds, SeqCst);
    idt::on(NMI, |_| {});
    let before = came();
    let mut random = Random::new(SEED ^ 1);
    let mut sent = 0;
    let good = smp::others(2, receive, || {
        for round in 1..=rounds {
            if !wait::patiently(|| ROUND.load(SeqCst) == round) || LOST.load(SeqCst) >= ENOUGH {
                break;
            }
            steps(random.number() % (exits * STEPS).max(1));
            x2apic::send(1, x2apic::command::NMI);
            SENT.store(round, SeqCst);
            sent += 1;
        }
        wait::patiently(|| came() >= before + sent);
        OVER.store(true, SeqCst);
        true
    });
    let (lost, n) = (LOST.load(SeqCst), came() - before);
    check!(test, good && lost == 0, "{lost} of {sent} weren't seen in time");
    check!(test, n == rounds, "{n} of {rounds} came");
}
