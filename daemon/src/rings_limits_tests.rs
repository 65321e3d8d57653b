//! Limits of devices, by a clock that the test moves.

use crate::clock::HERTZ;
use crate::config::Limits;
use crate::rings::Rings;
use crate::rings_tests::{ELEMENTS, Guest, MILLISECOND, limited, manual, stepping};

#[test]
fn a_limit_holds_and_others_arent_slowed() {
    let (mut rings, now) = manual();
    let slow = Guest::new(&mut rings, limited(1000, None));
    let fast = Guest::new(&mut rings, Limits::default());
    for _ in 0..1000 {
        slow.offer(ELEMENTS);
        fast.offer(ELEMENTS);
        rings.serve();
        now.set(now.get() + MILLISECOND);
    }
    // A second's, and a hundredth's for a burst.
    assert_eq!(slow.completed(&mut rings), 1010);
    let held =
        |guest: &Guest, rings: &mut Rings| rings.get(guest.place).expect("it is there").counts.held;
    let slow = held(&slow, &mut rings);
    // All the time but for what was saved up.
    assert!((980 * MILLISECOND..=1010 * MILLISECOND).contains(&slow), "{slow}");
    assert_eq!(held(&fast, &mut rings), 0);
    assert_eq!(fast.completed(&mut rings), 8000);
}

/// Eight at a time, one in a millisecond: each is there for eight, whatever the turns.
#[test]
fn what_a_limit_keeps_waiting_takes_as_long() {
    let (mut rings, now) = manual();
    let guest = Guest::new(&mut rings, limited(1000, None));
    let mut look = |rounds| {
        for _ in 0..rounds {
            guest.offer(ELEMENTS);
            rings.serve();
            now.set(now.get() + MILLISECOND);
        }
        rings.get(guest.place).expect("it is there").counts
    };
    let (before, counts) = (look(100), look(100));
    assert_eq!(counts.latencies.count(), counts.completed);
    assert_eq!(counts.completed - before.completed, 100);
    let each = (counts.latencies.sum - before.latencies.sum) / 100;
    assert!((7 * MILLISECOND..=8 * MILLISECOND).contains(&each), "{each}");
}

#[test]
fn a_burst_is_what_is_saved_up() {
    let (mut rings, now) = manual();
    let guest = Guest::new(&mut rings, limited(1000, Some(HERTZ / 10)));
    let mut first = 0;
    for _ in 0..50 {
        guest.offer(ELEMENTS);
        rings.serve();
        first = guest.completed(&mut rings);
    }
    assert_eq!(first, 101, "a tenth of a second's, and one");
    // At a limit the thread sleeps until it is paid for.
    let (at, next) = rings.next_at();
    assert_eq!(next, Some(at + MILLISECOND));
    now.set(at + 20 * MILLISECOND);
    for _ in 0..50 {
        guest.offer(ELEMENTS);
        rings.serve();
    }
    assert_eq!(guest.completed(&mut rings), 121);
}

/// A thread that is taken away while it polls leaves its core to others: for a while it listens to
/// its rings and doesn't poll them. What is done between two turns isn't taken away from it.
#[test]
fn a_thread_that_is_taken_away_while_it_polls_sleeps() {
    let (mut rings, now, step) = stepping();
    let guest = Guest::new(&mut rings, Limits::default());
    let _other = guest.kicks(&mut rings);
    let is_polled_after = |rings: &mut Rings, pause| {
        now.set(now.get() + pause);
        rings.serve();
        guest.offer(1);
        rings.kicked(guest.place);
        rings.serve();
        rings.schedule().is_polled(guest.place)
    };
    assert!(is_polled_after(&mut rings, 100_000));
    assert!(!is_polled_after(&mut rings, MILLISECOND), "the kick came late");
    assert!(is_polled_after(&mut rings, 10_000));
    step.set(MILLISECOND);
    guest.offer(1);
    rings.serve();
    step.set(0);
    assert!(!is_polled_after(&mut rings, MILLISECOND), "the kick came late");
    assert!(!is_polled_after(&mut rings, 10_000));
    assert!(!is_polled_after(&mut rings, 100 * MILLISECOND), "the kick came late");
    assert!(is_polled_after(&mut rings, 10_000));
}

#[test]
fn bytes_are_limited_too() {
    let (mut rings, now) = manual();
    let limits = Limits { bytes_per_second: Some(512_000), ..Limits::default() };
    let guest = Guest::new(&mut rings, limits);
    for _ in 0..1000 {
        guest.offer(ELEMENTS);
        rings.serve();
        now.set(now.get() + MILLISECOND);
    }
    assert_eq!(guest.completed(&mut rings), 1010);
}
