//! A VM that resets while devices post interrupts to guests of this kernel.
//!
//! The next life has what the first one had: a unit that does nothing yet, vectors that are all
//! this kernel's, and nothing that was posted, waited or was in service before.

use super::others::{forget, is_empty, stay, takes_itself};
use super::{BACKING, IN_SERVICE, Posts, REQUEST, VECTOR, by_itself, code, has, request};
use super::{LOWEST, exit};
use crate::amdvi::guests::Posted;
use crate::edu as device;
use crate::tests::edu;
use crate::tests::restart::{lives, reset};
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp, wait, x2apic};

const TIMES: u64 = 5;
const ROUNDS: u64 = 10;
const ARRIVES: u64 = 50_000;

/// The first life ends while a guest on the second CPU takes its own and has one in service; the
/// second one while a guest has an interrupt in service, is left, and another waits.
pub fn restart(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    if super::super::super::cpus(test, boot).is_none() {
        return;
    }
    let left = (x2apic::left_over_at_start(), smp::left_over(1));
    check!(test, left == (0, 0), "life {life}: nothing was left in the local APICs: {left:x?}");
    check!(test, is_empty(&BACKING), "life {life}: nothing was posted");
    own(test, life);
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    match life {
        0 => on_both(test, &posts),
        1 => in_service(test, &mut posts),
        _ => return posts.end(test),
    }
    reset();
}

/// Before anything is asked of the unit, the device's interrupts are this kernel's, by the vector
/// that was its guest's.
fn own(test: &str, life: u64) {
    let Some(edu) = edu(test) else { return };
    cpu::enable_interrupts();
    edu.aim_handled(VECTOR);
    let came = edu.raise_and_wait(VECTOR, TIMES);
    wait::settle();
    cpu::disable_interrupts();
    edu.silence();
    let all = idt::count(VECTOR);
    let right = came == TIMES && all == TIMES && is_empty(&BACKING);
    check!(test, right, "life {life}: {all} of {TIMES} came to this kernel");
}

/// A guest on the second CPU takes what is posted to it, and has one in service and another one
/// behind it, both in the core alone.
fn stays(test: &str, posts: &Posts) {
    code::put(code::STAYS, 0);
    code::put(code::MODE, 0);
    smp::give(1, stay);
    let there = wait::patiently(|| code::get(code::STAYS) == 1);
    let to = Posted { vector: VECTOR, page: BACKING.address(), cpu: 1, runs: true, tag: None };
    let is_set = posts.post_to(to) && posts.ask();
    let takes = takes_itself();
    code::put(code::MODE, code::SILENT);
    let before = code::get(code::HANDLED);
    device::raise();
    let came = wait::patiently(|| code::get(code::HANDLED) > before);
    device::raise();
    // It is in the core by then, and the host hasn't had the guest left, mostly.
    wait::ticks(ARRIVES);
    check!(
        test,
        there && is_set && takes && came,
        "a guest on the second CPU takes its own itself"
    );
}

/// INIT ends such a guest, whose page has what was in service and what was behind it; and the VM's
/// reset another one.
fn on_both(test: &str, posts: &Posts) {
    for round in 0..ROUNDS {
        stays(test, posts);
        smp::stop(1);
        let kept = wait::until(|| has(IN_SERVICE, VECTOR) && has(REQUEST, VECTOR));
        check!(test, kept, "{round}, INIT: what was in service and what waited is in the page");
        forget(&BACKING);
        check!(
            test,
            posts.raised(VECTOR),
            "{round}, while the CPU waits for a start: it is posted"
        );
        let starts = smp::starts(1);
        let started = smp::start(1) && smp::starts(1) > starts;
        let left = smp::left_over(1);
        check!(test, started && left == 0, "{round}, it starts, with {left} in its local APIC");
        forget(&BACKING);
    }
    stays(test, posts);
}

fn in_service(test: &str, posts: &mut Posts) {
    code::put(code::MODE, code::TELLS | code::OPENS);
    let left = posts.at(code::raises()).with(1).run();
    let serves = has(IN_SERVICE, VECTOR);
    request(LOWEST);
    device::acknowledge();
    let waits = posts.raised(VECTOR);
    check!(test, left == exit::CPUID && serves && waits, "one is in service, two wait: {left:#x}");
}
