//! Turns that one scan finds. Every simulation compares each turn with what another scan finds.

use super::*;

#[test]
fn all_that_wait_are_found_by_one_scan() {
    let (mut s, mut rings) = (polled(USUAL), Rings([1; 4], 0));
    let mut order = vec![];
    for _ in 0..4 {
        let Turn::Serve(place) = s.next(0, &mut rings) else { panic!() };
        rings.0[place] = 0;
        assert_eq!(s.served(place, piece(512, 1), 0, &mut rings), Switch);
        order.push(place);
    }
    // Each turn looks at its own queue once more.
    assert_eq!((order, rings.1), (vec![0, 1, 2, 3], 4 + 4));
    // One that had less, and was polled in vain, isn't passed over when it has something.
    (rings.0, rings.1) = ([1, 1, 1, 0], 0);
    (0..3).for_each(|vm| s.vms[vm].charge(1 << 50, 0));
    for place in [0, 1] {
        assert_eq!(s.next(0, &mut rings), Turn::Serve(place));
        rings.0[place] = 0;
        assert_eq!(s.served(place, piece(512, 1), 0, &mut rings), Switch);
    }
    rings.0[3] = 1;
    assert_eq!(s.next(0, &mut rings), Turn::Serve(3));
}

/// As those of a disk with several queues, or with several front ends.
#[test]
fn queues_of_one_vm_are_found_by_one_scan_too() {
    let (mut s, mut rings) = (Schedule::new(USUAL, 4, 1), Rings([1; 4], 0));
    (0..4).for_each(|place| assert!(s.poll(place, 0, 0)));
    for looks in [4, 4 + 4] {
        rings.1 = 0;
        for _ in 0..4 {
            let Turn::Serve(place) = s.next(0, &mut rings) else { panic!() };
            rings.0[place] = 0;
            s.served(place, piece(4 << 10, 1), 0, &mut rings);
        }
        // At the start none of them is before another.
        assert!(rings.1 >= looks);
        rings.0 = [1; 4];
    }
    assert_eq!(rings.1, 4 + 4);
}

/// Who fell behind another VM's is before others of its own VM, whatever that one had.
#[test]
fn who_fell_behind_isnt_overtaken_by_its_own_vm() {
    let (mut s, mut rings) = (Schedule::new(USUAL, 4, 2), Rings([0; 4], 0));
    (0..4).for_each(|place| assert!(s.poll(place, usize::from(place == 2), 0)));
    let turn = |s: &mut Schedule, rings: &mut Rings, place: usize, cost| {
        assert_eq!(by_scan(s, 0, rings), Turn::Serve(place));
        assert_eq!(s.next(0, rings), Turn::Serve(place));
        rings.0[place] = 0;
        assert_eq!(s.served(place, piece(cost, 1), 0, rings), Switch);
    };
    // Both VMs had as much.
    for (place, cost) in [1024, 1024, 3072, 1024].into_iter().enumerate() {
        rings.0[place] = 1;
        turn(&mut s, &mut rings, place, cost);
    }
    rings.0 = [1; 4];
    for (place, cost) in [(0, 4096), (2, 8192), (1, 512), (3, 512)] {
        turn(&mut s, &mut rings, place, cost);
    }
}

/// One that was kicked has its turn out of order as soon as its VM may be served: when its limit
/// opens, or when others came before it. No round keeps it from that.
#[test]
fn one_that_was_kicked_waits_for_no_round() {
    let mut rings = Rings([1; 4], 0);
    let kicked = |share| {
        let mut s = polled(USUAL);
        s.set_share(3, share);
        // It had more than the others.
        s.vms[3].charge(1 << 60, 0);
        assert!(s.join(3, 3) && s.kicked(3, 0));
        s
    };
    let serve = |s: &mut Schedule, rings: &mut Rings, now, place| {
        assert_eq!(by_scan(s, now, rings), Turn::Serve(place));
        assert_eq!(s.next(now, rings), Turn::Serve(place));
        rings.0[place] = 0;
        assert_eq!(s.served(place, piece(512, 1), now, rings), Switch);
    };
    let mut s = kicked(Share { requests: Some(1), ..Share::default() });
    s.vms[3].count(1, 0, 0);
    let opens = s.vms[3].opens_at();
    [(0, 0), (0, 1), (opens, 3), (opens, 2)]
        .into_iter()
        .for_each(|(now, place)| serve(&mut s, &mut rings, now, place));
    let mut s = kicked(Share::default());
    rings.0 = [1; 4];
    s.vms[3].rests = s.worked;
    [0, 3, 1, 2].into_iter().for_each(|place| serve(&mut s, &mut rings, 0, place));
}

/// One that couldn't be served when the round was found, and is behind all others, comes next when
/// it can: when its VM's limit opens, or when others came before it.
#[test]
fn one_that_can_be_served_again_waits_for_no_round() {
    for is_limited in [true, false] {
        let (mut s, mut rings) = (polled(USUAL), Rings([1; 4], 0));
        (0..3).for_each(|vm| s.vms[vm].charge(1 << 20, 0));
        let mut opens = 0;
        if is_limited {
            s.set_share(3, Share { requests: Some(1), ..Share::default() });
            s.vms[3].count(1, 0, 0);
            opens = s.vms[3].opens_at();
        } else {
            s.vms[3].rests = s.worked;
        }
        for (now, place) in [(0, 0), (opens, 3), (opens, 1), (opens, 2)] {
            assert_eq!(by_scan(&s, now, &mut rings), Turn::Serve(place));
            assert_eq!(s.next(now, &mut rings), Turn::Serve(place));
            rings.0[place] = 0;
            assert_eq!(s.served(place, piece(512, 1), now, &mut rings), Switch);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// More queues than a round has room for, of VMs with several, which have little each. Those of
    /// one size and weight have had as much as others, often.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_round_finds_what_scans_find(
        guests in prop::collection::vec(
            (
                prop_oneof![Just(4_u64 << 10), 512_u64..16 << 10],
                1_u32..4,
                prop_oneof![Just(20_000_u64), 0_u64..50_000],
            ),
            1..24,
        ),
        vms in prop::collection::vec(
            (0_usize..6, prop_oneof![Just(100_u32), 1_u32..1_000], prop::bool::weighted(0.2)),
            24,
        ),
        are_alike in any::<bool>(),
    ) {
        let mut world = World::new(guests.len(), |place| {
            let (size, depth, think) = guests[if are_alike { 0 } else { place }];
            Guest { depth, size, think }
        });
        let vm = |queue: usize| vms[queue].0 % guests.len();
        let mut s = world.start_with(USUAL, vm, |vm| Share {
            weight: vms[if are_alike { 0 } else { vm }].1,
            requests: vms[vm].2.then_some(200_000),
            bytes: None,
        });
        world.run(&mut s, SECOND / 500);
        prop_assert!(world.finished.iter().sum::<u64>() > 0);
    }
}

/// Virtual times are set back before they overflow: the turns are those of a schedule that begins
/// at 0, whatever the weights.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn turns_go_on_when_virtual_times_are_set_back() {
    let weights = [100, 1, 10_000, 300, 7];
    let run = |before: Option<u64>| {
        let mut world = World::new(weights.len(), |place| Guest {
            depth: 1 + place as u32 % 3,
            size: 512 << place,
            think: 9_000 * place as u64,
        });
        let mut s = world.start(USUAL, |vm| Share { weight: weights[vm], ..Share::default() });
        if let Some(before) = before {
            s.clock = 2 * SET_BACK - before;
            let at = s.clock;
            s.vms.iter_mut().for_each(|vm| vm.charge(at, 0));
        }
        world.run(&mut s, SECOND / 500);
        assert!(before.is_none() || s.clock < 2 * SET_BACK);
        world.log.iter().map(|piece| (piece.queue, piece.bytes)).collect::<Vec<_>>()
    };
    let turns = run(None);
    assert!(turns.len() > 1000);
    for before in [0, 1, 1 << 40, 1 << 44] {
        assert!(run(Some(before)) == turns, "{before} before it is");
    }
}

/// Kicks give turns out of order, so a VM may come to be ahead of the clock by more than its time
/// can hold. It stays behind all others, and when it was alone the clock comes back from there.
#[test]
fn a_vm_at_the_end_of_time_is_the_last_one() {
    let (mut s, mut rings) = (polled(USUAL), Rings([9, 9, 9, 0], 0));
    s.vms[0].charge(Virtual::MAX - 1, MIN);
    let turns = |s: &mut Schedule, rings: &mut Rings, count| {
        let mut had = [0; 4];
        for _ in 0..count {
            let Turn::Serve(place) = s.next(0, rings) else { panic!() };
            s.served(place, piece(MAX + 1, 1), 0, rings);
            had[place] += 1;
        }
        had
    };
    assert_eq!(turns(&mut s, &mut rings, 100), [0, 50, 50, 0]);
    rings.0 = [9, 0, 0, 0];
    // What they had left is known.
    for place in [1, 2] {
        s.leave(place);
        assert!(s.poll(place, place, 0));
    }
    assert_eq!(turns(&mut s, &mut rings, 1), [1, 0, 0, 0]);
    assert!(s.clock == Virtual::MAX);
    rings.0 = [9, 9, 9, 0];
    let [first, second, third, _] = turns(&mut s, &mut rings, 99);
    assert!(s.clock < 3 * SET_BACK);
    assert!([first, second, third].iter().all(|had| (32..=34).contains(had)));
}
