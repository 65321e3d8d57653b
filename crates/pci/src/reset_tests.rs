//! A function that does what the standards let it do during a reset, and the resets it sees.

use super::reset::{Outcome, PATIENCE_MS, Reset, Way};
use super::{Bdf, Config};
use proptest::prelude::*;
use std::cell::RefCell;

const FUNCTION: Bdf = Bdf::from_requester_id(0x0200);
const PORT: Bdf = Bdf::from_requester_id(0x0010);
const POWER_AT: u16 = 0x40;
const ADVANCED_AT: u16 = 0x50;
const EXPRESS_AT: u16 = 0x60;

/// What it offers, and how long it takes.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    power: bool,
    advanced: bool,
    express: bool,
    /// Virtual functions have no ids.
    is_virtual: bool,
    /// "Not yet" is told with vendor 0001, which a root port may be too old for.
    tells: bool,
    busy_ms: u32,
    silent_ms: u32,
}

#[derive(Debug, Default)]
struct World {
    model: Model,
    now_ms: u32,
    /// When a reset of it ended.
    reset_at: Option<u32>,
    resets: u32,
    was_busy: bool,
    /// In D3hot, and its bus in reset, since when.
    low_since: Option<u32>,
    bus_since: Option<u32>,
    /// A rule of the standard that was broken.
    broken: Option<&'static str>,
}

struct Space(RefCell<World>);

impl World {
    fn is_silent(&self) -> bool {
        let waking = self.reset_at.is_some_and(|at| self.now_ms < at + self.model.silent_ms);
        waking || self.bus_since.is_some()
    }

    fn reset(&mut self) {
        self.was_busy |= self.now_ms < self.model.busy_ms;
        self.resets += 1;
        self.reset_at = Some(self.now_ms);
    }

    fn register(&self, offset: u16) -> u32 {
        let Model { power, advanced, express, .. } = self.model;
        let list = [(power, POWER_AT), (advanced, ADVANCED_AT), (express, EXPRESS_AT)];
        let next = |from: u16| {
            let at = list.iter().find(|(has, at)| *has && *at > from).map_or(0, |(_, at)| *at);
            u32::from(at)
        };
        let pending = self.now_ms < self.model.busy_ms;
        match offset {
            0x00 if self.model.is_virtual => u32::MAX,
            0x00 => 0x10C9_8086,
            0x04 => 0x0010_0002,
            0x34 => next(0),
            POWER_AT => 0x0003_0001 | next(POWER_AT) << 8,
            0x44 => u32::from(self.low_since.is_some()) * 3,
            ADVANCED_AT => 0x0306_0013 | next(ADVANCED_AT) << 8,
            0x54 => u32::from(pending) << 8,
            EXPRESS_AT => 0x0002_0010,
            0x64 => 1 << 28,
            0x68 => u32::from(pending) << 21 | 0x2810,
            _ => 0,
        }
    }

    fn write(&mut self, offset: u16, value: u16) {
        if self.is_silent() {
            self.broken = Some("written to before it answers");
        }
        match offset {
            0x44 if value & 3 == 3 => self.low_since = Some(self.now_ms),
            0x44 => {
                if self.low_since.take().is_some_and(|since| self.now_ms - since < 10) {
                    self.broken = Some("D3hot for less than 10 ms");
                }
                self.reset();
            }
            0x54 if value & 1 != 0 => self.reset(),
            0x68 if value >> 15 != 0 => {
                if value & 0x7FFF != 0x2810 {
                    self.broken = Some("DEVICE CONTROL lost what was in it");
                }
                self.reset();
            }
            _ => self.broken = Some("a write to nothing"),
        }
    }
}

impl Config for Space {
    fn read32(&self, function: Bdf, offset: u16) -> u32 {
        let mut world = self.0.borrow_mut();
        if function == PORT {
            return if offset & !3 == 0x3C { 0x0002_00FF } else { 0 };
        }
        let since = world.reset_at.map(|at| world.now_ms - at);
        let least = if world.model.express || world.model.advanced || !world.model.power {
            100
        } else {
            10
        };
        if since.is_some_and(|ms| ms < least) {
            world.broken = Some("looked at too soon after a reset");
        }
        match (world.is_silent(), offset & !3) {
            (true, 0) if world.model.tells => 0xFFFF_0001,
            (true, _) => u32::MAX,
            (false, offset) => world.register(offset),
        }
    }

    fn write16(&self, function: Bdf, offset: u16, value: u16) {
        let mut world = self.0.borrow_mut();
        if function == FUNCTION {
            return world.write(offset, value);
        }
        assert_eq!((function, offset, value & !0x40), (PORT, 0x3E, 0x0002));
        if value & 0x40 != 0 {
            world.was_busy |= world.now_ms < world.model.busy_ms;
            world.bus_since = Some(world.now_ms);
        } else {
            if world.bus_since.take().is_none_or(|since| world.now_ms - since < 1) {
                world.broken = Some("a bus in reset for less than a millisecond");
            }
            world.reset();
        }
    }
}

/// Resets the function by what it offers. How, how it ended, and what became of it.
fn run(model: Model, alone: bool) -> Option<(Way, Outcome, World)> {
    let space = Space(RefCell::new(World { model, ..World::default() }));
    let way = Way::of(&space, FUNCTION, alone.then_some(PORT))?;
    let mut reset = Reset::new(FUNCTION, way);
    for _ in 0..200 {
        match reset.step(&space) {
            Ok(ms) => space.0.borrow_mut().now_ms += ms,
            Err(outcome) => {
                assert_eq!(reset.step(&space), Err(outcome), "the end stays the end");
                return Some((way, outcome, space.0.into_inner()));
            }
        }
    }
    panic!("{model:?} isn't over after 200 steps");
}

#[test]
fn the_finest_way_that_there_is_is_taken() {
    let way = |power, advanced, express, alone| {
        let model = Model { power, advanced, express, ..Model::default() };
        run(model, alone).map(|(way, ..)| way)
    };
    assert_eq!(way(true, true, true, true), Some(Way::FunctionLevel(EXPRESS_AT + 8)));
    assert_eq!(way(true, true, false, true), Some(Way::Advanced(ADVANCED_AT)));
    assert_eq!(way(true, false, false, true), Some(Way::Power(POWER_AT + 4)));
    assert_eq!(way(false, false, false, true), Some(Way::Bus(PORT)));
    assert_eq!(way(false, false, false, false), None);
}

#[test]
fn a_function_that_cant_do_what_its_capability_is_for_is_reset_otherwise() {
    struct Without;
    impl Config for Without {
        fn read32(&self, _: Bdf, offset: u16) -> u32 {
            // No function-level reset in either capability, and D0 keeps everything.
            match offset & !3 {
                0x04 => 0x0010_0000,
                0x34 => 0x40,
                0x40 => 0x0106_5013,
                0x50 => 0x0003_6001,
                0x54 => 1 << 3,
                0x60 => 0x0002_0010,
                _ => 0,
            }
        }
        fn write16(&self, _: Bdf, _: u16, _: u16) {}
    }
    assert_eq!(Way::of(&Without, FUNCTION, None), None);
    assert_eq!(Way::of(&Without, FUNCTION, Some(PORT)), Some(Way::Bus(PORT)));
}

#[test]
fn what_never_answers_is_given_up() {
    let model = Model { express: true, silent_ms: u32::MAX / 2, ..Model::default() };
    let (_, outcome, world) = run(model, false).unwrap();
    assert_eq!((outcome, world.resets), (Outcome::Silent, 1));
    assert!((PATIENCE_MS..PATIENCE_MS + 2_000).contains(&world.now_ms), "{}", world.now_ms);
}

#[test]
fn what_never_comes_to_rest_is_reset_all_the_same() {
    let model = Model { express: true, busy_ms: u32::MAX, ..Model::default() };
    let (_, outcome, world) = run(model, false).unwrap();
    assert_eq!((outcome, world.resets, world.was_busy), (Outcome::Ready, 1, true));
}

#[test]
fn a_list_of_capabilities_that_is_a_loop_ends() {
    struct Loop;
    impl Config for Loop {
        fn read32(&self, _: Bdf, offset: u16) -> u32 {
            if offset & !3 == 0x34 { 0x40 } else { 0x0010_4005 }
        }
        fn write16(&self, _: Bdf, _: u16, _: u16) {}
    }
    assert_eq!(Loop.capability(FUNCTION, CAPABILITY_ABSENT), None);
}
const CAPABILITY_ABSENT: u8 = 0x13;

proptest! {
    /// Whatever it offers and however long it takes, it is reset once, when it is at rest, and left
    /// alone for as long as it needs.
    #[test]
    fn every_reset_is_as_the_standard_has_it(
        (power, advanced, express) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (is_virtual, tells) in (any::<bool>(), any::<bool>()),
        busy_ms in 0u32..900,
        silent_ms in 0u32..50_000,
    ) {
        let busy_ms = if advanced || express { busy_ms } else { 0 };
        let model = Model { power, advanced, express, is_virtual, tells, busy_ms, silent_ms };
        let (_, outcome, world) = run(model, true).unwrap();
        prop_assert_eq!((outcome, world.resets), (Outcome::Ready, 1));
        prop_assert_eq!(world.broken, None);
        prop_assert!(!world.was_busy, "reset with requests on their way");
        prop_assert!(!world.is_silent());
    }
}
