//! Two guests on one core, of unlike weight: the light one sees that its time slices are as long as
//! the plan says and that the heavy one has its multiple of them in between, then sleeps; the heavy
//! one sees that it has the core to itself then.
//!
//! The ledger's count of time slices tells when a guest was away, and the time-stamp counter how
//! long it had the core and hadn't. The sums say little on a busy machine: a switch in which that
//! stands still is charged to who leaves, and made good to the other. So the middle one of many
//! counts, and the middle absence, which is a number of slices: more than half of a window would
//! have to be disturbed to change it.

use crate::{
    boot::Boot,
    console::{check, println},
    counters::Slices,
    cpu, idt, x2apic,
};

/// Time slices of the light one in a window.
const SLICES: usize = 50;
/// Time slices before it, in which both have come up.
const WARM: usize = 10;
/// Windows that are tried.
const WINDOWS: usize = 3;
const TICK: u8 = 0x51;
/// A twentieth of a second, in ticks of QEMU's timer.
const PERIOD: u32 = 50_000_000;
/// How often the light one wakes up for a moment, while the other one watches.
const TICKS: u64 = 100;
/// How often the heavy one is away for a moment in a window.
const MOMENTS: usize = 20;
/// When nobody else is there, in TSC ticks: more than ten seconds.
const ALONE: u64 = 50_000_000_000;

/// A time slice, and the absence after it, in TSC ticks.
#[derive(Clone, Copy, Default)]
struct TimeSlice {
    had: u64,
    away: u64,
}

/// Who looks at the clock all the time.
struct Clock {
    /// When its time slice began, as far as is known.
    since: u64,
    number: u64,
}

impl Clock {
    fn new() -> Clock {
        let (number, since) = stamp();
        Clock { since, number }
    }

    /// Spins until it was away once; none if it never is.
    fn time_slice(&mut self) -> Option<TimeSlice> {
        let mut last = self.since;
        while last.wrapping_sub(self.since) < ALONE {
            let (number, now) = stamp();
            if number != self.number {
                let seen = TimeSlice { had: last - self.since, away: now - last };
                *self = Clock { since: now, number };
                return Some(seen);
            }
            last = now;
        }
        None
    }
}

/// The number of its time slice, and the time in it.
fn stamp() -> (u64, u64) {
    loop {
        let (number, now) = (Slices::so_far(), cpu::tsc());
        if number == Slices::so_far() {
            return (number, now);
        }
    }
}

fn number(boot: &Boot, key: &str) -> u64 {
    boot.option(key).and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A slice in TSC ticks, measured by the local APIC's timer, of which a tick is a nanosecond in
/// QEMU.
fn slice(boot: &Boot) -> u64 {
    const LONG_ENOUGH: u64 = 100_000_000;
    // Both at once, but for what an exit takes.
    let both = || {
        let read = || {
            let (before, count) = (cpu::tsc(), x2apic::timer_count());
            (cpu::tsc() - before, before, count)
        };
        let (_, now, count) = (0..20).map(|_| read()).min().unwrap_or_default();
        (now, count)
    };
    loop {
        x2apic::start_timer(TICK, false, u32::MAX);
        let (began, first) = both();
        while cpu::tsc().wrapping_sub(began) < LONG_ENOUGH {
            cpu::pause();
        }
        let (ended, last) = both();
        x2apic::stop_timer();
        // It ends after four seconds.
        if last != 0 {
            let nanoseconds = u64::from(first.wrapping_sub(last)).max(1);
            return number(boot, "slice") * 1_000_000 * (ended - began) / nanoseconds;
        }
    }
}

/// At work, then asleep. `slice`: of the plan, in milliseconds; `times`: the other one's weight is
/// so many of its own.
pub fn light(test: &str, boot: &Boot) {
    let (slice, times) = (slice(boot), number(boot, "times"));
    let mut clock = Clock::new();
    let mut fair = false;
    for _ in 0..WINDOWS {
        let warm = (0..WARM).all(|_| clock.time_slice().is_some());
        let mut slices = [TimeSlice::default(); SLICES];
        if !warm || !slices.iter_mut().all(|slot| clock.time_slice().map(|t| *slot = t).is_some()) {
            return check!(test, false, "nobody else wants the core");
        }
        fair = is_fair(slice, times, &mut slices);
        if fair {
            break;
        }
    }
    check!(
        test,
        fair,
        "time slices as long as the plan says at least, and the other one has {times} times as much"
    );
    idt::on(TICK, |_| x2apic::complete());
    x2apic::start_timer(TICK, true, PERIOD);
    while idt::count(TICK) < TICKS {
        cpu::halt_until_interrupt();
    }
    x2apic::stop_timer();
}

/// Whether a window is as it must be: in the middle one is as long as planned, since nothing cuts
/// it short, and an absence as many as the other one's weight is the multiple of its own, to the
/// nearest number.
fn is_fair(slice: u64, times: u64, slices: &mut [TimeSlice; SLICES]) -> bool {
    let mut middle = |of: fn(&TimeSlice) -> u64| {
        slices.sort_unstable_by_key(of);
        of(&slices[SLICES / 2])
    };
    let (had, away) = (middle(|t| t.had).max(1), middle(|t| t.away));
    println!("  {SLICES} time slices: of {had}, apart {away} in the middle; a slice is {slice}");
    had * 2 >= slice && (away + had / 2) / had == times
}

/// Always at work; sees that it has the core to itself, but for moments, as soon as the other one
/// sleeps.
pub fn heavy(test: &str, boot: &Boot) {
    let moment = slice(boot) / 4;
    let mut clock = Clock::new();
    // Who doesn't sleep has the core for a slice at least.
    let asleep = loop {
        match clock.time_slice() {
            Some(seen) if seen.away < moment => break true,
            Some(_) => {}
            None => break false,
        }
    };
    let mut whole = false;
    for _ in 0..WINDOWS {
        let window = (0..MOMENTS).try_fold((0, 0), |(had, away), _| {
            clock.time_slice().map(|seen| (had + seen.had, away + seen.away))
        });
        let Some((had, away)) = window else { break };
        println!("  {MOMENTS} absences: had the core {had}, hadn't {away}");
        whole = asleep && had > 9 * away;
        if whole {
            break;
        }
    }
    check!(test, whole, "nine tenths of the core and more while the other one sleeps");
}
