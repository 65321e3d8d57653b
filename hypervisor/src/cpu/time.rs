//! Time: how fast the TSC and the local APIC's timer tick, measured against
//! ACPI's power-management timer, whose rate is fixed.

use super::{port, x2apic};
use crate::refusal::refuse;
use acpi::PmTimer;
use core::sync::atomic::{AtomicU64, Ordering};

/// ACPI 4.8.3.3.
const PM_TIMER_HZ: u64 = 3_579_545;
/// How long to measure: a reading is off by a microsecond or so.
const MEASURE: u64 = PM_TIMER_HZ / 20;
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

/// Returns after about that many microseconds; only once the TSC was measured.
pub fn delay_us(us: u64) {
    let start = rdtsc();
    let ticks = tsc_hz() / 1_000_000 * us;
    while rdtsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// One instant on three clocks.
struct Instant {
    pm: u32,
    tsc: u64,
    timer: u32,
}

impl Instant {
    /// The most exact of a few readings: the one during which the TSC advanced least.
    fn now(port: u16) -> Instant {
        let mut best = None;
        for _ in 0..8 {
            let before = rdtsc();
            let pm = port::read32(port);
            let timer = x2apic::timer_count();
            let spent = rdtsc().wrapping_sub(before);
            if best.as_ref().is_none_or(|(least, _)| spent < *least) {
                best = Some((spent, Instant { pm, tsc: before + spent / 2, timer }));
            }
        }
        best.map_or(Instant { pm: 0, tsc: 0, timer: 0 }, |(_, instant)| instant)
    }
}

/// Measures both rates, on core 0, with its timer free.
pub fn measure(timer: PmTimer) {
    let mask = if timer.bits32 { u32::MAX } else { (1 << 24) - 1 };
    x2apic::timer_lvt(crate::interrupts::TIMER, x2apic::TimerMode::OneShot, true);
    x2apic::timer_divide_shift(0);
    x2apic::timer_start(u32::MAX);
    let start = Instant::now(timer.port);
    let since = |pm: u32| u64::from(pm.wrapping_sub(start.pm) & mask);
    let (mut last, mut still) = (start.pm, 0);
    while since(last) < MEASURE {
        let pm = port::read32(timer.port);
        still = if pm == last { still + 1 } else { 0 };
        if still == PATIENCE {
            refuse(format_args!(
                "the ACPI PM timer at port {:#x} stands still; it is needed to measure the TSC",
                timer.port
            ));
        }
        last = pm;
    }
    let end = Instant::now(timer.port);
    x2apic::timer_start(0);
    let elapsed = since(end.pm).max(1);
    let rate =
        |ticks: u64| (u128::from(ticks) * u128::from(PM_TIMER_HZ) / u128::from(elapsed)) as u64;
    TSC_HZ.store(rate(end.tsc.wrapping_sub(start.tsc)), Ordering::Relaxed);
    TIMER_HZ.store(rate(u64::from(start.timer.wrapping_sub(end.timer))), Ordering::Relaxed);
}
