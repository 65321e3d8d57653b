//! Queues that move to another core, and what their VMs owe.

use super::*;
use crate::Place::{On, With};
use crate::cores_at_a_time;

/// Two cores of two VMs; on the first, VM 0 has just had a turn more than VM 1.
fn after_a_turn() -> (Schedule, Schedule, Rings) {
    let (mut from, mut to) = (Schedule::new(USUAL, 2, 2), Schedule::new(USUAL, 2, 2));
    let mut rings = Rings([9; 4], 0);
    assert!(from.poll(0, 0, 0) && from.poll(1, 1, 0) && to.poll(1, 1, 0));
    assert_eq!(from.next(0, &mut rings), Turn::Serve(0));
    assert_eq!(from.served(0, piece(MAX + 1, 1), 0, &mut rings), Switch);
    assert_eq!(from.next(0, &mut rings), Turn::Serve(1));
    assert_eq!(from.served(1, piece(512, 1), 0, &mut rings), Continue);
    (from, to, rings)
}

#[test]
fn who_had_more_than_its_share_waits_where_it_comes_to() {
    for owes in [true, false] {
        let (mut from, mut to, mut rings) = after_a_turn();
        let debt = from.debt(0);
        from.leave(0);
        if owes {
            to.owe(0, debt);
        }
        assert!(to.poll(0, 0, 0));
        let first = if owes { Turn::Serve(1) } else { Turn::Serve(0) };
        assert_eq!(to.next(0, &mut rings), first);
    }
}

#[test]
fn a_debt_is_as_large_after_a_move_to_and_fro() {
    let (mut from, mut to, _) = after_a_turn();
    let debt = from.debt(0);
    to.owe(0, debt);
    to.owe(0, debt);
    assert_eq!(to.debt(0), debt);
    from.owe(0, to.debt(0));
    assert_eq!(from.debt(0), debt);
    // Whoever is behind brings nothing, and a place that there isn't has none.
    let (none, before) = (to.debt(1), from.debt(1));
    from.owe(1, none);
    from.owe(9, debt);
    assert_eq!((from.debt(1), from.debt(9)), (before, none));
}

#[test]
fn a_limit_goes_along() {
    let share = Share { bytes: Some(1 << 20), ..Share::default() };
    let (mut from, mut to) = (Schedule::new(USUAL, 1, 1), Schedule::new(USUAL, 1, 1));
    let mut rings = Rings([9; 4], 0);
    from.set_share(0, share);
    to.set_share(0, share);
    assert!(from.poll(0, 0, 0));
    assert_eq!(from.next(0, &mut rings), Turn::Serve(0));
    from.served(0, piece(1 << 20, 1), 0, &mut rings);
    to.owe(0, from.debt(0));
    assert!(to.poll(0, 0, 0));
    let second = USUAL.ticks_per_second;
    assert_eq!(to.next(second / 2, &mut rings), Turn::Nothing);
    assert_eq!(to.next(second + 1, &mut rings), Turn::Serve(0));
}

/// Two interfaces at a switch that moves are on one core at a time, and have one limit there.
#[test]
fn a_limit_is_cut_for_as_many_cores_as_its_devices_may_be_on() {
    for (devices, expected) in [
        (&[][..], 0),
        (&[With(3)], 1),
        (&[With(3), With(3)], 1),
        (&[With(3), With(2)], 2),
        (&[With(1), On(1)], 2),
        (&[On(1), On(1)], 1),
        (&[On(0), On(1), With(0), With(1)], 3),
    ] {
        let at_a_time = cores_at_a_time(devices.iter().copied(), 3);
        assert_eq!(at_a_time, expected, "{devices:?}");
    }
}

/// All queues of a VM's interfaces go at once, each with the debt, and to and fro all the time.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_limit_holds_for_two_devices_that_move_together() {
    let share = Share { bytes: Some(1 << 20), ..Share::default() };
    let mut cores = [(); 2].map(|()| {
        let mut core = Schedule::new(USUAL, 2, 1);
        core.set_share(0, share);
        core
    });
    let (mut rings, mut bytes, mut now) = (Rings([9; 4], 0), 0, 0);
    (0..2).for_each(|queue| assert!(cores[0].poll(queue, 0, 0)));
    for round in 0..100_000 {
        let [from, to] = &mut cores;
        while let Turn::Serve(queue) = from.next(now, &mut rings) {
            bytes += 1500;
            from.served(queue, piece(1500, 1), now, &mut rings);
        }
        if round % 3 == 0 {
            for queue in 0..2 {
                let debt = from.debt(0);
                from.leave(queue);
                to.owe(0, debt);
                assert!(to.poll(queue, 0, now));
            }
            cores.swap(0, 1);
        }
        now += SECOND / 50_000;
    }
    let (second, burst) = (USUAL.ticks_per_second, USUAL.burst);
    let may = (now + burst) * (1 << 20) / second;
    assert!((may / 2..=may + 1500).contains(&bytes), "{bytes} bytes, {may} may be");
}

#[test]
fn how_long_a_queue_waited_is_known_in_ticks() {
    let mut s = Schedule::new(USUAL, 2, 2);
    let mut rings = Rings([9; 4], 0);
    assert!(s.poll(0, 0, 100) && s.poll(1, 1, 100));
    assert_eq!(s.next(100, &mut rings), Turn::Serve(0));
    assert_eq!(s.served(0, piece(MAX + 1, 1), 700, &mut rings), Switch);
    assert_eq!(s.next(700, &mut rings), Turn::Serve(1));
    assert_eq!((s.last_wait(0), s.last_wait(1), s.last_wait(9)), (0, 600, 0));
}
