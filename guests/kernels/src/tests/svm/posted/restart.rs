//! A VM that resets while devices post interrupts to guests of this kernel.
//!
//! The next life has what the first one had: a unit that does nothing yet, vectors that are all this
//! kernel's, and nothing that was posted, waited or was in service before.

use super::others::{is_empty, stay, takes_itself};
use super::{BACKING, IN_SERVICE, Posts, VECTOR, by_itself, code, has, request};
use super::{LOWEST, exit};
use crate::amdvi::guests::Posted;
use crate::edu as device;
use crate::tests::edu;
use crate::tests::restart::{lives, reset};
use crate::unit::Unit;
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp, wait, x2apic};

const TIMES: u64 = 5;

/// The first life ends while a guest on the second CPU takes its own, and one of this CPU's waits;
/// the second one while a guest has an interrupt in service, is left, and another waits.
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
        0 => on_both(test, &mut posts),
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

fn on_both(test: &str, posts: &mut Posts) {
    code::put(code::STAYS, 0);
    smp::give(1, stay);
    let there = wait::patiently(|| code::get(code::STAYS) == 1);
    let to = Posted { vector: VECTOR, page: BACKING.address(), cpu: 1, runs: true, tag: None };
    let is_set = posts.post_to(to) && posts.ask();
    check!(test, there && is_set, "a guest is on the second CPU");
    let takes = takes_itself();
    device::raise();
    check!(test, takes, "it takes its own itself when the VM ends");
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
