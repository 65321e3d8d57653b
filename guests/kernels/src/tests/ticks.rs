//! One-shot timers, each set by the handler of the one before, beside a device whose interrupts the
//! guest takes itself, or without one (`device=none`): no tick costs an exit where the core's timer
//! is the guest's, each comes once, and none before its time.

use super::edu;
use crate::counters::{Policy, Slices, Window, policy, shared};
use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt, wait, x2apic,
};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

const TIMER: u8 = 0x70;
const DEVICE: u8 = 0x48;
/// A fifth of a millisecond, in ticks of QEMU's timer.
const COUNT: u32 = 200_000;
/// How often its length is measured.
const MEASURES: u32 = 5;
/// Ticks in the window.
const TICKS: u64 = 1_000;
/// Those before it: the first entries may be in injection mode.
const WARM: u64 = 20;

/// Exits for each time slice on a shared core: two for the tick that fell due while the vCPU was
/// away, which finds it in injection mode, and three for the next one if that is over too late.
const EACH_SLICE: u64 = 5;

/// When the timer was last set, by the time-stamp counter; 0: it isn't.
static SET: AtomicU64 = AtomicU64::new(0);
/// How long a count takes at least, by that.
static LEAST: AtomicU64 = AtomicU64::new(0);
static EARLY: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicU64 = AtomicU64::new(0);

fn tick(_: &mut idt::Frame) {
    let elapsed = cpu::tsc().wrapping_sub(SET.load(SeqCst));
    EARLY.fetch_add(u64::from(elapsed < LEAST.load(SeqCst)), SeqCst);
    if STOP.load(SeqCst) == 0 {
        SET.store(cpu::tsc(), SeqCst);
        cpu::wrmsr(x2apic::INITIAL_COUNT, COUNT.into());
    }
    x2apic::complete();
}

/// TSC ticks of [`COUNT`] counts, by the timer itself: the least of a few, for another guest's time
/// slice between two readings only makes it more.
fn measure() -> u64 {
    (0..MEASURES).map(|_| measure_once()).min().unwrap_or(0)
}

fn measure_once() -> u64 {
    x2apic::start_timer(TIMER, false, u32::MAX);
    let (began, first) = (cpu::tsc(), x2apic::timer_count());
    wait::until(|| first - x2apic::timer_count() > 5 * COUNT);
    let (counts, ticks) = (first - x2apic::timer_count(), cpu::tsc() - began);
    x2apic::stop_timer();
    ticks * u64::from(COUNT) / u64::from(counts.max(1))
}

/// How long the time slices were that began and ended in the window, by the time-stamp counter.
struct Lengths {
    number: u64,
    began: u64,
    last: u64,
    all: [u64; 64],
    count: usize,
}

impl Lengths {
    fn new() -> Self {
        Lengths { number: u64::MAX, began: 0, last: 0, all: [0; 64], count: 0 }
    }

    fn see(&mut self) {
        let (number, now) = (Slices::so_far(), cpu::tsc());
        if number != self.number {
            // Not the first, of which the begin wasn't seen.
            if self.began != 0
                && let Some(length) = self.all.get_mut(self.count)
            {
                (*length, self.count) = (self.last - self.began, self.count + 1);
            }
            self.began = if self.number == u64::MAX { 0 } else { now };
            self.number = number;
        }
        self.last = now;
    }

    /// The one in the middle, and the longest.
    fn judge(&mut self) -> (u64, u64) {
        let all = self.all.get_mut(..self.count).unwrap_or_default();
        all.sort_unstable();
        let at = |index: usize| all.get(index).copied().unwrap_or(0);
        (at(all.len() / 2), at(all.len().saturating_sub(1)))
    }
}

/// Ticks without an exit.
pub fn ticks(test: &str, boot: &Boot) {
    let edu = match boot.option("device") {
        Some("none") => None,
        _ => match edu(test) {
            Some(edu) => Some(edu),
            None => return,
        },
    };
    [&EARLY, &STOP].iter().for_each(|n| n.store(0, SeqCst));
    // Reading the clocks takes its time, too.
    LEAST.store(measure() / 10 * 9, SeqCst);
    idt::on(TIMER, tick);
    cpu::enable_interrupts();
    if let Some(edu) = &edu {
        edu.aim_handled(DEVICE);
        let handled = edu.raise_and_wait(DEVICE, 5);
        check!(test, handled == 5, "{handled} of 5 of the device's interrupts came");
    }
    SET.store(cpu::tsc(), SeqCst);
    x2apic::start_timer(TIMER, false, COUNT);
    let begun = wait::patiently(|| idt::count(TIMER) >= WARM);
    cpu::disable_interrupts();
    let (before, window) = (idt::count(TIMER), Window::open());
    cpu::enable_interrupts();
    let mut lengths = Lengths::new();
    let came = wait::patiently(|| {
        lengths.see();
        idt::count(TIMER) >= before + TICKS
    });
    STOP.store(1, SeqCst);
    wait::settle();
    let (counted, n) = (window.close(), idt::count(TIMER) - before);
    check!(test, begun && came, "{n} of {TICKS} ticks came");
    let early = EARLY.load(SeqCst);
    check!(test, early == 0, "{early} of them before their time");
    if shared() && policy() == Policy::Eli {
        let most = EACH_SLICE * (counted.slices() + 1);
        let (own, slices) = (counted.own(), counted.slices());
        check!(test, own <= most, "{own} exits in {slices} time slices, at most {most} wanted");
        if own > most {
            counted.print();
        }
    } else {
        let all = n - 1..=n + 1;
        counted.expect(test, Reason::TimerProgram, all.clone(), 0..=0);
        counted.expect(test, Reason::TimerInterrupt, all, 0..=0);
        counted.expect_none(test);
    }
    if boot.option("slices") == Some("contested") {
        // The plan's own is five milliseconds, and a count a fifth of one.
        let slice = LEAST.load(SeqCst) * 10 / 9 * 25;
        let (middle, longest) = lengths.judge();
        println!("  time slices of {middle}, at most {longest}; a slice is {slice}");
        // No longer than that is a statement about the machine that the emulator runs on.
        check!(test, middle * 2 >= slice, "nothing cuts the middle time slice short");
    }
    // What follows the last one is nothing.
    let last = idt::count(TIMER);
    wait::settle();
    let more = idt::count(TIMER) - last;
    check!(test, more == 0, "{more} after the last one");
    x2apic::stop_timer();
    if let Some(edu) = edu {
        edu.silence();
    }
}
