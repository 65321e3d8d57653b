//! What can move: a disk, or a switch with the interfaces at its ports. What all sidecores know of
//! each, and what makes it move.
//!
//! Guarantees: where a device is to go is decided in one place, for each rule; its counts are
//! written by its owner alone. How it goes is `moving`'s.

use crate::sidecore::device::Device;
use crate::sidecore::listeners::Listener;
use crate::sidecore::port::{Port, add};
use crate::sidecore::queue::{CoreSwitch, ServedQueue};
use ::sidecore::Debt;
use ::sidecore::handover::Slot;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What can move, as all sidecores know it.
pub struct Movable {
    /// Of its devices.
    ports: Vec<&'static Port>,
    pub slot: Slot<Parcel>,
    /// The sidecore that is to serve it.
    goal: AtomicUsize,
    /// Its owner counts these: ticks that it was served for, turns, and those that began late.
    busy: AtomicU64,
    turns: AtomicU64,
    late: AtomicU64,
}

/// What is on its way.
pub struct Parcel {
    pub devices: Vec<Passenger>,
    /// The switch that the devices are at, if they are at one.
    pub switch: Option<CoreSwitch>,
}

/// A device on its way.
pub struct Passenger {
    pub device: Option<Device>,
    /// As many as it has.
    pub queues: Vec<Option<ServedQueue>>,
    pub debt: Debt,
}

impl Movable {
    /// Boot only: at this sidecore, without devices yet.
    pub fn new(at: usize) -> Self {
        Movable {
            ports: Vec::new(),
            slot: Slot::new(Parcel { devices: Vec::new(), switch: None }),
            goal: AtomicUsize::new(at),
            busy: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }
    }

    /// Boot only: one more device, with so many queues.
    pub fn add(&mut self, port: &'static Port, queues: usize) {
        self.ports.push(port);
        let queues = (0..queues).map(|_| None).collect();
        let passenger = Passenger { device: None, queues, debt: Debt::default() };
        self.slot.prepare(|parcel| parcel.devices.push(passenger));
    }

    /// The sidecore that serves it; none while it moves.
    pub fn at(&self) -> Option<usize> {
        let goal = self.goal.load(Ordering::Relaxed);
        self.ports.iter().all(|port| port.home().at() == goal).then_some(goal)
    }

    /// Ticks for which it was served, and turns of its that began late.
    pub fn counts(&self) -> (u64, u64) {
        (self.busy.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed))
    }

    /// The sidecore that is to serve it.
    pub fn goal(&self) -> usize {
        self.goal.load(Ordering::Relaxed)
    }

    /// This sidecore is to serve it; who does is to be rung.
    pub fn go_to(&self, goal: usize) {
        self.goal.store(goal, Ordering::Relaxed);
    }
}

/// Where what can move is or would be on a sidecore.
pub struct Berth {
    /// Each device's place, and its queues'.
    pub devices: Vec<(usize, Range<usize>)>,
    /// The switch's number.
    pub switch: Option<usize>,
}

/// What makes devices move.
#[derive(Clone, Copy)]
pub enum Rule {
    Never,
    /// A turn that begins after so many ticks is late.
    ByLoad(u64),
    /// To the next sidecore after so many turns.
    Rounds(u16),
}

/// What a sidecore knows of devices that can move.
pub struct Moves {
    /// Which of the sidecores it is.
    pub own: usize,
    pub listeners: &'static [Listener],
    pub rule: Rule,
    pub all: &'static [Movable],
    /// Of each, here.
    pub berths: Vec<Berth>,
    /// Some device here is to go.
    pub leaving: bool,
    /// What the pass is for: what the last turn served, or the wire brought frames for.
    served: Option<usize>,
}

impl Moves {
    /// Of this sidecore: nothing can move yet.
    pub const fn new(own: usize, listeners: &'static [Listener], rule: Rule) -> Self {
        Moves { own, listeners, rule, all: &[], berths: Vec::new(), leaving: false, served: None }
    }

    /// The sidecore's own.
    #[inline]
    pub fn listener(&self) -> &'static Listener {
        &self.listeners[self.own]
    }

    /// The last pass took so long.
    #[inline]
    pub fn note_work(&mut self, ticks: u64) {
        if let Some(served) = self.served.take().and_then(|served| self.all.get(served)) {
            add(&served.busy, ticks);
        }
    }

    /// Work was done for this device, besides turns.
    #[inline]
    pub fn note_wire(&mut self, number: usize) {
        self.served = Some(number);
    }

    /// A turn is over of this device, which began after it had waited for so many ticks.
    pub fn note_turn(&mut self, number: usize, waited: u64) {
        let Some(movable) = self.all.get(number) else { return };
        self.served = Some(number);
        add(&movable.turns, 1);
        match self.rule {
            Rule::ByLoad(bound) if waited > bound => add(&movable.late, 1),
            Rule::Rounds(turns)
                if movable.turns.load(Ordering::Relaxed).is_multiple_of(turns.into()) =>
            {
                movable.go_to((self.own + 1) % self.listeners.len());
                self.leaving = true;
            }
            _ => {}
        }
    }
}
