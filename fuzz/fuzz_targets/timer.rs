//! The virtual timer of a local APIC, from any guest's writes at any rates and readings.
//!
//! The deadline is the first reading at which it has expired, an expiry is reported once, periods
//! are no shorter than the shortest, and the count stays within what it started from.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{TimerSetup, VirtualTimer};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    tsc_hz: u64,
    timer_hz: u64,
    shortest: u32,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Set { divide: u32, periodic: bool, masked: bool, initial: Option<u32> },
    Pass(u32),
    Jump(u64),
    ToDeadline,
    Reset,
}

fuzz_target!(|input: Input| {
    let mut timer = VirtualTimer::new(input.tsc_hz, input.timer_hz, input.shortest.into());
    let (mut now, mut initial, mut periodic) = (0_u64, 0, false);
    let mut last_in_phase: Option<u64> = None;
    for step in input.steps {
        match step {
            Step::Set { divide, periodic: p, masked, initial: i } => {
                timer.set(TimerSetup { divide, periodic: p, masked, initial: i }, now);
                (initial, periodic) = (i.unwrap_or(initial), p);
                last_in_phase = None;
                if i == Some(0) {
                    assert_eq!(timer.count(now), 0);
                    assert!(timer.deadline().is_none_or(|due| due <= now));
                }
            }
            // The last reading of all is what a deadline beyond it is given as.
            Step::Pass(ticks) => now = now.saturating_add(ticks.into()).min(u64::MAX - 1),
            Step::Jump(to) => {
                now = to.min(u64::MAX - 1);
                last_in_phase = None;
            }
            Step::ToDeadline => {
                let Some(deadline) = timer.deadline().filter(|d| *d > now) else { continue };
                if deadline == u64::MAX {
                    continue;
                }
                assert!(!timer.clone().expired(deadline - 1));
                now = deadline;
                assert!(timer.expired(now), "at its deadline");
                assert!(periodic || timer.deadline().is_none());
                if periodic {
                    let apart = last_in_phase.map_or(u64::MAX, |last| now - last);
                    // A deadline is rounded up to a whole tick, and a count has 32 bits.
                    let longest = u128::from(u32::MAX) * u128::from(input.tsc_hz.max(1))
                        / u128::from(input.timer_hz.max(1));
                    let least = u128::from(input.shortest).min(longest).saturating_sub(1);
                    assert!(u128::from(apart) >= least);
                    last_in_phase = Some(now);
                }
                continue;
            }
            Step::Reset => {
                timer.reset();
                (initial, periodic, last_in_phase) = (0, false, None);
                assert_eq!((timer.deadline(), timer.count(now)), (None, 0));
            }
        }
        if !periodic && input.shortest == 0 {
            assert!(timer.count(now) <= initial);
        }
        let due = timer.deadline().is_some_and(|deadline| deadline <= now);
        assert_eq!(timer.expired(now), due);
        assert!(!timer.expired(now), "once");
        if due {
            last_in_phase = None;
        }
    }
});
