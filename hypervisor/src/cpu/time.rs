//! Time: how fast the TSC and the local APIC's timer tick, measured against
//! ACPI's power-management timer, whose rate is fixed, to one part in [`EXACT_TO`] of it, or said
//! to be worse. On a machine without one the TSC's rate is what the boot loader measured, and no
//! better than that.

use super::{port, x2apic};
use crate::refusal::refuse;
use acpi::PmTimer;
use core::sync::atomic::{AtomicU64, Ordering};

/// ACPI 4.8.3.3.
const PM_TIMER_HZ: u64 = 3_579_545;
/// The part of a second to measure at the least: a reading is off by a microsecond or so.
const MEASURED_PART: u64 = 20;
/// How exact the rates are: readings that took longer need more time between them.
const EXACT_TO: u64 = 10_000;
/// Readings of a timer that stands still before it is given up.
const PATIENCE: u32 = 1_000_000;

static TSC_HZ: AtomicU64 = AtomicU64::new(0);
static TIMER_HZ: AtomicU64 = AtomicU64::new(0);

/// TSC ticks per second; 0 before it is measured.
pub fn tsc_hz() -> u64 {
    TSC_HZ.load(Ordering::Relaxed)
}

/// Ticks per second of the local APIC's timer with a divisor of 1; 0 before it is measured.
pub fn timer_hz() -> u64 {
    TIMER_HZ.load(Ordering::Relaxed)
}

/// The time-stamp counter.
#[inline]
pub fn rdtsc() -> u64 {
    // SAFETY: every 64-bit CPU has RDTSC, and CR4.TSD is clear.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The count of the local APIC's timer, at divider 1, that lasts for so many TSC ticks, at least 1.
/// One that is too large makes it early, never late.
pub fn timer_ticks(tsc_ticks: u64) -> u32 {
    let product = tsc_ticks.saturating_mul(timer_hz());
    u32::try_from(product / tsc_hz().max(1)).unwrap_or(u32::MAX).max(1)
}

/// Returns after about that many microseconds; only once the TSC was measured.
pub fn delay_us(us: u64) {
    let start = rdtsc();
    let ticks = tsc_hz() / 1_000_000 * us;
    while rdtsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// What is measured against.
#[derive(Clone, Copy)]
pub enum Clock {
    /// The power-management timer.
    Pm(PmTimer),
    /// The TSC itself, which ticks so often a second.
    Tsc(u64),
}

impl Clock {
    fn hz(self) -> u64 {
        match self {
            Clock::Pm(_) => PM_TIMER_HZ,
            Clock::Tsc(hz) => hz,
        }
    }

    fn now(self) -> u64 {
        match self {
            Clock::Pm(timer) => port::read32(timer.port).into(),
            Clock::Tsc(_) => rdtsc(),
        }
    }

    /// Ticks from one reading to a later one.
    fn ticks(self, from: u64, to: u64) -> u64 {
        let bits = match self {
            Clock::Pm(timer) if timer.bits32 => 32,
            Clock::Pm(_) => 24,
            Clock::Tsc(_) => 64,
        };
        to.wrapping_sub(from) & (u64::MAX >> (64 - bits))
    }
}

/// One instant on three clocks.
struct Instant {
    reference: u64,
    tsc: u64,
    timer: u32,
    /// TSC ticks that the reading took: the clocks are at most half of it apart.
    spent: u64,
}

impl Instant {
    /// The most exact of a few readings: the one during which the TSC advanced least.
    fn now(clock: Clock) -> Instant {
        let mut best = Instant::read(clock);
        for _ in 1..8 {
            let new = Instant::read(clock);
            if new.spent < best.spent {
                best = new;
            }
        }
        best
    }

    fn read(clock: Clock) -> Instant {
        let before = rdtsc();
        let reference = clock.now();
        let timer = x2apic::timer_count();
        let spent = rdtsc().wrapping_sub(before);
        Instant { reference, tsc: before + spent / 2, timer, spent }
    }
}

/// Measures both rates, on core 0, with its timer free.
pub fn measure(clock: Clock) {
    let cpuid = raw_cpuid::CpuId::new();
    let emulated = cpuid.get_feature_info().is_some_and(|f| f.has_hypervisor());
    let power = cpuid.get_advanced_power_mgmt_info();
    if !emulated && !power.is_some_and(|power| power.has_invariant_tsc()) {
        log::warn!(
            "the TSC isn't invariant, by CPUID 8000_0007: clocks go wrong when a core changes its speed"
        );
    }
    x2apic::timer_lvt(crate::interrupts::TIMER, x2apic::TimerMode::OneShot, true);
    x2apic::timer_divide_shift(0);
    x2apic::timer_start(u32::MAX);
    let start = Instant::now(clock);
    let end = far_enough_from(&start, clock);
    x2apic::timer_start(0);
    let elapsed = clock.ticks(start.reference, end.reference).max(1);
    let rate =
        |ticks: u64| (u128::from(ticks) * u128::from(clock.hz()) / u128::from(elapsed)) as u64;
    TSC_HZ.store(rate(end.tsc.wrapping_sub(start.tsc)), Ordering::Relaxed);
    TIMER_HZ.store(rate(u64::from(start.timer.wrapping_sub(end.timer))), Ordering::Relaxed);
}

/// An instant that is long enough after `start` for rates that are exact, or a second after it.
fn far_enough_from(start: &Instant, clock: Clock) -> Instant {
    let (mut last, mut still) = (start.reference, 0);
    loop {
        let now = clock.now();
        still = if now == last { still + 1 } else { 0 };
        if still == PATIENCE {
            refuse("the clock that the TSC is measured by, ACPI's PM timer, stands still");
        }
        last = now;
        if clock.ticks(start.reference, last) < clock.hz() / MEASURED_PART {
            continue;
        }
        let end = Instant::now(clock);
        let apart = end.tsc.wrapping_sub(start.tsc);
        if (start.spent + end.spent) / 2 <= apart / EXACT_TO {
            return end;
        }
        if clock.ticks(start.reference, end.reference) >= clock.hz() {
            log::warn!("the TSC's rate is known to less than one part in {EXACT_TO}");
            return end;
        }
    }
}
