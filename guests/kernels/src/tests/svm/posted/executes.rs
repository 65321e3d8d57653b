//! What the guest executes that decides how its interrupts come: its own INT, LIDT and SIDT, its
//! task priority, its flag for all interrupts, and completions that this kernel wants to hear of.

use super::super::block::{self, exit};
use super::super::guarded::keeps_flag;
use super::{
    BACKING, HIGHEST, IN_SERVICE, Posts, REQUEST, TASK_PRIORITY, VECTOR, X2APIC_EOI, by_itself,
    code, has, is_empty,
};
use crate::console::check;
use core::sync::atomic::Ordering::SeqCst;

/// Of the intercepts.
const STGI: u64 = 1 << 4;
const CLGI: u64 = 1 << 5;

/// All of it.
pub fn all(test: &str, posts: &mut Posts) {
    of_its_own(test, posts);
    priorities(test, posts);
    flag(test, posts);
    closed(test, posts);
}

/// What is in the way of the host's class: the guest's own INT, LIDT and SIDT.
fn of_its_own(test: &str, posts: &mut Posts) {
    code::put(code::MODE, code::SILENT);
    for _ in 0..2 {
        let before = code::count(HIGHEST);
        let left = posts.at(code::calls()).run();
        let came = code::count(HIGHEST) - before;
        check!(test, left == exit::VMMCALL && came == 1, "INT F5h: {left:#x}, {came}");
    }
    code::put(code::MODE, 0);
    // In the upper six bytes of ten.
    let words = |base: u64, limit: u64| (base << 16 | limit, base >> 48);
    let pair = |at: usize| (code::get(at), code::get(at + 1) & 0xFFFF);
    for limit in [0xFFF, 0xFFFF, 0xAFF] {
        let (low, high) = words(code::TABLE.address(), limit);
        code::put(code::LOADED, low);
        code::put(code::LOADED + 1, high);
        let handled = code::get(code::HANDLED);
        let left = posts.at(code::tables()).with(3).run();
        let came = code::get(code::HANDLED) - handled;
        check!(test, left == exit::VMMCALL && came == 3, "LIDT, {limit:#x}: {left:#x}, {came}");
        let first = pair(code::STORED) == words(code::TABLE.address(), 0xFFF);
        let then = pair(code::STORED_AFTER) == (low, high);
        check!(test, first && then, "SIDT before and after it: {first}, {then}");
        let block = posts.guest.block();
        let kept = (block.get(block::IDTR) >> 32, block.get(block::IDTR + 8));
        let right = kept == (limit, code::TABLE.address());
        check!(test, right, "and this kernel is told: {kept:x?}");
    }
}

/// The guest's task priority.
fn priorities(test: &str, posts: &mut Posts) {
    let class = u64::from(VECTOR >> 4);
    for (priority, wanted) in [(class + 1, 0), (class, 0), (class - 1, 1), (1, 1), (0, 1)] {
        let handled = code::get(code::HANDLED);
        let left = posts.at(code::prefers()).with(priority).run();
        let early = code::get(code::EARLY);
        let came = code::get(code::HANDLED) - handled;
        let right = left == exit::VMMCALL && early == wanted && came == 1;
        check!(test, right, "CR8 {priority:#x}: {early} came, {came} in all: {left:#x}");
        let read = code::get(code::PRIORITY);
        check!(test, read == priority, "and it reads {read:#x}");
    }
    for priority in [0, 1, 2, 0xF] {
        let first = posts.at(code::reads()).with(priority).run();
        posts.guest.skip(2);
        let told = BACKING.0[TASK_PRIORITY / 8].load(SeqCst);
        check!(test, told == priority << 4, "its task priority is in the backing page: {told:#x}");
        let then = posts.run();
        let read = code::get(code::PRIORITY);
        let right = (first, then) == (exit::CPUID, exit::VMMCALL) && read == priority;
        check!(test, right, "CR8 {priority:#x}, and an exit: {read:#x}, {first:#x}, {then:#x}");
    }
}

/// The guest's own flag for all interrupts.
fn flag(test: &str, posts: &mut Posts) {
    if !keeps_flag() {
        return;
    }
    let block = posts.guest.block();
    let (control, wanted) = (block.get(block::INT_CTL), block.get(block::MISC2));
    block.put(block::INT_CTL, control | block::FLAG | block::FLAG_KEPT);
    block.put(block::MISC2, wanted & !(STGI | CLGI));
    for round in 0..3 {
        let handled = code::get(code::HANDLED);
        let first = posts.at(code::clears()).run();
        posts.guest.skip(2);
        let left = posts.run();
        let (early, came) = (code::get(code::EARLY), code::get(code::HANDLED) - handled);
        let right = (first, left) == (exit::CPUID, exit::VMMCALL) && (early, came) == (0, 1);
        check!(test, right, "CLGI, {round}: {early} came, {came} in all: {first:#x}, {left:#x}");
        by_itself(test, posts);
    }
    let block = posts.guest.block();
    block.put(block::INT_CTL, control);
    block.put(block::MISC2, wanted);
}

/// This kernel wants to hear of the guest's completions.
fn closed(test: &str, posts: &mut Posts) {
    const EOI_WRITTEN: (u64, u64) = (exit::MSR, 1);
    for round in 0..3 {
        block::let_msr(X2APIC_EOI, true, false);
        let handled = code::get(code::HANDLED);
        let left = posts.at(code::raises()).with(1).run();
        let told = (left, posts.guest.block().get(block::EXIT_INFO_1));
        let serves = has(IN_SERVICE, VECTOR) && !has(REQUEST, VECTOR);
        check!(test, told == EOI_WRITTEN && serves, "{round}, told of it: {told:x?}, {serves}");
        block::let_msr(X2APIC_EOI, true, true);
        let left = posts.run();
        let came = code::get(code::HANDLED) - handled;
        let right = left == exit::VMMCALL && came == 1 && is_empty(IN_SERVICE);
        check!(test, right, "and then it does: {left:#x}, {came}");
        by_itself(test, posts);
    }
}
