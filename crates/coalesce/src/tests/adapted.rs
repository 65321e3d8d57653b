//! The map that is tried out, against devices that suffer from it and ones that don't.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A driver with so many commands in flight, which asks for the next when it is told of the last.
struct Loop {
    coalescer: Coalescer,
    /// When each command in the device ends.
    ends: BinaryHeap<Reverse<u64>>,
    /// A device that serves one after the other: when it has done what it has.
    serial: Option<u64>,
    /// What a command takes.
    takes: u64,
    now: u64,
    /// When those ended that the driver wasn't told of.
    untold: Vec<u64>,
    interrupts: u64,
    completions: u64,
    longest: u64,
}

impl Loop {
    fn new(map: Map, depth: u32, takes: u64, serial: bool) -> Self {
        let mut this = Loop {
            coalescer: Coalescer::new(Settings { map, ..PAPER }, 0),
            ends: BinaryHeap::new(),
            serial: serial.then_some(0),
            takes,
            now: 0,
            untold: vec![],
            interrupts: 0,
            completions: 0,
            longest: 0,
        };
        this.ask(depth as usize);
        this
    }

    fn ask(&mut self, commands: usize) {
        for _ in 0..commands {
            let end = match &mut self.serial {
                Some(busy) => {
                    *busy = self.now.max(*busy) + self.takes;
                    *busy
                }
                // A little apart, as no device has them all at one instant.
                None => self.now + self.takes + self.ends.len() as u64 * 97 % self.takes / 8,
            };
            self.ends.push(Reverse(end));
        }
    }

    fn tell(&mut self) {
        self.coalescer.delivered(self.now);
        self.interrupts += 1;
        let longest = self.untold.iter().map(|then| self.now - then).max().unwrap_or(0);
        self.longest = self.longest.max(longest);
        let told = core::mem::take(&mut self.untold).len();
        self.ask(told);
    }

    /// For so long; interrupts and completions of it alone are counted.
    fn run(&mut self, ticks: u64) {
        (self.interrupts, self.completions) = (0, 0);
        let end = self.now + ticks;
        while self.now < end {
            let next = self.ends.peek().map(|Reverse(then)| *then);
            let deadline = self.coalescer.deadline();
            if let Some(deadline) = deadline
                && next.is_none_or(|next| deadline <= next)
            {
                self.now = deadline;
                self.tell();
                continue;
            }
            let Some(Reverse(next)) = self.ends.pop() else { panic!("nothing is in flight") };
            self.now = next;
            self.completions += 1;
            self.untold.push(next);
            if self.coalescer.completed(next, self.ends.len() as u32) == Deliver {
                self.tell();
            }
        }
    }
}

/// Completions, and interrupts for a thousand of them, after ten seconds of load.
fn settled(map: Map, depth: u32, takes: u64, serial: bool) -> (u64, u64) {
    let mut load = Loop::new(map, depth, takes, serial);
    load.run(10 * SECOND);
    load.run(10 * SECOND);
    assert!(load.longest <= PAPER.longest(), "{}", load.longest);
    (load.completions, load.interrupts * 1_000 / load.completions)
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_device_that_serves_one_after_the_other_is_told_of_less_often() {
    let (paper, told) = settled(Map::Paper, 64, 10_000, true);
    assert_eq!(told, 1_000 / 7, "63 are in flight when one is completed");
    let (adapted, told) = settled(Map::Adapted, 64, 10_000, true);
    assert!(told <= 40, "{told} for a thousand");
    assert!(adapted >= paper * 99 / 100, "{adapted} of {paper}");
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_device_that_serves_all_at_once_keeps_its_rate() {
    let (paper, _) = settled(Map::Paper, 64, 500_000, false);
    let (adapted, told) = settled(Map::Adapted, 64, 500_000, false);
    assert!(adapted >= paper * 31 / 32, "{adapted} of {paper}");
    assert!(told <= 300, "{told} for a thousand");
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn few_in_flight_are_told_one_by_one() {
    for serial in [false, true] {
        let (_, told) = settled(Map::Adapted, 4, 50_000, serial);
        assert_eq!(told, 1_000, "3 are in flight when one is completed");
    }
}

#[test]
fn a_try_that_costs_completions_is_taken_back_and_not_soon_made_again() {
    let mut one = Adaptation::new();
    assert_eq!([1_000, 1_000].map(|rate| one.epoch(rate)), [2, 4]);
    // 4 cost a tenth.
    let after: Vec<_> = [900, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]
        .map(|rate| one.epoch(rate))
        .into();
    assert_eq!(after, [2, 2, 2, 2, 2, 2, 2, 2, 4]);
    assert_eq!(one.epoch(900), 2);
    assert!((0..15).all(|_| one.epoch(1_000) == 2));
    assert_eq!(one.epoch(1_000), 4, "it waits for twice as long");
    one.forget();
    assert_eq!(one.epoch(1), 2);
}

#[test]
fn the_map_withholds_no_more_than_half_and_than_the_bound_allows() {
    let of = |in_flight, stretch, within| {
        let Ratio { count_up, skip_up } = adapt::ratio(in_flight, 4, stretch, within);
        (count_up, skip_up)
    };
    assert_eq!((of(64, 1, 1_000), of(64, 2, 1_000), of(64, 8, 1_000)), ((1, 8), (1, 16), (1, 32)));
    assert_eq!((of(64, 8, 20), of(64, 8, 5)), ((1, 20), (1, 8)));
    assert_eq!((of(4, 2, 9), of(4, 8, 9), of(3, 8, 9)), ((4, 5), (1, 2), (1, 1)));
    assert_eq!(of(u32::MAX, 8, u64::MAX), (1, u32::MAX / 2));
}
