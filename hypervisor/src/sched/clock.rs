//! Core 0's timer: its own ticks, and the alarms of shared cores, whose own timers are their
//! guests'.
//!
//! Guarantees: while it runs, an alarm rings at its time, wherever core 0 is but where it holds
//! interrupts back for some instructions: the interrupt's handler does it, which takes no lock and
//! logs nothing. The ticks keep their phase. Whether an alarm is seen in time is `mailbox::Alarm`.

use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, rdtsc};
use crate::interrupts;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use mailbox::{Clock, NEVER, Residency};
use spin::Once;

/// How long [`pass`] waits, in milliseconds. Who gives up counts a tick as owed that its guest may
/// have had. So it is longer than a busy computer keeps core 0's thread from running.
const LONGEST_WAIT_MS: u64 = 200;

/// A core with an alarm.
pub trait Alarmed: Sync {
    /// When it rings.
    fn alarm(&self) -> u64;
    /// Core 0: it rings, if it is time. Neither locks nor logs.
    fn ring(&self, now: u64);
}

/// Core 0's timer.
struct HostClock {
    clock: Clock,
    cores: Vec<&'static dyn Alarmed>,
    /// TSC ticks from one of its ticks to the next.
    period: u64,
    /// When the next one is due; [`NEVER`]: it doesn't run.
    next: AtomicU64,
    ticked: AtomicBool,
    /// How often [`pass`] was called.
    asked: AtomicU64,
    /// That, when the timer was last set.
    set: AtomicU64,
    /// That, when the one was set whose interrupt comes next, at the least.
    comes: AtomicU64,
    /// The calls of [`pass`] before which the timer was set that has expired by now.
    passed: AtomicU64,
}

static CLOCK: Once<HostClock> = Once::new();

/// While booting: the cores whose alarms ring, and how often it ticks, in TSC ticks.
pub fn build(cores: Vec<&'static dyn Alarmed>, period: u64) {
    let (next, ticked) = (AtomicU64::new(NEVER), AtomicBool::new(false));
    let [asked, set, comes, passed] = [0; 4].map(AtomicU64::new);
    let (clock, period) = (Clock::new(), period.max(1));
    CLOCK.call_once(|| HostClock { clock, cores, period, next, ticked, asked, set, comes, passed });
    interrupts::on_core_0(arrived);
}

/// Core 0: it runs from here on.
pub fn start() {
    let Some(clock) = CLOCK.get() else { return };
    x2apic::timer_divide_shift(0);
    x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, false);
    clock.next.store(rdtsc(), Ordering::Relaxed);
    x2apic::timer_start(1);
}

/// Core 0: it stops.
pub fn stop() {
    if let Some(clock) = CLOCK.get() {
        clock.next.store(NEVER, Ordering::Relaxed);
        x2apic::timer_start(0);
    }
}

/// Core 0: has it ticked since this was last asked?
pub fn ticked() -> bool {
    CLOCK.get().is_some_and(|clock| clock.ticked.swap(false, Ordering::Relaxed))
}

/// On a shared core, before each entry: its alarm rings at this time, or not at all ([`NEVER`]).
#[inline]
pub fn set_alarm(core: &Residency, at: u64) {
    if let Some(clock) = CLOCK.get()
        && core.set_alarm(&clock.clock, at)
    {
        wake();
    }
}

/// On a shared core, whose timer notices late that it has expired: waits until core 0's has that is
/// set from here on, and so every other one that was due now, where they notice in their order.
/// Not longer than until it is `pending`, which is to take its time: it is asked all the while, and
/// on an emulated machine time spent in the emulator is less work than as many instructions. False:
/// it took too long.
pub fn pass(pending: impl Fn() -> bool) -> bool {
    let Some(clock) = CLOCK.get() else { return false };
    let (began, most) = (rdtsc(), cpu::tsc_hz() / 1_000 * LONGEST_WAIT_MS);
    let call = clock.asked.fetch_add(1, Ordering::AcqRel) + 1;
    wake();
    while clock.passed.load(Ordering::Acquire) < call && !pending() {
        if rdtsc().wrapping_sub(began) > most {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

#[cold]
fn wake() {
    if let Some(host) = cpu::get(0) {
        x2apic::send_ipi(host.apic_id, interrupts::WAKE);
    }
}

/// On core 0, by the handler of its timer's interrupt and of those that wake it, so with interrupts
/// held back.
fn arrived(by_timer: bool) {
    let Some(clock) = CLOCK.get() else { return };
    let next = clock.next.load(Ordering::Relaxed);
    if next == NEVER {
        return;
    }
    if by_timer {
        // It may be that of the time before: an interrupt that came while the timer was set anew.
        clock.passed.store(clock.comes.load(Ordering::Relaxed), Ordering::Release);
        clock.comes.store(clock.set.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let now = rdtsc();
    clock.cores.iter().for_each(|core| core.ring(now));
    if next <= now {
        clock.ticked.store(true, Ordering::Relaxed);
        let late = (now - next) / clock.period;
        clock.next.store(next + (late + 1) * clock.period, Ordering::Relaxed);
    }
    let tick = clock.next.load(Ordering::Relaxed);
    let alarms = || clock.cores.iter().map(|core| core.alarm());
    let at = clock.clock.set(|| alarms().fold(tick, u64::min));
    let asked = clock.asked.load(Ordering::Acquire);
    let waited_for = asked > clock.passed.load(Ordering::Relaxed);
    clock.set.store(asked, Ordering::Relaxed);
    let ticks = if waited_for { 0 } else { at.saturating_sub(now) };
    x2apic::timer_start(cpu::timer_ticks(ticks));
}
