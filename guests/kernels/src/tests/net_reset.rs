//! Resets of a network device while another VM sends to it as fast as it can: after it the switch
//! has let go of the memory, and frames come again when it is set up again. The same when the whole
//! VM starts again.

use super::net::{Link, VECTOR, kind, links};
use super::restart;
use crate::virtio_net as net;
use crate::virtqueue::{get, put};
use crate::{boot::Boot, console::check, console::println, cpu, idt, random::Random, wait};

const ROUNDS: u64 = 40;
const SEED: u64 = 0x4E45_7000;
const POISON: u64 = 0xA5A5_A5A5_A5A5_A5A5;
/// TSC ticks in which a switch that hadn't let go would write.
const SETTLE: u64 = 2_000_000;

/// One sends all the time, the other resets its device again and again.
pub fn reset(test: &str, boot: &Boot) {
    let Some([link]) = links(test, boot) else { return };
    let started = link.start(boot);
    cpu::enable_interrupts();
    check!(test, started && link.meet(), "both are there");
    if link.begins() {
        return floods(test, &link);
    }
    let mut random = Random::new(SEED);
    let (mut ends, mut touched, mut late, mut came) = (0, 0, 0, 0);
    for _ in 0..ROUNDS {
        // In the middle of it.
        came += u64::from(wait::patiently(|| link.receive().is_some_and(|seen| seen.whole)));
        wait::ticks(random.number() % 60_000);
        cpu::disable_interrupts();
        if !link.virtio.reset() {
            return check!(test, false, "a reset never ends, after {ends}");
        }
        ends += 1;
        let memory = net::memory(boot, 0);
        words(&memory).for_each(|at| put(at, POISON));
        let before = idt::total(VECTOR);
        wait::ticks(SETTLE);
        touched += u64::from(words(&memory).any(|at| get::<u64>(at) != POISON));
        // Nor is the ring what a late handler expects.
        let features = link.virtio.offered() & net::WANTED;
        link.interface().receiving().set_up(memory.start, 128, features);
        cpu::enable_interrupts();
        wait::ticks(SETTLE / 8);
        // What was sent before may still have been on its way.
        late += u64::from(idt::total(VECTOR) > before + 1);
        if !link.start(boot) {
            return check!(test, false, "it doesn't start again after {ends} resets");
        }
    }
    check!(test, ends == ROUNDS && came == ROUNDS, "{ends} resets, frames before {came} of them");
    check!(test, touched == 0, "{touched} times it was written to memory after a reset");
    check!(test, late == 0, "{late} times it interrupted after a reset");
    stop(test, &link);
}

/// Sends until it is told to stop.
fn floods(test: &str, link: &Link) {
    let mut number = 0;
    let told = wait::patiently(|| {
        for _ in 0..64 {
            number += u64::from(link.try_send(link.own, link.peer, kind::NUMBER, number));
        }
        link.receive().is_some_and(|seen| seen.kind == kind::BYE)
    });
    let taken = link.interface().all_sent();
    let account = link.interface().account();
    check!(test, told, "it is told to stop after {number} frames");
    check!(test, taken && account.odd == 0, "all are taken: {account:?}");
    check!(test, link.send(kind::BYE, 0) && link.interface().all_sent(), "and says so");
}

/// Tells the one that sends to stop, until it does.
fn stop(test: &str, link: &Link) {
    check!(test, link.ask(kind::BYE), "the other one stops");
}

fn words(memory: &core::ops::Range<u64>) -> impl Iterator<Item = u64> + use<> {
    memory.clone().step_by(8)
}

/// One sends all the time, the other's VM starts again.
pub fn restart(test: &str, boot: &Boot) {
    let life = restart::lives();
    println!("life {life}");
    let Some([link]) = links(test, boot) else { return };
    let status = link.virtio.status();
    check!(test, status == 0, "life {life}: the device's status is {status:#x}");
    if life > 0 {
        let memory = net::memory(boot, 0);
        words(&memory).for_each(|at| put(at, POISON));
        wait::settle();
        let touched = words(&memory).filter(|at| get::<u64>(*at) != POISON).count();
        check!(test, touched == 0, "life {life}: {touched} words were written after the reset");
    }
    let started = link.start(boot);
    check!(test, started, "life {life}: it starts");
    cpu::enable_interrupts();
    if link.begins() {
        check!(test, link.meet(), "both are there");
        return floods(test, &link);
    }
    if life == 0 {
        check!(test, link.meet(), "both are there");
    }
    let came = (0..100).all(|_| wait::patiently(|| link.receive().is_some_and(|s| s.whole)));
    check!(test, came, "life {life}: frames come");
    if life == 0 {
        restart::reset();
    }
    stop(test, &link);
}
