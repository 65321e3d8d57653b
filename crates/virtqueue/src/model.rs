//! The queues under loom, which tries every order of accesses that the memory model allows: this
//! crate's own code, against a driver that looks and waits as the standard says.
//!
//! Guarantees: what the properties say holds for one chain, both kinds of rings, with and without
//! the event index. Every property has variants with one step wrong, which loom must catch.
use crate::event::passed;
use crate::{Chain, Features, Layout, Queue, State};
use loom::sync::atomic::{Ordering, fence};
use loom::thread;
use window::{Memory, Span, Window, model};

const LAYOUT: Layout = Layout { size: 2, descriptors: 0, driver: 0x100, device: 0x200 };
const BUFFER: u64 = 0x400;

/// What the two sides share.
#[derive(Clone, Copy)]
struct Shared {
    features: Features,
    window: Window,
}

/// Which step of the driver is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Fence,
    /// Its release, or its acquisition.
    Order,
}

impl Shared {
    fn word(&self, at: u64, len: u64) -> Span {
        self.window.span(at, len).unwrap()
    }

    /// The words of the rings, from now on loom's.
    fn watch(&self) {
        let halves = [0x100, 0x102, 0x104, 0x108, 0x200, 0x202, 0x214].map(|at| self.word(at, 2));
        let words = [0x204, 0x208].map(|at| self.word(at, 4));
        let doubles = [0, 8, BUFFER].map(|at| self.word(at, 8));
        let events = [0x100, 0x200].map(|at| self.word(at, 4));
        if self.features.packed {
            model::watch(&[&doubles[..], &events].concat());
        } else {
            model::watch(&[&doubles[..], &halves, &words].concat());
        }
    }

    fn queue(&self) -> Queue<2> {
        Queue::new(&self.window, LAYOUT, self.features, State::at_reset(self.features)).unwrap()
    }

    /// The driver offers a chain of one writable buffer.
    fn offer(&self, wrong: Wrong) {
        let flags = if self.features.packed { 0x82 << 48 } else { 2 << 32 };
        self.word(0, 8).store_u64(0, BUFFER).unwrap();
        let (at, released) = (self.word(8, 8), wrong != Wrong::Order);
        match (self.features.packed, released) {
            (true, true) => return at.store_u64_release(0, 8 | flags).unwrap(),
            (true, false) => return at.store_u64(0, 8 | flags).unwrap(),
            (false, _) => at.store_u64(0, 8 | flags).unwrap(),
        }
        self.word(0x104, 2).store_u16(0, 0).unwrap();
        let index = self.word(0x102, 2);
        let stored = if released { index.store_u16_release(0, 1) } else { index.store_u16(0, 1) };
        stored.unwrap();
    }

    /// Whether the driver kicks for what it has offered.
    fn kicks(&self, wrong: Wrong) -> bool {
        if wrong != Wrong::Fence {
            fence(Ordering::SeqCst);
        }
        let half = |at| self.word(at, 2).load_u16(0).unwrap();
        match self.features {
            Features { packed: true, .. } => match self.word(0x200, 4).load_u32(0).unwrap() {
                0x0000_0000 | 0x0002_8000 => true,
                0x0001_0000 => false,
                word => panic!("no such wish: {word:#x}"),
            },
            Features { event_index: true, .. } => passed(half(0x214), 1, 1),
            _ => half(0x200) & 1 == 0,
        }
    }

    /// The driver asks for calls; whether it then has to wait for one.
    fn waits(&self, wrong: Wrong) -> bool {
        let half = |at| self.word(at, 2);
        match self.features {
            Features { packed: true, event_index: true, .. } => {
                self.word(0x100, 4).store_u32(0, 0x0002_8000)
            }
            Features { packed: true, .. } => self.word(0x100, 4).store_u32(0, 0),
            Features { event_index: true, .. } => half(0x108).store_u16(0, 0),
            _ => half(0x100).store_u16(0, 0),
        }
        .unwrap();
        if wrong != Wrong::Fence {
            fence(Ordering::SeqCst);
        }
        !self.used(wrong)
    }

    /// The driver wants no calls, as it does while it looks at the ring.
    fn no_calls(&self) {
        match self.features {
            Features { packed: true, .. } => self.word(0x100, 4).store_u32(0, 0x0001_0000),
            Features { event_index: true, .. } => self.word(0x108, 2).store_u16(0, 0x8000),
            _ => self.word(0x100, 2).store_u16(0, 1),
        }
        .unwrap();
    }

    /// Whether the chain is used; then all that the device wrote before is there.
    fn used(&self, wrong: Wrong) -> bool {
        let (relaxed, packed) = (wrong == Wrong::Order, self.features.packed);
        let index = self.word(if packed { 8 } else { 0x202 }, if packed { 8 } else { 2 });
        let value = match (packed, relaxed) {
            (true, true) => index.load_u64(0),
            (true, false) => index.load_u64_acquire(0),
            (false, true) => index.load_u16(0).map(u64::from),
            (false, false) => index.load_u16_acquire(0).map(u64::from),
        }
        .unwrap();
        let used = if packed { value >> 48 & 0x8080 == 0x8080 } else { value == 1 };
        if used {
            assert_eq!(self.word(BUFFER, 8).load_u64(0), Ok(42), "data is missing");
            let len = if packed { Ok(value as u32) } else { self.word(0x208, 4).load_u32(0) };
            assert_eq!(len, Ok(8), "the length is missing");
        }
        used
    }
}

/// Runs `f` for rings of this kind, in every order within the bound.
fn check([packed, event_index]: [bool; 2], f: impl Fn(Shared) + Sync + Send + 'static) {
    let features = Features { indirect: false, event_index, packed };
    let mut runs = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    runs.preemption_bound = runs.preemption_bound.or(Some(3));
    runs.check(move || {
        // Those of the run before.
        model::watch(&[]);
        let memory = Memory::new(&[(0, 0x1000)], 0);
        let shared = Shared { features, window: memory.window() };
        f(shared);
    });
}

/// A device that publishes and a driver that goes to wait: if it does, it is called.
fn calls(shared: Shared, wrong: Wrong) {
    let (mut queue, mut chain) = (shared.queue(), Chain::new());
    shared.offer(Wrong::Nothing);
    shared.no_calls();
    shared.watch();
    assert_eq!(queue.take(&shared.window, &mut chain), Ok(true));
    let driver = thread::spawn(move || shared.waits(wrong));
    chain.writable()[0].store_u64(0, 42).unwrap();
    queue.complete(chain.head(), 8);
    queue.publish();
    let called = queue.wants_call();
    let waits = driver.join().unwrap();
    assert!(called || !waits, "a call is lost");
}

/// A driver that offers and a device that goes to sleep: if it does, it is kicked.
fn kicks(shared: Shared, wrong: Wrong) {
    let mut queue = shared.queue();
    queue.suppress_kicks();
    shared.watch();
    let driver = thread::spawn(move || {
        shared.offer(Wrong::Nothing);
        shared.kicks(wrong)
    });
    let waiting = queue.enable_kicks().unwrap();
    let kicked = driver.join().unwrap();
    assert!(kicked || waiting != 0, "a kick is lost");
}

/// A device that polls: what it takes is what was offered.
fn polls(shared: Shared, wrong: Wrong) {
    let (mut queue, mut chain) = (shared.queue(), Chain::new());
    shared.watch();
    let driver = thread::spawn(move || shared.offer(wrong));
    if queue.take(&shared.window, &mut chain).expect("the chain is right") {
        let lens = (chain.writable_len(), chain.readable_len());
        assert_eq!(lens, (8, 0), "the descriptor is missing");
        assert_eq!(chain.writable(), [shared.word(BUFFER, 8)], "the descriptor is missing");
    }
    driver.join().unwrap();
}

/// A module of the properties and their variants for one kind of rings.
macro_rules! kind {
    ($name:ident, $kind:expr) => {
        mod $name {
            use super::{Wrong, calls, check, kicks, polls};

            #[test]
            fn no_call_is_lost() {
                check($kind, |shared| calls(shared, Wrong::Nothing));
            }

            #[test]
            #[should_panic(expected = "a call is lost")]
            fn a_device_without_a_fence_loses_calls() {
                sync::without_fences();
                check($kind, |shared| calls(shared, Wrong::Nothing));
            }

            #[test]
            #[should_panic(expected = "a call is lost")]
            fn a_driver_without_a_fence_loses_calls() {
                check($kind, |shared| calls(shared, Wrong::Fence));
            }

            #[test]
            #[should_panic(expected = "is missing")]
            fn a_driver_without_acquisition_misses_data() {
                check($kind, |shared| calls(shared, Wrong::Order));
            }

            #[test]
            fn no_kick_is_lost() {
                check($kind, |shared| kicks(shared, Wrong::Nothing));
            }

            #[test]
            #[should_panic(expected = "a kick is lost")]
            fn a_device_without_a_fence_loses_kicks() {
                sync::without_fences();
                check($kind, |shared| kicks(shared, Wrong::Nothing));
            }

            #[test]
            #[should_panic(expected = "a kick is lost")]
            fn a_driver_without_a_fence_loses_kicks() {
                check($kind, |shared| kicks(shared, Wrong::Fence));
            }

            #[test]
            fn what_is_taken_was_offered() {
                check($kind, |shared| polls(shared, Wrong::Nothing));
            }

            #[test]
            #[should_panic(expected = "is missing")]
            fn a_driver_without_a_release_offers_nonsense() {
                check($kind, |shared| polls(shared, Wrong::Order));
            }
        }
    };
}

kind!(split, [false, false]);
kind!(split_with_event_index, [false, true]);
kind!(packed, [true, false]);
kind!(packed_with_event_index, [true, true]);
