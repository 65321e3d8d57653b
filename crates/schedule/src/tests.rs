//! The rules one by one, then the guarantees against whatever happens.

use super::*;

const SLICE: u64 = 1_000;

/// As many members as there are weights, all awake at 0.
fn awake(weights: &[u32]) -> Schedule {
    let mut s = Schedule::new(SLICE);
    for weight in weights {
        let place = s.add(*weight).unwrap();
        s.wake(place, 0);
    }
    s
}

#[test]
fn equals_take_turns_of_a_slice() {
    let mut s = awake(&[100; 3]);
    let mut order = vec![];
    for turn in 0..6 {
        order.push(s.pick(turn * SLICE).unwrap());
        assert_eq!(s.deadline(), Some((turn + 1) * SLICE));
        assert!(!s.should_switch((turn + 1) * SLICE - 1));
        assert!(s.should_switch((turn + 1) * SLICE));
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn one_alone_goes_on() {
    let mut s = awake(&[100]);
    assert_eq!(s.pick(0), Some(0));
    assert_eq!((s.contested(), s.deadline()), (false, None));
    assert!(!s.should_switch(50 * SLICE));
    assert_eq!((s.pick(60 * SLICE), s.ran(0)), (Some(0), 60 * SLICE));
    s.block(0, 61 * SLICE);
    assert_eq!((s.pick(62 * SLICE), s.ran(0), s.running()), (None, 61 * SLICE, None));
}

#[test]
fn one_that_wakes_behind_cuts_the_slice_short_and_one_ahead_waits() {
    let mut s = awake(&[100; 2]);
    s.block(1, 0);
    assert_eq!(s.pick(0), Some(0));
    s.charge(SLICE / 2);
    s.wake(1, SLICE / 2);
    assert!(s.should_switch(SLICE / 2), "1 is behind");
    assert_eq!(s.pick(SLICE / 2), Some(1));
    assert!(!s.should_switch(SLICE), "0 didn't wake, it waits");
    // 1 runs its slice, and is ahead then: asleep and awake again, it has to wait.
    s.block(1, SLICE / 2 + SLICE);
    assert_eq!(s.pick(SLICE / 2 + SLICE), Some(0));
    s.wake(1, SLICE / 2 + SLICE);
    assert!(!s.should_switch(SLICE / 2 + SLICE + 1));
}

#[test]
fn sleep_is_not_saved_up() {
    let mut s = awake(&[100; 2]);
    s.block(1, 0);
    s.pick(0);
    s.wake(1, 1_000 * SLICE);
    assert_eq!(s.pick(1_000 * SLICE), Some(1));
    // A slice behind; after that slice they are equal, and it's the other's turn.
    assert!(s.should_switch(1_001 * SLICE));
    assert_eq!(s.pick(1_001 * SLICE), Some(0));
}

#[test]
fn a_heavy_one_goes_on_while_it_is_behind() {
    let mut s = awake(&[300, 100]);
    let turns: Vec<_> = (0..8).map(|turn| s.pick(turn * SLICE).unwrap()).collect();
    assert_eq!(turns.iter().filter(|place| **place == 0).count(), 6, "{turns:?}");
}

#[test]
fn places_are_eight_and_none_is_given_twice() {
    let mut s = Schedule::new(SLICE);
    assert!((0..MAX).all(|place| s.add(0) == Some(place)));
    assert_eq!(s.add(1), None);
    s.remove(3, 0);
    s.wake(3, 0);
    s.block(3, 0);
    s.wake(3, 0);
    assert_eq!((s.add(1), s.is_runnable(3), s.pick(0)), (None, false, None));
    s.wake(MAX, 0);
    s.block(MAX, 0);
    assert!(!s.is_runnable(MAX) && s.ran(MAX) == 0);
}
