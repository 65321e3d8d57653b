//! The rules one by one, then the guarantees against whatever happens.

use super::*;
use proptest::prelude::*;

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
fn the_one_that_was_spoken_of_is_picked_unless_somebody_wakes_or_blocks() {
    let chosen = || {
        let mut s = awake(&[100; 3]);
        s.block(2, 0);
        assert_eq!(s.pick(0), Some(0));
        assert!(!s.has_chosen());
        assert!(s.should_switch(SLICE) && s.has_chosen());
        s
    };
    assert_eq!(chosen().pick(SLICE), Some(1));
    let mut s = chosen();
    s.block(1, SLICE);
    assert!(!s.has_chosen());
    assert_eq!(s.pick(SLICE), Some(0));
    let mut s = chosen();
    s.remove(1, SLICE);
    assert_eq!((s.has_chosen(), s.pick(SLICE)), (false, Some(0)));
    let mut s = chosen();
    s.wake(2, SLICE);
    assert!(!s.has_chosen(), "2 has a claim, too");
    let mut s = chosen();
    assert_eq!(s.pick(SLICE), Some(1));
    assert!(!s.has_chosen());
}

#[test]
fn fractions_of_virtual_time_decide_who_waits() {
    // By whole units the second would wait three slices once, one more than its weight explains.
    let mut d = Driver::new(&[8029, 4018]);
    (0..2).for_each(|place| d.wake(place));
    d.pass(1614 * SLICE + 7);
    assert_eq!(d.longest[1], 2 * SLICE);
}

#[test]
fn the_price_of_a_short_cut_is_paid_once() {
    let price = SLICE / MIN_TURN;
    let mut s = awake(&[100; 2]);
    s.block(1, 0);
    assert_eq!(s.pick(0), Some(0));
    s.wake(1, SLICE / 2);
    let start = SLICE / 2;
    assert_eq!(s.pick(start), Some(1));
    let before = s.members[1].time;
    // It is paid already; what is run of it costs nothing, and then time costs what it costs.
    for (ran, due) in [(price / 2, 0_u64), (price, 0), (price + 10, 10), (price + 30, 30)] {
        s.charge(start + ran);
        assert_eq!((s.members[1].time - before, s.ran(1)), (Virtual::from(due), ran));
    }
}

/// One that woke is behind or it isn't: level with the running one, it waits for the slice's end.
#[test]
fn one_that_woke_level_with_the_running_one_cuts_nothing_short() {
    let price = SLICE / MIN_TURN;
    let mut s = awake(&[100; 3]);
    // 2 has run what 1 is going to pay for its short cut.
    s.block(0, 0);
    s.block(1, 0);
    assert_eq!(s.pick(0), Some(2));
    s.block(2, price);
    s.wake(0, price);
    assert_eq!(s.pick(price), Some(0));
    let now = SLICE / 2;
    s.wake(1, now);
    s.wake(2, now);
    assert_eq!(s.pick(now), Some(1));
    assert_eq!((s.members[1].time, s.woken), (s.members[2].time, bit(2)));
    assert!(!s.should_switch(now));
    // What it paid for it runs, and then it is ahead.
    assert!(!s.should_switch(now + price));
    assert!(s.should_switch(now + price + 1));
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

/// What may be asked at every exit costs as little as can be.
#[test]
fn a_look_that_changes_nothing_charges_nobody() {
    let mut s = awake(&[100; 2]);
    assert_eq!(s.pick(0), Some(0));
    assert!(!s.should_switch(SLICE - 1));
    assert_eq!(s.ran(0), 0);
    assert!(s.should_switch(SLICE));
    assert_eq!(s.ran(0), SLICE);
}

/// Half of all times are past: a clock that is a little behind must not count as one that ran for
/// centuries.
#[test]
fn time_that_goes_backwards_is_none() {
    const LONGEST: u64 = i64::MAX as u64;
    for start in [0, 5, u64::MAX] {
        for (passed, counted) in [(7, 7), (LONGEST, LONGEST), (LONGEST + 1, 0), (u64::MAX, 0)] {
            let mut s = Schedule::new(SLICE);
            s.add(100);
            s.wake(0, start);
            s.pick(start);
            s.block(0, start.wrapping_add(passed));
            assert_eq!(s.ran(0), counted, "{passed} after {start}");
        }
    }
}

/// A tick of a heavy one is less than a tick of virtual time, but not nothing.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn nothing_is_lost_to_rounding() {
    let mut s = awake(&[MAX_WEIGHT, DEFAULT_WEIGHT]);
    s.pick(0);
    (1..=5 * SLICE).for_each(|now| _ = s.should_switch(now));
    assert_eq!((s.members[0].time, s.ran(0)), (u128::from(SLICE / 20), 5 * SLICE));
}

/// A core with a schedule, which it asks whenever it is to.
struct Driver {
    schedule: Schedule,
    now: u64,
    /// Switches made, and those of them that cut a slice short for that place.
    switches: u64,
    cuts: [u64; MAX],
    /// For each place: since when it waits.
    waits: [Option<u64>; MAX],
    longest: [u64; MAX],
}

impl Driver {
    fn new(weights: &[u32]) -> Self {
        let mut schedule = Schedule::new(SLICE);
        for weight in weights {
            schedule.add(*weight).unwrap();
        }
        let (cuts, waits, longest) = ([0; MAX], [None; MAX], [0; MAX]);
        Driver { schedule, now: 0, switches: 0, cuts, waits, longest }
    }

    fn wake(&mut self, place: usize) {
        self.schedule.wake(place, self.now);
        self.decide();
    }

    fn block(&mut self, place: usize) {
        self.schedule.block(place, self.now);
        self.decide();
    }

    fn decide(&mut self) {
        let before = self.schedule.running();
        let over = self.now.wrapping_sub(self.schedule.began) >= SLICE;
        let expected = self.schedule.should_switch(self.now);
        let runnable = (0..MAX).any(|place| self.schedule.is_runnable(place));
        let picked = self.schedule.pick(self.now);
        assert_eq!(expected, picked != before, "should_switch says what pick does");
        assert_eq!(picked.is_some(), runnable, "the core works if there is work");
        assert!(picked.is_none_or(|place| self.schedule.is_runnable(place)));
        assert!(!self.schedule.should_switch(self.now), "a choice stands");
        if picked != before {
            self.switches += 1;
            if let Some(place) = picked.filter(|_| before.is_some() && !over) {
                self.cuts[place] += 1;
            }
        }
        for place in 0..MAX {
            let waits = self.schedule.is_runnable(place) && picked != Some(place);
            let since = *self.waits[place].get_or_insert(self.now);
            self.longest[place] = self.longest[place].max(self.now - since);
            if !waits {
                self.waits[place] = None;
            }
        }
    }

    /// Time passes, with a look at each deadline.
    fn pass(&mut self, ticks: u64) {
        let end = self.now + ticks;
        while let Some(deadline) = self.schedule.deadline().filter(|d| *d <= end) {
            self.now = self.now.max(deadline);
            self.decide();
        }
        self.now = end;
        self.decide();
    }

    fn ran(&self, place: usize) -> u64 {
        self.schedule.ran(place)
    }
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![Just(100), 1u32..=10_000, 50u32..=400], 1..=MAX)
}

/// `S × 100 ÷ weight`, rounded up.
fn virtual_slice(weight: u32) -> u64 {
    (SLICE * 100).div_ceil(weight.into())
}

/// What a storm of wakings does to two that only compute: the storming place's cuts are paid.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_storm_of_wakings_pays_for_each_switch() {
    let mut d = Driver::new(&[100, 100]);
    d.wake(0);
    for _ in 0..100_000 {
        d.pass(1);
        d.wake(1);
        d.pass(1);
        d.block(1);
    }
    let price = SLICE / MIN_TURN;
    let earned = d.ran(0) + SLICE;
    assert!(d.cuts[1] <= earned / price, "{} cuts in {earned} ticks", d.cuts[1]);
    assert!(d.cuts[1] >= d.ran(0) / price / 2, "it isn't shut out either: {}", d.cuts[1]);
    assert!(d.ran(0) > d.ran(1));
}

proptest! {
    /// In 128 bits, as if there were no shorter way.
    #[test]
    fn ticks_by_weight_lose_nothing(
        ticks in prop_oneof![any::<u64>(), 0_u64..1 << 40, u64::MAX - 9..=u64::MAX],
        weight in 1_u32..=10_000,
        rest in any::<u64>(),
    ) {
        let mut member = Member::new(weight, 5);
        member.rest = rest % u64::from(weight);
        let due = u128::from(ticks) * u128::from(DEFAULT_WEIGHT) + u128::from(member.rest);
        member.charge(ticks);
        prop_assert!(member.rest < u64::from(weight));
        let charged = (member.time - 5) * u128::from(weight) + u128::from(member.rest);
        prop_assert_eq!(charged, due);
    }

    /// All always runnable: their times divided by their weights stay together, and nobody waits
    /// for longer than is promised.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn shares_go_by_weight(weights in weights(), slices in 1u64..3_000) {
        let mut d = Driver::new(&weights);
        (0..weights.len()).for_each(|place| d.wake(place));
        d.pass(slices * SLICE + 7);
        let of = |place: usize| d.ran(place) * 100 / u64::from(weights[place]);
        for (a, weight_a) in weights.iter().enumerate() {
            for (b, weight_b) in weights.iter().enumerate() {
                let apart = virtual_slice(*weight_a) + virtual_slice(*weight_b) + 1;
                prop_assert!(of(a).abs_diff(of(b)) <= apart, "{a} {b} {weights:?}");
            }
            let others = weights.iter().enumerate().filter(|(b, _)| *b != a).map(|(_, w)| w);
            let bound: u64 =
                others.map(|w| SLICE + (SLICE * u64::from(*w)).div_ceil((*weight_a).into())).sum();
            prop_assert!(d.longest[a] <= bound, "{a} waited {} of {bound}", d.longest[a]);
        }
        prop_assert_eq!((0..weights.len()).map(|p| d.ran(p)).sum::<u64>(), d.now);
    }

    /// Others sleep and wake as they like: one that always runs has its share, but for a slice, and
    /// no waiting beyond what is promised. The core works whenever there is work.
    #[test]
    fn sleepers_take_no_more_than_their_share(
        weights in weights(),
        ops in prop::collection::vec((0usize..MAX, any::<bool>(), 0u64..3 * SLICE), 0..400),
        nervous: bool,
    ) {
        let mut d = Driver::new(&weights);
        d.wake(0);
        let n = weights.len();
        for (place, up, ticks) in ops {
            match place % n {
                0 => {}
                place if up => d.wake(place),
                place => d.block(place),
            }
            d.pass(if nervous { ticks % 50 } else { ticks });
        }
        let all: u64 = weights.iter().map(|w| virtual_slice(*w)).sum();
        let time = |place: usize| d.ran(place) as u128 * 100 / u128::from(weights[place]);
        for place in 1..n {
            let more = u128::from(if n == 2 { SLICE + virtual_slice(weights[1]) } else { SLICE + all });
            prop_assert!(time(place) <= time(0) + more + 1, "{place} {weights:?}");
        }
        let others = weights.iter().skip(1).map(|w| u64::from(*w));
        let bound: u64 = others.map(|w| ((2 * all + SLICE) * w).div_ceil(100)).sum();
        prop_assert!(d.longest[0] <= bound, "waited {} of {bound}", d.longest[0]);
        prop_assert_eq!((0..n).map(|p| d.ran(p)).sum::<u64>(), d.now);
    }

    /// Nothing panics, whatever is called with whatever time; and should_switch says what pick
    /// does.
    #[test]
    fn no_time_and_no_call_panics(
        slice: u64, ops in prop::collection::vec((0u8..7, 0usize..10, any::<u64>(), any::<u32>()), 0..100),
    ) {
        let mut s = Schedule::new(slice);
        for (what, place, now, weight) in ops {
            match what {
                0 => _ = s.add(weight),
                1 => s.wake(place, now),
                2 => s.block(place, now),
                3 => s.remove(place, now),
                4 => {
                    let before = s.running();
                    let switch = s.should_switch(now);
                    prop_assert_eq!(s.pick(now) != before, switch);
                }
                _ => {
                    let picked = s.pick(now);
                    prop_assert_eq!(picked.is_some(), (0..MAX).any(|p| s.is_runnable(p)));
                    prop_assert_eq!(picked, s.running());
                    prop_assert!(s.deadline().is_none() || s.contested());
                }
            }
        }
    }
}
