//! A hand-over under loom, which tries every interleaving and every value that a load may give: a
//! sidecore calls and hands its device over, the other one takes it and calls, and a vCPU gives an
//! order, routes, masks or unmasks meanwhile. And a sidecore that falls asleep.
//!
//! Guarantees: an order is followed by one of the two; a call that waited is sent by one of them;
//! nothing is sent by a word that was replaced or masked once the wait is over; no call is lost or
//! doubled; nobody sleeps behind a bell. Every property has variants with one step wrong, which
//! loom must catch.
extern crate std;

use super::{Bell, Home, Slot};
use loom::sync::Arc;
use loom::thread;
use routing::calls::{Caller, Entry, Target, Turn};
use sync::{AtomicBool, AtomicU32, Ordering, SpinMutex, fence};

/// How often the scheduler may take the processor from a thread that could go on, in one execution.
const PREEMPTIONS: usize = 3;

const FIRST: Target = Target { destination: 1, vector: 0x41 };
const SECOND: Target = Target { destination: 2, vector: 0x42 };

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// There are no fences.
    NoFences,
    /// The new owner doesn't look at what came before it.
    DoesNotLook,
    /// It says that it is at home after it has looked.
    ArrivesLate,
    /// Who changes a word waits for the first sidecore's turn alone.
    SettlesOne,
    /// Who unmasks asks the first alone.
    AsksOne,
    /// The bell is answered after the look.
    AnswersLate,
    /// Who falls asleep looks at its bell before it says so.
    LooksFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Orders,
    Routes,
    Masks,
    Unmasks,
}

/// What moves.
#[derive(Debug)]
struct Device {
    followed: u32,
    completed: usize,
}

#[derive(Debug, Default)]
struct Seen {
    released: bool,
    closed: bool,
    calls: usize,
    served: usize,
    sent: usize,
}

struct World {
    entry: Entry,
    turns: [Turn; 2],
    bells: [Bell; 2],
    home: Home,
    slot: Slot<Option<Device>>,
    order: AtomicU32,
    seen: SpinMutex<Seen>,
    wrong: Wrong,
}

impl World {
    fn send(&self, to: Target) {
        let mut seen = self.seen.lock();
        assert!(to == FIRST && !seen.released || to == SECOND, "{to:?} is another's");
        assert!(!seen.closed, "it is sent by an entry that is closed");
        seen.sent += 1;
        seen.served = seen.calls;
    }

    fn call(&self, device: &mut Device, caller: &mut Caller) {
        device.completed += 1;
        self.seen.lock().calls += 1;
        caller.call(&self.entry, |to| self.send(to));
    }

    fn look(&self, device: &mut Device, caller: &mut Caller) {
        device.followed = self.order.load(Ordering::Acquire);
        caller.call_waiting(&self.entry, |to| self.send(to));
    }

    /// A round of the sidecore that has the device, or not.
    fn round(&self, own: usize, device: &mut Option<Device>, caller: &mut Caller) {
        let answers = self.wrong != Wrong::AnswersLate;
        let rung = if answers { self.bells[own].answer() } else { self.bells[own].is_rung() };
        let asked = caller.asked();
        if let Some(device) = device.as_mut().filter(|_| rung || asked) {
            self.look(device, caller);
        }
        let looks = self.wrong != Wrong::DoesNotLook;
        let late = self.wrong == Wrong::ArrivesLate;
        if rung && self.slot.receive(own, |content| *device = content.take()) {
            if !late {
                self.home.arrive(own);
            }
            if let Some(device) = device.as_mut().filter(|_| looks) {
                self.look(device, caller);
            }
            if late {
                self.home.arrive(own);
            }
        }
        if !answers {
            self.bells[own].answer();
        }
    }

    fn settle(&self) {
        let turns = if self.wrong == Wrong::SettlesOne { 1 } else { 2 };
        for turn in &self.turns[..turns] {
            assert!(turn.settle(|| {
                thread::yield_now();
                true
            }));
        }
    }

    fn unmask(&self) {
        if self.entry.unmask() {
            let turns = if self.wrong == Wrong::AsksOne { 1 } else { 2 };
            self.turns[..turns].iter().for_each(Turn::ask);
        }
    }

    fn act(&self, does: Does) {
        match does {
            Does::Orders => {
                self.order.store(1, Ordering::Release);
                let _ = self.bells[self.home.tell()].ring();
            }
            Does::Routes => {
                self.entry.route(Some(SECOND));
                self.settle();
                self.seen.lock().released = true;
            }
            Does::Masks => {
                self.entry.mask();
                self.settle();
                self.seen.lock().closed = true;
                self.seen.lock().closed = false;
                self.unmask();
            }
            Does::Unmasks => self.unmask(),
        }
    }
}

/// Each of the two sidecores calls so often, and the device goes from the first to the second,
/// while a vCPU does this.
fn check(wrong: Wrong, calls: usize, does: Does) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        if wrong == Wrong::NoFences {
            sync::without_fences();
        }
        let entry = Entry::new();
        entry.route(Some(FIRST));
        if does == Does::Unmasks {
            entry.mask();
        } else {
            assert!(!entry.unmask());
        }
        let world = Arc::new(World {
            entry,
            turns: [Turn::new(), Turn::new()],
            bells: [Bell::new(), Bell::new()],
            home: Home::new(0),
            slot: Slot::new(None),
            order: AtomicU32::new(0),
            seen: Default::default(),
            wrong,
        });
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || world.act(does))
        };
        let second = {
            let world = world.clone();
            thread::spawn(move || {
                let mut device = None;
                let mut caller = world.turns[1].caller().unwrap();
                world.round(1, &mut device, &mut caller);
                if let Some(device) = &mut device {
                    (0..calls).for_each(|_| world.call(device, &mut caller));
                }
                device
            })
        };
        {
            let mut caller = world.turns[0].caller().unwrap();
            let mut device = Some(Device { followed: 0, completed: 0 });
            let own = device.as_mut().unwrap();
            (0..calls).for_each(|_| world.call(own, &mut caller));
            world.round(0, &mut device, &mut caller);
            assert!(world.slot.hand(1, |content| *content = device.take()));
            let _ = world.bells[1].ring();
            world.round(0, &mut None, &mut caller);
        }
        let mut device = second.join().unwrap();
        vcpu.join().unwrap();
        // What they would go on to do.
        let mut caller = world.turns[1].caller().unwrap();
        world.round(1, &mut device, &mut caller);
        let device = device.expect("it has an owner");
        let seen = world.seen.lock();
        assert_eq!(device.completed, seen.calls, "what was completed is lost");
        assert!(seen.sent <= seen.calls, "one is doubled");
        assert_eq!(device.followed, world.order.load(Ordering::Relaxed), "an order is lost");
        assert!(!world.entry.pending() && seen.served == seen.calls, "one is lost");
    });
}

#[test]
fn an_order_comes_while_the_device_moves() {
    check(Wrong::Nothing, 0, Does::Orders);
}

#[test]
#[should_panic(expected = "an order is lost")]
fn variant_the_new_owner_doesnt_look() {
    check(Wrong::DoesNotLook, 0, Does::Orders);
}

#[test]
#[should_panic(expected = "an order is lost")]
fn variant_the_new_owner_arrives_after_its_look() {
    check(Wrong::ArrivesLate, 0, Does::Orders);
}

#[test]
#[should_panic(expected = "an order is lost")]
fn variant_an_order_without_fences() {
    check(Wrong::NoFences, 0, Does::Orders);
}

#[test]
#[should_panic(expected = "it has an owner")]
fn variant_the_bell_is_answered_after_the_look() {
    check(Wrong::AnswersLate, 0, Does::Orders);
}

#[test]
fn a_route_changes_while_the_device_moves() {
    check(Wrong::Nothing, 1, Does::Routes);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_the_new_owners_turn_isnt_waited_for() {
    check(Wrong::SettlesOne, 1, Does::Routes);
}

#[test]
fn an_entry_is_masked_while_the_device_moves() {
    check(Wrong::Nothing, 1, Does::Masks);
}

#[test]
#[should_panic(expected = "an entry that is closed")]
fn variant_masking_waits_for_one_turn() {
    check(Wrong::SettlesOne, 1, Does::Masks);
}

#[test]
fn an_entry_is_unmasked_while_the_device_moves() {
    check(Wrong::Nothing, 1, Does::Unmasks);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_who_unmasks_asks_the_first() {
    check(Wrong::AsksOne, 1, Does::Unmasks);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_the_new_owner_doesnt_look_at_entries() {
    check(Wrong::DoesNotLook, 1, Does::Unmasks);
}

/// One sidecore falls asleep while another gives it a device.
fn sleeps(wrong: Wrong) {
    loom::model(move || {
        if wrong == Wrong::NoFences {
            sync::without_fences();
        }
        let world = Arc::new((Bell::new(), AtomicBool::new(false)));
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                if world.0.ring() {
                    // The interrupt is kept until the core halts.
                    world.1.store(true, Ordering::Relaxed);
                }
            })
        };
        let bell = &world.0;
        let sleeps = match wrong {
            Wrong::LooksFirst => {
                let rung = bell.is_rung();
                bell.asleep.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                !rung
            }
            _ => bell.may_sleep(),
        };
        other.join().unwrap();
        assert!(!sleeps || world.1.load(Ordering::Relaxed), "it sleeps for ever");
    });
}

#[test]
fn nobody_sleeps_behind_a_bell() {
    sleeps(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn variant_the_bell_is_looked_at_first() {
    sleeps(Wrong::LooksFirst);
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn variant_sleep_without_fences() {
    sleeps(Wrong::NoFences);
}
