//! A one-shot timer that changes hands between the host and its guest at random, against one that
//! the guest would have on bare metal.

use super::*;
use crate::{TimerSetup, VirtualTimer};
use proptest::prelude::*;
use std::cell::Cell;

const BY_1: u32 = 0b1011;
/// TSC ticks of a count.
const TICKS: u64 = 3;
/// So many changes of hands may there be while one count runs in the test, each of which makes it
/// later by less than a count; and as long as reading registers takes.
const SLACK: u64 = 400;

/// The core's timer, and the local APIC behind it.
struct Core {
    now: Cell<u64>,
    /// How long an access takes.
    access: u64,
    initial: u32,
    started: u64,
    masked: bool,
    /// It has expired since it was started, and was seen to.
    done: Cell<bool>,
    pending: Cell<bool>,
    /// It notices that it has expired so much later, and if it is set before that, never.
    lag: u64,
    lost: Cell<u32>,
}

impl Core {
    fn expiry(&self) -> u64 {
        self.started + u64::from(self.initial) * TICKS
    }

    fn pass(&self, ticks: u64) {
        self.now.set(self.now.get() + ticks);
        if self.initial != 0
            && !self.masked
            && !self.done.get()
            && self.now.get() >= self.expiry() + self.lag
        {
            self.done.set(true);
            self.pending.set(true);
        }
    }

    /// What is due but wasn't noticed is lost.
    fn touch(&self) {
        if self.initial != 0 && !self.masked && !self.done.get() && self.now.get() >= self.expiry()
        {
            self.done.set(true);
            self.lost.set(self.lost.get() + 1);
        }
    }

    fn start(&mut self, count: u32) {
        self.pass(self.access);
        self.touch();
        (self.initial, self.started) = (count, self.now.get());
        self.done.set(false);
    }
}

impl CoreTimer for Core {
    fn initial(&self) -> u32 {
        self.pass(self.access);
        self.initial
    }

    fn count(&self) -> u32 {
        self.pass(self.access);
        let left = self.expiry().saturating_sub(self.now.get());
        if self.initial == 0 { 0 } else { left.div_ceil(TICKS) as u32 }
    }

    fn mask(&mut self) {
        self.pass(self.access);
        self.touch();
        self.masked = true;
    }

    fn is_pending(&self) -> bool {
        self.pending.get()
    }

    fn settle(&mut self) -> bool {
        self.pass(20);
        self.lag <= 20
    }
}

/// The vCPU: its timer is virtual, or the core's.
struct World {
    core: Core,
    timer: VirtualTimer,
    lent: Option<u32>,
    /// By the bare timer: when it expires, and whether its interrupt is pending.
    bare: Option<u64>,
    /// When it last did.
    last: Option<u64>,
    bare_pending: bool,
    /// Interrupts that the guest took, and that it would have taken.
    taken: u32,
    expected: u32,
    takes_back: u32,
}

impl World {
    fn new(access: u64, lag: u64) -> Self {
        let core = Core {
            now: Cell::new(1000),
            access,
            initial: 0,
            started: 0,
            masked: true,
            done: Cell::new(false),
            pending: Cell::new(false),
            lag,
            lost: Cell::new(0),
        };
        let mut timer = VirtualTimer::new(TICKS * 1_000_000, 1_000_000, 0);
        timer.set(setup(None), 1000);
        let (lent, bare, last, bare_pending) = (None, None, None, false);
        World { core, timer, lent, bare, last, bare_pending, taken: 0, expected: 0, takes_back: 0 }
    }

    fn pass(&mut self, ticks: u64) {
        self.core.pass(ticks);
        self.see();
    }

    fn see(&mut self) {
        if self.bare.is_some_and(|at| at <= self.core.now.get()) {
            self.last = self.bare.take();
            self.bare_pending = true;
        }
    }

    /// Where the two may differ by the slack, the guest does nothing.
    fn let_both_expire(&mut self) {
        self.see();
        let now = |world: &World| world.core.now.get();
        while self.bare.is_some_and(|at| at <= now(self) + SLACK)
            || self.last.is_some_and(|at| now(self) < at + SLACK)
        {
            self.pass(SLACK);
        }
        self.expire();
    }

    fn arm(&mut self, count: u32) {
        self.let_both_expire();
        match self.lent {
            Some(_) => self.core.start(count),
            None => self.timer.set(setup(Some(count)), self.core.now.get()),
        }
        let at = self.core.now.get() + u64::from(count) * TICKS;
        self.bare = (count != 0).then_some(at);
    }

    fn lend(&mut self) {
        if self.lent.is_some() {
            return;
        }
        self.expire();
        // What the host had it for is over.
        self.core.start(0);
        let now = self.core.now.get();
        if let Some(rest) = self.timer.lend(now) {
            self.core.masked = false;
            self.core.start(rest);
            self.lent = Some(rest);
        }
        self.see();
    }

    fn take_back(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        let taken = take_back(&mut self.core, lent);
        assert!(self.core.masked);
        self.timer.give_back(taken, self.core.now.get());
        self.takes_back += 1;
        self.see();
    }

    fn expire(&mut self) {
        let now = self.core.now.get();
        if self.lent.is_none() && self.timer.expired(now) {
            self.core.pending.set(true);
        }
    }

    /// The guest lets interrupts in.
    fn take(&mut self) {
        self.let_both_expire();
        self.taken += u32::from(self.core.pending.replace(false));
        self.expected += u32::from(std::mem::take(&mut self.bare_pending));
    }

    fn step(&mut self, step: u8, value: u32) {
        match step {
            0 | 1 => self.arm(value),
            2 => self.pass(u64::from(value)),
            3 => self.lend(),
            4 => self.take_back(),
            _ => self.take(),
        }
    }
}

const fn setup(initial: Option<u32>) -> TimerSetup {
    TimerSetup { divide: BY_1, periodic: false, masked: false, initial }
}

fn steps() -> impl Strategy<Value = Vec<(u8, u32)>> {
    proptest::collection::vec((0u8..7, 0u32..300), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever has it when it falls due: the guest takes each interrupt once.
    #[test]
    fn each_expiry_is_taken_once(steps in steps(), access in 0u64..4, lag in 0u64..=20) {
        let mut world = World::new(access, lag);
        for (step, value) in steps {
            world.step(step, value);
            if step > 4 {
                prop_assert_eq!(world.taken, world.expected);
            }
        }
        world.pass(2000);
        world.take();
        prop_assert_eq!(world.taken, world.expected);
    }

    /// Where a timer that is set before it has noticed forgets its interrupt, and it takes too long
    /// to wait for: never one too few, and one too many at most each time that it changes hands.
    #[test]
    fn none_is_lost_where_nobody_knows(steps in steps(), access in 0u64..4) {
        let mut world = World::new(access, 100);
        for (step, value) in steps {
            world.step(step, value);
            if step > 4 {
                prop_assert!(world.taken >= world.expected);
            }
        }
        world.pass(2000);
        world.take();
        prop_assert!(world.taken >= world.expected);
        prop_assert!(world.taken <= world.expected + world.takes_back);
    }
}

/// A core's timer that says what it is told, one count after the other.
struct Told {
    initial: u32,
    counts: std::cell::RefCell<Vec<u32>>,
    pending: bool,
    late: bool,
    settles: bool,
}

impl CoreTimer for Told {
    fn initial(&self) -> u32 {
        self.initial
    }
    fn count(&self) -> u32 {
        self.counts.borrow_mut().remove(0)
    }
    fn mask(&mut self) {}
    fn is_pending(&self) -> bool {
        self.pending
    }
    fn settle(&mut self) -> bool {
        self.pending |= self.late;
        self.settles
    }
}

#[test]
fn each_way_in_which_it_can_stand() {
    let told = |counts: &[u32], pending, late, settles| {
        let counts = counts.to_vec().into();
        let taken = take_back(&mut Told { initial: 9, counts, pending, late, settles }, 7);
        assert_eq!(taken.written, Some(9));
        (taken.rest, taken.owed)
    };
    for settles in [false, true] {
        assert_eq!(told(&[5, 4], false, false, settles), (4, false), "it runs");
        assert_eq!(told(&[1, 0], false, false, settles), (0, true), "in between, masked");
        assert_eq!(told(&[1, 0], true, false, settles), (0, false), "in between, pending");
        assert_eq!(told(&[1, 0], false, true, settles), (0, false), "in between, pending late");
        assert_eq!(told(&[0], true, false, settles), (0, false), "expired, and pending");
        assert_eq!(told(&[0], false, true, settles), (0, false), "expired, and pending late");
        assert_eq!(
            told(&[0], false, false, settles),
            (0, !settles),
            "expired, and taken, or who knows"
        );
    }
    let never =
        Told { initial: 0, counts: vec![].into(), pending: false, late: false, settles: false };
    let mut never = never;
    let taken = take_back(&mut never, 0);
    assert_eq!(taken, Taken { written: None, rest: 0, owed: false });
    assert_eq!(take_back(&mut never, 3).written, Some(0), "the guest stopped it");
}

#[test]
fn what_is_periodic_masked_or_due_is_not_lent() {
    let mut timer = VirtualTimer::new(TICKS, 1, 0);
    assert_eq!(timer.lend(0), None, "masked, as after reset");
    timer.set(TimerSetup { periodic: true, ..setup(Some(10)) }, 0);
    assert_eq!(timer.lend(1), None);
    timer.set(setup(Some(10)), 0);
    assert_eq!((timer.lend(30), timer.deadline()), (None, Some(30)), "it is reported first");
    assert!(timer.expired(30));
    assert_eq!(timer.lend(31), Some(0), "it doesn't run");
    timer.set(setup(Some(10)), 60);
    assert_eq!((timer.lend(64), timer.deadline(), timer.count(64)), (Some(9), None, 0));
    timer.give_back(Taken { written: Some(20), rest: 5, owed: false }, 70);
    assert_eq!((timer.deadline(), timer.count(70)), (Some(85), 5));
    timer.set(TimerSetup { periodic: true, ..setup(None) }, 73);
    assert!(timer.expired(85));
    assert_eq!(timer.deadline(), Some(85 + 20 * TICKS), "from what the guest wrote");
    timer.set(setup(Some(0)), 90);
    assert_eq!(timer.lend(90), Some(0));
    timer.give_back(Taken { written: None, rest: 0, owed: true }, 95);
    assert!(timer.expired(95) && !timer.expired(u64::MAX));
}
