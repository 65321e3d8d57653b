//! Queues of both kinds against drivers that keep to the standard.
mod driver;

use driver::{Buffer, Driver, Heap, driver_at};
use proptest::prelude::*;
use std::collections::VecDeque;
use virtqueue::{Chain, Features, Head, Position, Queue, State};
use window::Memory;

#[derive(Clone, Debug)]
enum Step {
    /// Readable and writable buffers of these lengths.
    Add {
        readable: Vec<u16>,
        writable: Vec<u16>,
        indirect: bool,
    },
    Take,
    Complete {
        which: usize,
        written: u32,
    },
    Publish,
    Use,
    Wait,
    DisableCalls,
    Withhold,
    Sleep,
    Poll,
    /// The device goes away, and comes back with its state.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lengths = || prop::collection::vec(prop_oneof![1u16..600, Just(0)], 0..4);
    let step = prop_oneof![
        6 => (lengths(), lengths(), any::<bool>())
            .prop_map(|(readable, writable, indirect)| Step::Add { readable, writable, indirect }),
        6 => Just(Step::Take),
        6 => (any::<usize>(), any::<u32>())
            .prop_map(|(which, written)| Step::Complete { which, written }),
        4 => Just(Step::Publish),
        6 => Just(Step::Use),
        2 => Just(Step::Wait),
        1 => Just(Step::DisableCalls),
        1 => Just(Step::Withhold),
        2 => Just(Step::Sleep),
        2 => Just(Step::Poll),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..200)
}

fn features() -> impl Strategy<Value = Features> {
    any::<[bool; 3]>().prop_map(|[indirect, event_index, packed]| Features {
        indirect,
        event_index,
        packed,
    })
}

struct Run {
    heap: Heap,
    features: Features,
    driver: Box<dyn Driver>,
    queue: Queue,
    chain: Chain,
    /// What was added and not taken, with the places that it takes in a packed ring.
    offered: VecDeque<(u16, u16, Vec<Buffer>)>,
    taken: Vec<Head>,
    completed: Vec<(u16, u32)>,
    published: VecDeque<(u16, u32)>,
    /// The device waits for a kick, the driver for a call.
    asleep: bool,
    waiting: bool,
    /// The driver waits for a call that was withheld.
    owed: bool,
}

impl Run {
    fn step(&mut self, step: Step) {
        match step {
            Step::Add { readable, writable, indirect } => self.add(&readable, &writable, indirect),
            Step::Take => self.take(),
            Step::Complete { which, written } if !self.taken.is_empty() => {
                let head = self.taken.swap_remove(which % self.taken.len());
                self.queue.complete(head, written);
                // Done twice it counts once.
                self.queue.complete(head, !written);
                self.completed.push((head.index(), written));
            }
            Step::Complete { .. } => {}
            Step::Publish => self.publish(false),
            Step::Withhold => self.publish(true),
            Step::Use => {
                assert_eq!(self.driver.used(), self.published.pop_front());
                (self.waiting, self.owed) = (false, false);
            }
            Step::Wait => {
                let waits = self.driver.enable_calls();
                assert_eq!(waits, self.published.is_empty());
                (self.waiting, self.owed) = (waits, self.owed && waits);
            }
            Step::DisableCalls => {
                self.driver.disable_calls();
                (self.waiting, self.owed) = (false, false);
            }
            Step::Sleep => self.asleep = self.queue.enable_kicks() == Ok(0),
            Step::Poll => {
                self.queue.suppress_kicks();
                self.asleep = false;
            }
            Step::Restart => {
                self.publish(false);
                let state = self.queue.state();
                let (window, layout) = (self.heap.window, self.driver.layout());
                self.queue = Queue::new(&window, layout, self.features, state).unwrap();
                assert_eq!(self.queue.state(), state);
            }
        }
    }

    fn add(&mut self, readable: &[u16], writable: &[u16], indirect: bool) {
        let mut buffers: Vec<Buffer> =
            readable.iter().map(|len| self.heap.put(&vec![7; (*len).into()])).collect();
        buffers.extend(writable.iter().map(|len| self.heap.room((*len).into())));
        let indirect = indirect && self.features.indirect && !buffers.is_empty();
        let added = if indirect {
            let table = self.heap.take(16 * buffers.len() as u64, 1);
            self.driver.add_indirect(table, &buffers)
        } else {
            self.driver.add(&buffers)
        };
        if let Some(id) = added {
            let places = if indirect { 1 } else { buffers.len() as u16 };
            self.offered.push_back((id, places, buffers));
            let kick = self.driver.kick();
            assert!(kick || !self.asleep, "a kick is lost");
            self.asleep = false;
        }
    }

    fn take(&mut self) {
        let available = self.queue.available().unwrap();
        let expected = self.offered.len() as u16;
        assert_eq!(available, if self.features.packed { expected.min(1) } else { expected });
        self.look_at_backlog(available);
        let taken = self.queue.take(&self.heap.window, &mut self.chain).unwrap();
        assert_eq!(taken, expected != 0);
        let Some((id, _, buffers)) = self.offered.pop_front() else { return };
        assert_eq!(self.chain.head().index(), id);
        self.taken.push(self.chain.head());
        for (spans, len, writable) in [
            (self.chain.readable(), self.chain.readable_len(), false),
            (self.chain.writable(), self.chain.writable_len(), true),
        ] {
            let window = &self.heap.window;
            let expected: Vec<_> = buffers
                .iter()
                .filter(|buffer| buffer.writable == writable && buffer.len != 0)
                .map(|buffer| window.span(buffer.address, buffer.len.into()).unwrap())
                .collect();
            assert_eq!(spans, expected);
            assert_eq!(u64::from(len), expected.iter().map(|span| span.len()).sum::<u64>());
        }
    }

    /// Known up to anywhere, it is found; up to further than it is, that is believed.
    fn look_at_backlog(&self, available: u16) {
        let backlog = |before| self.queue.backlog(available, before);
        if !self.features.packed {
            assert_eq!(backlog(7), available);
            return;
        }
        let size = self.queue.size();
        let all = self.offered.iter().map(|(_, places, _)| *places).sum::<u16>();
        for before in [0, all / 2, all.saturating_sub(1), all] {
            assert_eq!(backlog(before), all, "of {size}, known: {before}");
        }
        assert!(backlog(u16::MAX) <= size);
    }

    fn publish(&mut self, withhold: bool) {
        let news = !self.completed.is_empty();
        self.queue.publish();
        self.published.extend(self.completed.drain(..));
        assert!(!news || self.queue.call_due());
        let due = self.queue.call_due();
        let called = self.queue.wants_call();
        assert!(due || !called, "a call for nothing");
        if called && withhold {
            self.queue.call_withheld();
            assert!(self.queue.call_due());
            self.owed |= self.waiting;
        } else if called {
            (self.waiting, self.owed) = (false, false);
        } else {
            assert!(!(self.waiting && (news || self.owed)), "a call is lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_offered_is_used_once_and_nobody_waits_in_vain(
        features in features(),
        power in 0u32..6,
        odd in 1u16..40,
        start: u16,
        wrap: bool,
        steps in steps(),
    ) {
        let size = if features.packed { odd } else { 1 << power };
        let start = if features.packed {
            Position { index: start % size, wrap }
        } else {
            // Near the end of all indices, too.
            Position { index: if wrap { start } else { 0u16.wrapping_sub(start % 64) }, wrap: true }
        };
        let memory = Memory::new(&[(0x4000, 1 << 20)], 1 << 40);
        let window = memory.window();
        let mut heap = Heap::new(window, 0x4000, 0x4000 + (1 << 20));
        let driver = driver_at(&mut heap, size, features, start);
        let state = State { available: start, used: start, ..State::at_reset(features) };
        let queue = Queue::new(&window, driver.layout(), features, state).unwrap();
        let mut run = Run {
            heap,
            features,
            driver,
            queue,
            chain: Chain::new(),
            offered: VecDeque::new(),
            taken: Vec::new(),
            completed: Vec::new(),
            published: VecDeque::new(),
            asleep: false,
            waiting: false,
            owed: false,
        };
        run.queue.suppress_kicks();
        for step in steps {
            run.step(step);
        }
        while !run.offered.is_empty() {
            run.take();
        }
        while !run.taken.is_empty() {
            run.step(Step::Complete { which: 0, written: 1 });
        }
        run.publish(false);
        while !run.published.is_empty() {
            run.step(Step::Use);
        }
        prop_assert_eq!(run.driver.used(), None);
        let state = run.queue.state();
        prop_assert_eq!(state.available, state.used);
        prop_assert!(state.in_flight.iter().all(|count| *count == 0));
    }
}
