//! A core's schedule under members that wake, sleep and go away at any time, weights of all kinds,
//! and clocks that misbehave.
//!
//! Somebody runs if somebody can, `should_switch` says what `pick` does and the choice stands, time
//! is charged to whom it was given; and as long as the clock goes forward, a member that is always
//! runnable has no less than its share, but for the slices that the crate promises.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use schedule::{MAX, MAX_WEIGHT, Schedule};

#[derive(Arbitrary, Debug)]
struct Input {
    slice: u16,
    weights: Vec<u16>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Wake(u8),
    Block(u8),
    Remove(u8),
    Pass(u16),
    Jump(u64),
}

fuzz_target!(|input: Input| {
    let slice = u64::from(input.slice).max(1);
    let mut s = Schedule::new(input.slice.into());
    let weights: Vec<u64> =
        input.weights.iter().take(MAX).map(|w| u64::from(*w).clamp(1, MAX_WEIGHT.into())).collect();
    for (place, weight) in input.weights.iter().enumerate() {
        assert_eq!(s.add((*weight).into()), (place < MAX).then_some(place));
    }
    let (mut now, mut steady) = (0_u64, true);
    s.wake(0, now);
    decide(&mut s, now);
    for step in input.steps {
        match step {
            Step::Wake(place) => s.wake(place.into(), now),
            Step::Block(place) if place != 0 => s.block(place.into(), now),
            Step::Remove(place) if place != 0 => {
                s.remove(place.into(), now);
                assert!(!s.is_runnable(place.into()));
            }
            Step::Block(_) | Step::Remove(_) => {}
            Step::Pass(ticks) => {
                // A thousand slices at most, each with its look at the deadline.
                let end = now.saturating_add(u64::from(ticks).min(slice * 1000));
                while let Some(deadline) = s.deadline().filter(|d| steady && *d <= end) {
                    now = now.max(deadline);
                    decide(&mut s, now);
                }
                now = end;
            }
            Step::Jump(to) => {
                steady &= to == now;
                now = to;
            }
        }
        decide(&mut s, now);
    }
    if !steady || weights.is_empty() {
        return;
    }
    assert_eq!((0..weights.len()).map(|p| s.ran(p)).sum::<u64>(), now);
    let all: u64 = weights.iter().map(|w| (slice * 100).div_ceil(*w)).sum();
    let time = |place: usize| s.ran(place) * 100 / weights[place];
    for place in 1..weights.len() {
        assert!(time(place) <= time(0) + all + slice + 1, "{place}");
    }
});

fn decide(s: &mut Schedule, now: u64) {
    let before = s.running();
    let switch = s.should_switch(now);
    let picked = s.pick(now);
    assert_eq!((picked != before, picked), (switch, s.running()));
    assert_eq!(picked.is_some(), (0..MAX).any(|place| s.is_runnable(place)));
    assert!(picked.is_none_or(|place| s.is_runnable(place)));
    assert!(!s.should_switch(now));
    assert_eq!(s.deadline().is_some(), s.contested());
}
