//! The timer against one that goes step by step, and each rule by itself.

use super::*;
use proptest::prelude::*;

/// Divide configuration of divider 1.
const BY_1: u32 = 0b1011;

const fn setup(initial: Option<u32>, periodic: bool) -> TimerSetup {
    TimerSetup { divide: BY_1, periodic, masked: false, initial }
}

/// Three TSC ticks a count.
fn timer() -> VirtualTimer {
    VirtualTimer::new(3_000, 1_000, 0)
}

#[test]
fn one_shot_counts_down_expires_once_and_stays_at_zero() {
    let mut t = timer();
    t.set(setup(Some(10), false), 100);
    assert_eq!((t.count(100), t.count(102), t.count(103), t.count(129)), (10, 10, 9, 1));
    assert_eq!(t.deadline(), Some(130));
    assert!(!t.expired(129) && t.expired(130) && !t.expired(131));
    assert_eq!((t.deadline(), t.count(500)), (None, 0));
    t.set(setup(Some(1), false), 600);
    assert!(t.expired(u64::MAX));
    t.set(setup(Some(0), false), 700);
    assert_eq!((t.deadline(), t.count(800), t.expired(900)), (None, 0, false));
}

#[test]
fn periodic_keeps_its_phase_however_late_it_is_asked() {
    let mut t = timer();
    t.set(setup(Some(10), true), 0);
    assert!(t.expired(30));
    assert_eq!((t.count(30), t.deadline()), (10, Some(60)));
    assert!(t.expired(30 * 1_000 + 29), "once for 999 periods");
    assert!(!t.expired(30 * 1_000 + 29));
    assert_eq!((t.count(30 * 1_000 + 29), t.deadline()), (1, Some(30 * 1_001)));
}

#[test]
fn a_period_of_a_fraction_of_a_tick_does_not_drift() {
    // 7 counts are 23 1/3 ticks.
    let mut t = VirtualTimer::new(10, 3, 0);
    t.set(setup(Some(7), true), 0);
    let mut at = vec![];
    for _ in 0..6 {
        at.push(t.deadline().unwrap());
        assert!(!t.expired(at[at.len() - 1] - 1) && t.expired(at[at.len() - 1]));
    }
    assert_eq!(at, [24, 47, 70, 94, 117, 140]);
}

#[test]
fn what_expires_masked_is_lost_and_what_was_due_before_is_not() {
    let mut t = timer();
    t.set(setup(Some(10), true), 0);
    t.set(TimerSetup { masked: true, ..setup(None, true) }, 10);
    assert_eq!((t.deadline(), t.expired(40), t.count(40)), (None, false, 7));
    t.set(setup(None, true), 95);
    assert_eq!((t.expired(95), t.deadline()), (false, Some(120)));
    // Due at 120; the guest masks it at 125, twice, before anybody looked.
    t.set(TimerSetup { masked: true, ..setup(None, true) }, 125);
    t.set(TimerSetup { masked: true, ..setup(None, true) }, 125);
    assert_eq!(t.deadline(), Some(120));
    assert!(t.expired(126) && !t.expired(127));
    assert_eq!(t.deadline(), None);
}

#[test]
fn another_divider_takes_what_is_left() {
    let mut t = timer();
    t.set(setup(Some(10), false), 0);
    // Divider 2 from the sixth count on.
    t.set(TimerSetup { divide: 0, ..setup(None, false) }, 15);
    assert_eq!((t.count(15), t.count(20), t.count(21), t.deadline()), (5, 5, 4, Some(45)));
    t.reset();
    assert_eq!((t.deadline(), t.count(50)), (None, 0));
}

#[test]
fn every_divider_is_its_own() {
    let dividers = [(0b0000, 2), (0b0001, 4), (0b0010, 8), (0b0011, 16)];
    let more = [(0b1000, 32), (0b1001, 64), (0b1010, 128), (0b1011, 1)];
    for (divide, by) in dividers.into_iter().chain(more) {
        let mut t = timer();
        t.set(TimerSetup { divide, ..setup(Some(1), false) }, 0);
        assert_eq!(t.deadline(), Some(3 * by));
    }
}

#[test]
fn no_period_is_shorter_than_the_shortest() {
    let mut t = VirtualTimer::new(3_000, 1_000, 100);
    t.set(setup(Some(1), true), 0);
    assert_eq!((t.deadline(), t.count(0)), (Some(102), 34));
    assert!(t.expired(102));
    assert_eq!(t.deadline(), Some(204));
    // One that becomes periodic has its first expiry, and only then a period.
    t.set(setup(Some(2), false), 300);
    t.set(setup(None, true), 301);
    assert!(t.expired(306));
    assert_eq!(t.deadline(), Some(306 + 102));
}

#[test]
fn extremes_do_not_overflow() {
    for (tsc, apic) in [(u64::MAX, 1), (1, u64::MAX), (0, 0), (u64::MAX, u64::MAX)] {
        let mut t = VirtualTimer::new(tsc, apic, u64::MAX);
        for periodic in [false, true] {
            t.set(TimerSetup { divide: 0b1010, ..setup(Some(u32::MAX), periodic) }, u64::MAX - 9);
            let _ = (t.count(u64::MAX), t.deadline(), t.expired(u64::MAX), t.count(0));
            t.set(setup(Some(1), periodic), 0);
            let _ = (t.count(u64::MAX), t.deadline(), t.expired(u64::MAX), t.deadline());
        }
    }
}

/// The counter itself: one step per TSC tick, `timer_hz` of `tsc_hz` steps make it go down.
struct Stepped {
    setup: TimerSetup,
    initial: u32,
    count: u32,
    part: u64,
    pending: bool,
}

impl Stepped {
    fn step(&mut self, tsc_hz: u64, timer_hz: u64) {
        if self.count == 0 {
            return;
        }
        self.part += timer_hz;
        let per = tsc_hz << shift_of(self.setup.divide);
        while self.part >= per && self.count != 0 {
            self.part -= per;
            self.count -= 1;
            if self.count == 0 {
                self.pending |= !self.setup.masked;
                self.count = if self.setup.periodic { self.initial } else { 0 };
            }
        }
    }

    fn set(&mut self, setup: TimerSetup) {
        if setup.divide != self.setup.divide || setup.initial.is_some() {
            self.part = 0;
        }
        if let Some(initial) = setup.initial {
            (self.initial, self.count) = (initial, initial);
        }
        self.setup = setup;
    }
}

proptest! {
    /// With a whole number of ticks per count, as rounding is all that the two may differ in
    /// when a one-shot timer becomes periodic or the other way round.
    #[test]
    fn it_is_the_counter_that_goes_step_by_step(
        ratio in 1u64..4,
        ops in prop::collection::vec((0u64..60, 0u8..6, 0u32..9, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let (tsc_hz, timer_hz) = (ratio * 1_000, 1_000);
        let mut t = VirtualTimer::new(tsc_hz, timer_hz, 0);
        let masked = TimerSetup { divide: 0, periodic: false, masked: true, initial: None };
        let mut model = Stepped { setup: masked, initial: 0, count: 0, part: 0, pending: false };
        let (mut now, mut setup) = (5, masked);
        for (wait, what, value, a, b) in ops {
            for _ in 0..wait {
                now += 1;
                model.step(tsc_hz, timer_hz);
                prop_assert_eq!(t.count(now), model.count, "at {}", now);
            }
            setup.initial = None;
            match what {
                0 | 1 => setup.initial = Some(value),
                2 => setup.divide = value & 3 | (value & 4) << 1,
                3 => (setup.periodic, setup.masked) = (a, b),
                4 => {
                    let due = t.deadline().is_some_and(|when| when <= now);
                    prop_assert_eq!(due, model.pending);
                    prop_assert_eq!(t.expired(now), core::mem::take(&mut model.pending));
                    continue;
                }
                _ => continue,
            }
            t.set(setup, now);
            model.set(setup);
        }
    }

    /// The deadline is the first reading at which it has expired, whatever the rates.
    #[test]
    fn the_deadline_is_exact(
        tsc_hz in 1u64..10_000_000_000, timer_hz in 1u64..10_000_000_000,
        initial in 1u32.., divide in 0u32..16, periodic: bool, start in 0u64..1 << 62, shortest in 0u64..1 << 40,
    ) {
        let mut t = VirtualTimer::new(tsc_hz, timer_hz, shortest);
        t.set(TimerSetup { divide, periodic, masked: false, initial: Some(initial) }, start);
        let mut before = start;
        for _ in 0..if periodic { 5 } else { 1 } {
            let when = t.deadline().unwrap();
            if when == u64::MAX {
                break;
            }
            // A count may be a fraction of a tick: several periods may end in one.
            prop_assert!(when >= before);
            prop_assert!(when == start || !t.clone().expired(when - 1) );
            prop_assert!(t.expired(when));
            before = when;
        }
    }
}
