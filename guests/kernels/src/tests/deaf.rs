//! Guests on a shared core that let no interrupt in.
//!
//! `deaf` takes its interrupts itself, and nobody else wants the core. What would wake up others
//! may be among those that it holds back, so the host gets the core back all the same, once in a
//! slice or two. `deaf-wanted` has a core that another one wants all the time: that one gets it at
//! the end of each slice, whatever the processor makes of a physical interrupt there. That core 0
//! has no part in it can be said where time is a count of instructions, as on Bochs.

use super::edu;
use crate::{
    boot::Boot,
    console::{check, println},
    counters::{Slices, Window},
    cpu, wait, x2apic,
};
use ledger::Reason;

/// Slices that a window has, and how often the host comes in them at the least: every third. It was
/// every tenth once.
const SLICES: u64 = 24;
const KICKS: u64 = 8;
/// Windows, of which one must do: the emulator may stand still meanwhile.
const TRIES: usize = 5;

/// Interrupts off; the option `slice` is the core's, in ticks of the timer.
pub fn deaf(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    let slice = boot.option("slice").and_then(|n| n.parse().ok()).unwrap_or(5_000_000u32);
    let slice = tsc_ticks(slice);
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let handled = edu.raise_and_wait(0x40, 1);
    cpu::disable_interrupts();
    check!(test, handled == 1, "a device's interrupt came");
    let kicks = |_| {
        let window = Window::open();
        wait::ticks(SLICES * slice);
        window.close().of(Reason::Kick)
    };
    let most = (0..TRIES).map(kicks).find(|n| *n >= KICKS);
    check!(test, most.is_some(), "the host came {KICKS} times in {SLICES} slices");
    edu.silence();
}

/// Interrupts off, while another one never sleeps.
pub fn deaf_wanted(test: &str, _: &Boot) {
    cpu::disable_interrupts();
    let window = Window::open();
    let first = Slices::so_far();
    wait::until(|| Slices::so_far().wrapping_sub(first) >= SLICES);
    let ended = window.close();
    let (ends, kicks) = (ended.of(Reason::SliceEnd), ended.of(Reason::Kick));
    println!("  {SLICES} slices: {ends} ended by the clock, {kicks} exits for core 0's NMIs");
    check!(test, ends >= SLICES - 1, "the clock took the core back");
    check!(test, kicks <= KICKS, "core 0 hadn't to");
}

/// Ticks of the time-stamp counter in so many of the timer's.
fn tsc_ticks(timer: u32) -> u64 {
    let start = cpu::tsc();
    x2apic::start_timer(0x50, false, timer);
    wait::until(|| x2apic::timer_count() == 0);
    x2apic::stop_timer();
    cpu::tsc().wrapping_sub(start)
}
