//! How long a queue waits, in passes and in what others were served.

use super::*;

/// Those of a VM that comes back aren't bounded by the guarantee; what they cost is.
#[test]
fn a_credit_may_be_taken_in_many_short_turns() {
    let (mut s, mut rings) = begun(USUAL);
    for _ in 0..8 {
        s.served(0, piece(MAX, 1), 0, &mut rings);
        s.next(0, &mut rings);
    }
    // The second VM was away, and has one request at each pass from here on.
    let mut turns = 0;
    rings.0 = [9, 1, 0, 0];
    while s.next(0, &mut rings) == Turn::Serve(1) {
        rings.0[1] = 0;
        assert_eq!(s.served(1, piece(512, 1), 0, &mut rings), Switch);
        rings.0[1] = 1;
        turns += 1;
    }
    assert!(turns == USUAL.credit / 512, "{turns}");
    let wait = s.worst_wait(0);
    assert!(wait.passes >= turns && wait.cost <= USUAL.credit + 512, "{wait:?} for {turns} turns");
    assert!(wait.cost >= turns * 512, "{wait:?} for {turns} turns");
}

/// What a piece costs counts for turns and shares, not for limits.
#[test]
fn limits_are_of_bytes_and_not_of_cost() {
    let share = Share { bytes: Some(1 << 20), ..Share::default() };
    let mut s = Schedule::new(USUAL, 1, 1);
    s.set_share(0, share);
    assert!(s.join(0, 0) && s.kicked(0, SECOND));
    let mut rings = Rings([9, 0, 0, 0], 0);
    let free = Piece { cost: MAX, bytes: 0, requests: 1 };
    for _ in 0..8 {
        assert_eq!(s.next(SECOND, &mut rings), Turn::Serve(0));
        s.served(0, free, SECOND, &mut rings);
    }
    assert_eq!(s.next(SECOND, &mut rings), Turn::Serve(0));
    let paid = Piece { cost: 512, bytes: 1 << 20, requests: 1 };
    assert_eq!(s.served(0, paid, SECOND, &mut rings), Switch);
    assert_eq!(s.next(SECOND, &mut rings), Turn::Nothing);
    let held = SECOND - USUAL.burst;
    assert!((held - 1..=held + 1).contains(&s.take_held(0)), "what it saved up is paid at once");
    assert_eq!(s.take_held(0), 0);
    assert_eq!(s.next(2 * SECOND, &mut rings), Turn::Serve(0));
}

/// A turn for nothing costs nothing: a VM with several queues that can't be served, since its back
/// end is full, must not have one after the other of them while another waits.
#[test]
fn queues_that_cannot_be_served_do_not_keep_others_from_their_turns() {
    let (mut s, mut rings) = (Schedule::new(USUAL, 4, 2), Rings([1; 4], 0));
    for place in 0..4 {
        assert!(s.poll(place, usize::from(place == 3), 0));
    }
    // The other VM had more: it isn't the one that is behind.
    s.vms[1].charge(1 << 50, 0);
    let (mut served, mut tried) = (0, [0; 3]);
    for _ in 0..60 {
        match s.next(0, &mut rings) {
            Turn::Serve(3) => {
                served += 1;
                s.served(3, piece(512, 1), 0, &mut rings);
            }
            Turn::Serve(place) => {
                tried[place] += 1;
                s.rest(place);
            }
            turn => panic!("{turn:?}"),
        }
    }
    assert_eq!((served, tried), (30, [10; 3]));
    // Alone, each of them is tried all the same.
    rings.0[3] = 0;
    let turns = (0..60).filter(|_| match s.next(0, &mut rings) {
        Turn::Serve(place) => {
            s.rest(place);
            true
        }
        _ => false,
    });
    assert!(turns.count() >= 29);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A victim with some queues beside VMs that come and go, with requests of any size and depth.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn what_a_queue_waits_for_is_bounded(
        others in prop::collection::vec((512_u64..=256 << 10, 1_u32..64, 0_u64..200_000), 1..4),
        own in 1_usize..5,
        (size, depth) in (512_u64..=64 << 10, 1_u32..32),
    ) {
        let n = others.len();
        let mut world = World::new(n + own, |place| match others.get(place) {
            Some(&(size, depth, think)) => Guest { depth, size, think },
            None => Guest { depth, size, think: 5_000 },
        });
        let mut s = world.start_with(USUAL, |queue| queue.min(n), |_| Share::default());
        world.run(&mut s, SECOND / 20);
        let turn = MAX + PIECE;
        let bound = own as u64 * (1 + 3 * n as u64) * turn;
        for place in n..n + own {
            let wait = s.worst_wait(place);
            prop_assert!(wait.cost <= bound, "{wait:?}, {bound} {world:?}");
        }
    }
}

#[test]
fn what_was_served_before_a_queue_waits_isnt_in_its_wait() {
    let mut s = Schedule::new(USUAL, 2, 2);
    let mut rings = Rings([9, 0, 0, 0], 0);
    assert!(s.poll(0, 0, 0) && s.poll(1, 1, 0));
    assert_eq!(s.next(0, &mut rings), Turn::Serve(0));
    assert_eq!(s.served(0, piece(MIN, 1), 0, &mut rings), Continue);
    rings.0[1] = 1;
    // Is seen after this one, in the middle of a turn that isn't charged yet.
    assert_eq!(s.served(0, piece(MIN, 1), 0, &mut rings), Continue);
    assert_eq!(s.served(0, piece(MAX, 1), 0, &mut rings), Switch);
    assert_eq!(s.next(0, &mut rings), Turn::Serve(1));
    assert_eq!(s.worst_wait(1), Wait { passes: 1, cost: MAX });
    // What a turn had is owed in its middle, too.
    let before = s.debt(1);
    assert_eq!(s.served(1, piece(MIN, 1), 0, &mut rings), Continue);
    s.leave(0);
    assert_ne!(s.debt(1), before);
}

/// One that asks for one thing at a time, beside thirteen that read much: how long it waited at the
/// start, at which all are kicked at once, and after it, and its part of an equal share then.
fn beside_thirteen(
    settings: Settings,
    latency: Guest,
    bulk: impl Fn(usize) -> Guest,
) -> (Wait, Wait, f64) {
    let mut world = World::new(14, |place| if place == 13 { latency } else { bulk(place) });
    let mut s = world.start(settings, |_| Share::default());
    // As long as its start may have left it ahead.
    world.run(&mut s, SECOND / 200);
    let start = core::mem::take(&mut s.queues[13].worst_wait);
    let before = world.bytes.clone();
    world.run(&mut s, SECOND / 100);
    let served = world.bytes.iter().zip(before).map(|(bytes, before)| bytes - before);
    let served: Vec<_> = served.collect();
    let share = 14.0 * served[13] as f64 / served.iter().sum::<u64>() as f64;
    (start, s.worst_wait(13), share)
}

/// Limits of being stuck as they are, or shorter, by which turns are.
fn limits() -> impl Strategy<Value = Settings> {
    let stuck = prop_oneof![Just(USUAL.queue_stuck), 0..=USUAL.queue_stuck];
    stuck.prop_map(|stuck| Settings { queue_stuck: stuck, work_stuck: 2 * stuck, ..USUAL })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The others always have something to do, and it takes less than its share: it waits for the
    /// turn under way and for no other. At the start each of the others is before it by its kick,
    /// and may be once more in the turns between.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn one_that_takes_less_than_its_share_waits_for_the_turn_under_way(
        settings in limits(),
        sizes in prop::collection::vec(512_u64..=64 << 10, 13),
        depth in 8_u32..64,
        size in 512_u64..=4 << 10,
        think in 1_u64..200_000,
    ) {
        let bulk = |place: usize| Guest { depth, size: sizes[place], think: 0 };
        let latency = Guest { depth: 1, size, think };
        let (start, wait, share) = beside_thirteen(settings, latency, bulk);
        prop_assert!(start.passes <= 26, "{start:?}");
        prop_assert!(share > 0.9 || wait.passes <= 1, "{wait:?} with {share} of its share");
    }

    /// The others come and go. Who comes back is behind as far as it is, so each of them may be
    /// before it, besides the turn under way.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn one_that_takes_less_than_its_share_waits_for_each_that_comes_back(
        settings in limits(),
        others in prop::collection::vec((512_u64..=64 << 10, 0_u64..300_000), 13),
        depth in 8_u32..64,
        size in 512_u64..=4 << 10,
        think in 1_u64..200_000,
    ) {
        let bulk = |place: usize| Guest { depth, size: others[place].0, think: others[place].1 };
        let latency = Guest { depth: 1, size, think };
        let (_, wait, share) = beside_thirteen(settings, latency, bulk);
        prop_assert!(share > 0.9 || wait.passes <= 14, "{wait:?} with {share} of its share");
    }
}

/// It counts from its turn on, not from when it was first seen waiting for that.
#[test]
fn a_queue_that_waited_for_long_is_polled_on_after_its_turn() {
    let (mut s, mut rings) = (polled(USUAL), Rings([1, 1, 0, 0], 0));
    let idle = USUAL.idle;
    assert_eq!(s.next(0, &mut rings), Turn::Serve(0));
    [0, 2, 3].into_iter().for_each(|place| s.leave(place));
    assert_eq!(s.next(2 * idle, &mut rings), Turn::Serve(1));
    rings.0[1] = 0;
    assert_eq!(s.served(1, piece(512, 1), 2 * idle, &mut rings), Switch);
    assert_eq!(s.next(3 * idle - 1, &mut rings), Turn::Nothing);
    assert_eq!(s.next(3 * idle, &mut rings), Turn::Sleep(1));
}

/// Each of them when it had nothing for so long, whatever the others had.
#[test]
fn queues_sleep_in_the_order_in_which_they_had_something() {
    let (mut s, mut rings) = (polled(USUAL), Rings([0; 4], 0));
    let idle = USUAL.idle;
    for (place, at) in [(2, 10), (0, 20), (3, 30), (1, 40)] {
        rings.0[place] = 1;
        assert_eq!(s.next(at, &mut rings), Turn::Serve(place));
        rings.0[place] = 0;
        assert_eq!(s.served(place, piece(512, 1), at, &mut rings), Switch);
    }
    for (place, at) in [(2, 10), (0, 20), (3, 30), (1, 40)] {
        assert_eq!(s.next(idle + at - 1, &mut rings), Turn::Nothing);
        assert_eq!(s.next(idle + at, &mut rings), Turn::Sleep(place));
        assert!(s.sleep(place, idle + at, &mut rings));
    }
    assert_eq!(s.next(9 * idle, &mut rings), Turn::Nothing);
}

/// Who asks seldom isn't polled for after its requests; who asks often is, for longer each time
/// that it had to kick.
#[test]
fn a_queue_is_polled_for_as_long_as_its_requests_are_worth_it() {
    let settings = Settings { adapts: true, idle: 1600, ..USUAL };
    let (mut s, mut rings) = (Schedule::new(settings, 4, 4), Rings([0; 4], 0));
    assert!(s.poll(0, 3, 0));
    // Its first request comes at once; what each one leaves is polled for so long.
    let mut now = 0;
    let mut polled = |now: &mut u64, s: &mut Schedule| {
        rings.0[0] = 1;
        assert_eq!(s.next(*now, &mut rings), Turn::Serve(0));
        rings.0[0] = 0;
        assert_eq!(s.served(0, piece(512, 1), *now, &mut rings), Switch);
        let begun = *now;
        while s.next(*now, &mut rings) == Turn::Nothing {
            *now += 1;
        }
        assert!(s.sleep(0, *now, &mut rings));
        *now - begun
    };
    assert_eq!(polled(&mut now, &mut s), 1600);
    for (after, then) in [(1, 0), (1, 100), (1, 200), (1600, 0), (1500, 100), (0, 200)] {
        now += after;
        assert!(s.kicked(0, now));
        assert_eq!(polled(&mut now, &mut s), then, "after {after}");
    }
}

/// Where one sleeps soon, another that is polled for longer doesn't keep it awake, nor the other
/// way round.
#[test]
fn each_queue_has_its_own_patience() {
    let settings = Settings { adapts: true, idle: 1600, ..USUAL };
    let (mut s, mut rings) = (Schedule::new(settings, 4, 4), Rings([0; 4], 0));
    assert!(s.poll(0, 0, 0) && s.join(1, 1));
    assert_eq!(s.next(10, &mut rings), Turn::Nothing);
    assert!(s.kicked(1, 10_000_000));
    // The first is due long since, the second had a late kick: it has no patience.
    for _ in 0..2 {
        let Turn::Sleep(place) = s.next(10_000_000, &mut rings) else { panic!() };
        assert!(s.sleep(place, 10_000_000, &mut rings));
    }
    assert!(s.poll(0, 0, 10_000_000) && s.kicked(1, 10_000_001));
    assert_eq!(s.next(10_000_100, &mut rings), Turn::Nothing);
    assert_eq!(s.next(10_000_101, &mut rings), Turn::Sleep(1));
    assert!(s.sleep(1, 10_000_101, &mut rings));
    assert_eq!(s.next(10_001_599, &mut rings), Turn::Nothing);
    assert_eq!(s.next(10_001_600, &mut rings), Turn::Sleep(0));
}

/// Where the core was taken away nothing is polled for after its request, until the time is over.
#[test]
fn a_core_that_others_want_polls_for_nothing() {
    let settings = Settings { adapts: true, idle: 1600, ticks_per_second: 1_000_000, ..USUAL };
    let (mut s, mut rings) = (Schedule::new(settings, 4, 4), Rings([0; 4], 0));
    assert!(s.poll(0, 0, 0) && s.poll(1, 1, 0));
    assert_eq!(s.next(1000, &mut rings), Turn::Nothing);
    s.preempted(1000);
    for place in [0, 1] {
        assert_eq!(s.next(1000, &mut rings), Turn::Sleep(place));
        assert!(s.sleep(place, 1000, &mut rings));
    }
    for (now, then) in [(2000, Turn::Sleep(0)), (100_999, Turn::Sleep(0)), (101_000, Turn::Nothing)]
    {
        assert!(s.kicked(0, now));
        rings.0[0] = 1;
        assert_eq!(s.next(now, &mut rings), Turn::Serve(0));
        rings.0[0] = 0;
        assert_eq!(s.served(0, piece(512, 1), now, &mut rings), Switch);
        assert_eq!(s.next(now, &mut rings), then, "at {now}");
        s.sleep(0, now, &mut rings);
    }
    // Sidecores own theirs.
    let mut own = Schedule::new(USUAL, 4, 4);
    assert!(own.poll(0, 0, 0));
    own.preempted(0);
    assert_eq!(own.next(1, &mut rings), Turn::Nothing);
}

/// What is known of a queue that sleeps isn't forgotten when somebody else has it polled: a back
/// end that ends its request. And a VM's limit makes no queue be polled for longer.
#[test]
fn patience_outlives_a_sleep_and_a_limit() {
    let settings = Settings { adapts: true, idle: 1600, ticks_per_second: 1_000_000, ..USUAL };
    let (mut s, mut rings) = (Schedule::new(settings, 4, 4), Rings([0; 4], 0));
    assert!(s.join(0, 0) && s.kicked(0, 10_000));
    assert_eq!(s.next(10_000, &mut rings), Turn::Sleep(0));
    assert!(s.sleep(0, 10_000, &mut rings) && s.poll(0, 0, 20_000));
    assert_eq!(s.next(20_000, &mut rings), Turn::Sleep(0));
    assert!(s.sleep(0, 20_000, &mut rings) && s.poll(0, 1, 20_000));
    assert_eq!(s.next(20_000, &mut rings), Turn::Nothing, "another VM's");
    s.leave(0);

    s.set_share(2, Share { requests: Some(1000), ..Share::default() });
    assert!(s.join(2, 2) && s.kicked(2, 30_000));
    rings.0[2] = 9999;
    let mut now = 30_000;
    loop {
        match s.next(now, &mut rings) {
            Turn::Serve(place) => {
                s.served(place, piece(512, 1), now, &mut rings);
            }
            turn => break assert_eq!(turn, Turn::Nothing, "it is at its limit"),
        }
    }
    rings.0[2] = 0;
    while s.next(now, &mut rings) == Turn::Nothing {
        now += 1;
        assert!(now < 40_000);
    }
    // A request is paid for in a thousand ticks.
    assert!(now <= 31_000, "{now}");
}
