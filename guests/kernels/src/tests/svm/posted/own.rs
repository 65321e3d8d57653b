//! This kernel's own interrupts, while its guest takes what is posted to it.
//!
//! They come to this kernel, by its own gates, though the guest has gates for the same vectors and
//! its own flag holds interrupts back.

use super::super::{block, block::exit, inside};
use super::{INDEX, Posts, RFLAGS_IF, TIMER, VECTOR, code};
use crate::counters::Window;
use crate::edu as device;
use crate::unit::Unit;
use crate::{console::check, cpu, idt, wait, x2apic};
use ledger::Reason;

const ROUNDS: u64 = 20;
/// A tenth of a millisecond, before the host would look by itself.
const SOON: u32 = 100_000;

/// The timer's, and a device's.
pub fn interrupts(test: &str, posts: &mut Posts) {
    ticks(test, posts, "lets interrupts in", RFLAGS_IF);
    ticks(test, posts, "holds interrupts back", 0);
    ticks(test, posts, "lets interrupts in again", RFLAGS_IF);
    own_device(test, posts);
}

/// A guest that spins is left for each tick, and this kernel's handler runs.
fn ticks(test: &str, posts: &mut Posts, name: &str, flag: u64) {
    let (mut told, mut at_once) = (0, 0);
    let (before, taken) = (idt::count(TIMER), code::count(TIMER));
    for _ in 0..ROUNDS {
        posts.at(inside::spins());
        posts.guest.block().put(block::RFLAGS, 2 | flag);
        x2apic::start_timer(TIMER, false, SOON);
        let window = Window::open();
        posts.guest.enter_open();
        at_once += u64::from(window.close().of(Reason::Kick) == 0);
        told += u64::from(posts.guest.code() == exit::INTR);
        posts.let_in();
    }
    x2apic::stop_timer();
    let (came, taken) = (idt::count(TIMER) - before, code::count(TIMER) - taken);
    let right = (told, came, taken) == (ROUNDS, ROUNDS, 0);
    check!(test, right, "a guest that {name}: told {told}, {came} came, {taken} to it");
    if flag != 0 {
        check!(test, at_once >= ROUNDS / 2, "{at_once} of {ROUNDS} at once");
    }
}

/// The device is this kernel's own, by the very vector that it had in the guest; the guest has it
/// raise its interrupt.
fn own_device(test: &str, posts: &mut Posts) {
    idt::on(VECTOR, device::handler);
    let is_set = posts.unit.set_entry(INDEX, Some((0, VECTOR)), posts.source) && posts.ask();
    check!(test, is_set, "the device is this kernel's own");
    let (before, taken) = (idt::count(VECTOR), code::count(VECTOR));
    code::put(code::LOADED, code::TABLE.address() << 16 | 0xFFF);
    code::put(code::LOADED + 1, code::TABLE.address() >> 48);
    let mut told = 0;
    for n in 1..=ROUNDS {
        posts.at(code::strays());
        told += u64::from(posts.once() == exit::INTR);
        cpu::enable_interrupts();
        wait::until(|| idt::count(VECTOR) == before + n);
        cpu::disable_interrupts();
    }
    let (came, taken) = (idt::count(VECTOR) - before, code::count(VECTOR) - taken);
    let right = (told, came, taken) == (ROUNDS, ROUNDS, 0);
    check!(test, right, "told {told}, {came} came, {taken} to the guest");
    check!(test, posts.post(VECTOR, true, None), "the device is the guest's again");
}
