//! Queues that begin anew, as often as their guests like.

use super::*;

/// A VM of the least weight, with as many queues as there are, begins anew all the time.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn who_begins_anew_has_no_more_than_its_weight() {
    const QUEUES: usize = 16;
    let mut world = World::new(QUEUES + 7, |_| Guest { depth: 64, size: 4 << 10, think: 0 });
    let vm = |queue: usize| queue.saturating_sub(QUEUES - 1);
    let weight = |vm| Share { weight: if vm == 0 { 1 } else { 100 }, ..Share::default() };
    let mut s = world.start_with(USUAL, vm, weight);
    for _ in 0..1_000 {
        world.run(&mut s, SECOND / 20_000);
        for queue in 0..QUEUES {
            s.leave(queue);
            assert!(s.poll(queue, 0, world.now));
        }
    }
    let own: u64 = world.bytes[..QUEUES].iter().sum();
    let others = &world.bytes[QUEUES..];
    // A hundredth of each other VM's, and what a turn is at the beginning.
    let least = *others.iter().min().unwrap();
    assert!(own <= least / 50 + 2 * MAX, "{own} beside {others:?}");
    assert!(others.iter().max().unwrap() * 10 <= least * 11, "{others:?}");
}

#[test]
fn a_queue_that_is_polled_already_goes_on() {
    let (mut s, mut rings) = (Schedule::new(USUAL, 4, 4), Rings([9; 4], 0));
    assert!(!s.poll(4, 0, 0) && !s.poll(0, 4, 0));
    assert!(s.poll(0, 1, 0) && s.is_polled(0) && !s.kicked(0, 0));
    assert!(s.poll(2, 1, 0));
    assert_eq!(s.next(0, &mut rings), Turn::Serve(0));
    assert!(s.poll(0, 1, 0));
    assert_eq!(s.served(0, piece(512, 1), 0, &mut rings), Continue, "its turn goes on");
    assert!(s.poll(0, 2, 0));
    assert_eq!(s.served(0, piece(512, 1), 0, &mut rings), Switch, "it is another VM's");
}

/// A guest that has its device start all the time: by bus mastering off and on, or resets.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn joining_again_and_again_gains_nothing() {
    let bulk = |_| Guest { depth: 64, size: 64 << 10, think: 0 };
    let served = |begin: fn(&mut Schedule, u64) -> bool| {
        let mut world = World::new(2, bulk);
        let share = |vm| Share { weight: [1000, 100][vm], ..Share::default() };
        let mut s = world.start(USUAL, share);
        for _ in 0..5_000 {
            world.run(&mut s, SECOND / 100_000);
            s.leave(1);
            assert!(begin(&mut s, world.now) && s.is_polled(1));
        }
        world.bytes[1] * 100 / (world.bytes[0] + world.bytes[1])
    };
    let (polled, kicked) =
        (served(|s, now| s.poll(1, 1, now)), served(|s, now| s.join(1, 1) && s.kicked(1, now)));
    assert!(polled <= 12 && kicked >= 40, "of a hundred bytes {polled}, by kicks {kicked}");
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn resetting_and_kicking_gains_nothing() {
    let bulk = |_| Guest { depth: 64, size: 64 << 10, think: 0 };
    let mut world = World::new(2, bulk);
    let mut s = world.start(USUAL, |_| Share::default());
    for _ in 0..2_000 {
        world.run(&mut s, SECOND / 100_000);
        s.leave(1);
        assert!(s.join(1, 1) && s.kicked(1, world.now));
    }
    assert!(world.bytes[1] * 10 <= world.bytes[0] * 11, "{world:?}");
}
