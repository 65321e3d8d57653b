//! What a VM may have in a second, whoever else is there.

use super::*;

/// Published: the comparison of the rate limit was inverted, so that who kept to it was held.
#[test]
fn who_keeps_to_the_limit_is_served_and_who_exceeds_it_waits() {
    let (mut s, mut rings) = (Schedule::new(USUAL, 4, 4), Rings([9; 4], 0));
    s.set_share(0, Share { bytes: Some(SECOND / 10), ..Share::default() });
    assert!(s.join(0, 0) && s.kicked(0, 0));
    let mut now = SECOND;
    for _ in 0..1_000 {
        now += 10 * MIN;
        assert_eq!(s.next(now, &mut rings), Turn::Serve(0));
        s.served(0, piece(MIN, 1), now, &mut rings);
    }
    let burst = USUAL.burst / 10 - MIN;
    assert_eq!(s.next(now, &mut rings), Turn::Serve(0));
    assert_eq!(s.served(0, piece(burst + 1, 1), now, &mut rings), Switch);
    assert_eq!(s.next(now + 9, &mut rings), Turn::Nothing);
    assert_eq!(s.next(now + 10, &mut rings), Turn::Serve(0));
}

/// Published: a polled ring that hit its limit in a batch was queued as work, and served twice.
#[test]
fn a_queue_at_its_limit_is_polled_on_and_served_once() {
    let (mut s, mut rings) = begun(USUAL);
    s.set_share(0, Share { requests: Some(1_000), ..Share::default() });
    let now = SECOND;
    let requests =
        (0..).take_while(|_| s.served(0, piece(512, 1), now, &mut rings) == Continue).count();
    assert_eq!(requests, 10, "ten were saved up in 10 ms, and one is a piece too many");
    assert!(s.is_polled(0) && !s.kicked(0, now));
    rings.1 = 0;
    assert_eq!(s.next(now + SECOND / 1_000 - 1, &mut rings), Turn::Nothing);
    assert_eq!(rings.1, 3, "it isn't looked at");
    let later = now + SECOND / 1_000;
    assert_eq!(s.next(later, &mut rings), Turn::Serve(0));
    assert_eq!(s.served(0, piece(512, 1), later, &mut rings), Switch);
    assert_eq!(s.next(later, &mut rings), Turn::Nothing);
    // A limit is no idleness.
    s.set_share(0, Share { bytes: Some(1), ..Share::default() });
    s.served(0, piece(PIECE, 0), later, &mut rings);
    s.leave(1);
    s.leave(2);
    s.leave(3);
    assert_eq!(s.next(later + 2 * USUAL.idle, &mut rings), Turn::Nothing);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Within any time: the limit, what was saved up, and a piece.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn limits_hold_within_any_time(
        rate in 1_000_000_u64..5_000_000_000,
        requests in 100_u64..1_000_000,
        size in 512_u64..256 << 10,
        others in 0_usize..3,
    ) {
        let bulk = |_| Guest { depth: 64, size, think: 0 };
        let mut world = World::new(1 + others, bulk);
        let mut s = world.start(USUAL, |vm| match vm {
            0 => Share { bytes: Some(rate), requests: Some(requests), ..Share::default() },
            _ => Share::default(),
        });
        world.run(&mut s, SECOND / 10);
        let allowed = |rate: u64, ticks: u64| {
            (u128::from(rate) * u128::from(ticks + USUAL.burst) / u128::from(SECOND)) as u64
        };
        let log: Vec<_> = world.log.iter().filter(|piece| piece.queue == 0).collect();
        for start in (0..log.len()).step_by(log.len() / 50 + 1) {
            let (mut bytes, mut finished) = (0, 0);
            for piece in &log[start..] {
                let ticks = piece.end - log[start].end;
                bytes += piece.bytes;
                finished += u64::from(piece.finished);
                prop_assert!(bytes <= allowed(rate, ticks) + PIECE + 1);
                prop_assert!(finished <= allowed(requests, ticks) + 2);
            }
        }
        // And it has what it may have, if it is alone.
        if others == 0 {
            let may = allowed(rate, 0).min(allowed(requests, 0) * size);
            let could = world.now / (world::ticks(PIECE.min(size)) + 1) * PIECE.min(size);
            prop_assert!(world.bytes[0] >= (may * 9).min(could / 2), "{may} {could} {world:?}");
        }
    }
}

/// Nor is it where nobody who has nothing is polled on.
#[test]
fn who_is_at_a_limit_doesnt_sleep() {
    let (mut s, mut rings) = (polled(USUAL), Rings([1, 0, 0, 0], 0));
    s.settings.idle = 0;
    (1..4).for_each(|place| s.leave(place));
    s.set_share(0, Share { requests: Some(1), ..Share::default() });
    s.vms[0].count(1, 0, 0);
    assert_eq!(s.next(1, &mut rings), Turn::Nothing);
    assert_eq!(s.next(s.vms[0].opens_at(), &mut rings), Turn::Serve(0));
}
