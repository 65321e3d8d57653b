//! A virtqueue of either kind: a right driver until the guest first writes where it shouldn't, and
//! any writes to the rings between any two steps from then on.
#![no_main]

#[path = "../../crates/virtqueue/tests/driver/mod.rs"]
mod driver;

use arbitrary::Arbitrary;
use driver::{Buffer, Driver, Heap, driver_at, take_framed};
use libfuzzer_sys::fuzz_target;
use std::collections::{HashSet, VecDeque};
use virtqueue::{Chain, Features, Head, Position, Queue, SEGMENTS, State};
use window::{Memory, Span};

/// Guest memory: two regions that adjoin.
const START: u64 = 0x1000;
const HALF: u64 = 0x1_0000;
const DMA: u64 = 1 << 40;
/// The rings are in the first bytes, indirect tables behind them: more than chains can wait.
const RINGS: u64 = 0x800;
const TABLES: u64 = 48;
/// Each buffer may go over the border of regions.
const BUFFERS: usize = SEGMENTS / 2;

#[derive(Arbitrary, Debug)]
struct Input {
    indirect: bool,
    event_index: bool,
    packed: bool,
    size: u8,
    start: u16,
    wrap: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Add {
        readable: Vec<u8>,
        writable: Vec<u8>,
        indirect: bool,
    },
    Take {
        framed: bool,
    },
    Complete {
        which: u8,
        written: u32,
    },
    Publish {
        withhold: bool,
    },
    Use,
    Wait,
    Sleep,
    Poll,
    Restart,
    /// The guest writes into its rings.
    Write {
        at: u16,
        bytes: Vec<u8>,
    },
    /// It stores a descriptor of a split ring, or of a packed one, or the word of an index.
    Split {
        index: u8,
        address: u32,
        len: u16,
        flags: u16,
        next: u8,
    },
    Packed {
        index: u8,
        address: u32,
        len: u16,
        flags: u16,
        id: u8,
    },
    Index {
        value: u16,
    },
}

struct Run {
    heap: Heap,
    features: Features,
    driver: Box<dyn Driver>,
    queue: Queue,
    chain: Chain,
    tables: u64,
    right: bool,
    offered: VecDeque<(u16, Vec<Buffer>)>,
    taken: Vec<Head>,
    completed: Vec<(u16, u32)>,
    published: VecDeque<(u16, u32)>,
    asleep: bool,
    waiting: bool,
}

impl Run {
    fn add(&mut self, readable: &[u8], writable: &[u8], indirect: bool) {
        let buffers: Vec<Buffer> = readable
            .iter()
            .map(|len| (len, false))
            .chain(writable.iter().map(|len| (len, true)))
            .map(|(len, writable)| Buffer { writable, ..self.heap.clone().room((*len).into()) })
            .collect();
        if buffers.len() > BUFFERS || buffers.is_empty() {
            return;
        }
        let added = if indirect && self.features.indirect {
            let place = START + RINGS + self.tables % TABLES * 16 * BUFFERS as u64;
            let added = self.driver.add_indirect(place, &buffers);
            // If there is no room nothing is written, and the next one gets this place.
            self.tables += u64::from(added.is_some());
            added
        } else {
            self.driver.add(&buffers)
        };
        if let Some(id) = added {
            self.offered.push_back((id, buffers));
            assert!(self.driver.kick() || !self.asleep, "a kick is lost");
            self.asleep = false;
        }
    }

    fn take(&mut self, framed: bool) {
        let (queue, window) = (&mut self.queue, &self.heap.window);
        let taken = match framed {
            true => take_framed(queue, window, &mut self.chain),
            false => queue.take(window, &mut self.chain),
        };
        assert!(!self.right || taken == Ok(!self.offered.is_empty()));
        if taken != Ok(true) {
            return;
        }
        let head = self.chain.head();
        let flying: HashSet<u16> = self.taken.iter().map(|head| head.index()).collect();
        assert!(head.index() < self.queue.size() && !flying.contains(&head.index()));
        let spans = || self.chain.readable().iter().chain(self.chain.writable());
        assert!(spans().count() <= SEGMENTS);
        assert!(spans().all(|span| {
            let at = span.dma() - DMA;
            !span.is_empty() && at >= START && at + span.len() <= START + 2 * HALF
        }));
        let sum = |spans: &[Span]| spans.iter().map(Span::len).sum::<u64>();
        assert_eq!(sum(self.chain.readable()), self.chain.readable_len().into());
        assert_eq!(sum(self.chain.writable()), self.chain.writable_len().into());
        if self.right {
            let (id, buffers) = self.offered.pop_front().expect("one was taken");
            assert_eq!(id, head.index());
            let sum = |writable| {
                let of = |buffer: &&Buffer| buffer.writable == writable;
                buffers.iter().filter(of).map(|buffer| buffer.len).sum::<u32>()
            };
            assert_eq!(sum(false), self.chain.readable_len());
            assert_eq!(sum(true), self.chain.writable_len());
        }
        self.taken.push(head);
    }

    fn publish(&mut self, withhold: bool) {
        let news = !self.completed.is_empty();
        self.queue.publish();
        self.published.extend(self.completed.drain(..));
        let due = self.queue.call_due();
        let called = self.queue.wants_call();
        assert!(due || !called);
        if called && withhold {
            self.queue.call_withheld();
        } else if self.right && self.waiting && news {
            assert!(called, "a call is lost");
        }
        self.waiting &= !called;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Add { readable, writable, indirect } if self.right => {
                self.add(&readable, &writable, indirect);
            }
            Step::Use if self.right => {
                assert_eq!(self.driver.used(), self.published.pop_front());
                self.waiting = false;
            }
            Step::Wait if self.right => {
                self.waiting = self.driver.enable_calls();
                assert_eq!(self.waiting, self.published.is_empty());
            }
            Step::Add { .. } | Step::Use | Step::Wait => {}
            Step::Take { framed } => self.take(framed),
            Step::Complete { which, written } if !self.taken.is_empty() => {
                let head = self.taken.swap_remove(usize::from(which) % self.taken.len());
                self.queue.complete(head, written);
                self.completed.push((head.index(), written));
            }
            Step::Complete { .. } => {}
            Step::Publish { withhold } => self.publish(withhold),
            Step::Sleep => {
                let waiting = self.queue.enable_kicks();
                assert!(waiting.is_ok_and(|waiting| waiting <= self.queue.size()) || !self.right);
                self.asleep = waiting == Ok(0);
            }
            Step::Poll => {
                self.queue.suppress_kicks();
                self.asleep = false;
            }
            Step::Restart => {
                self.publish(false);
                let (state, layout) = (self.queue.state(), self.driver.layout());
                self.queue = Queue::new(&self.heap.window, layout, self.features, state)
                    .expect("a queue can go on from its own state");
            }
            Step::Write { at, bytes } => {
                self.right = false;
                let _ = self.heap.window.write(START + u64::from(at) % (2 * HALF), &bytes);
            }
            Step::Split { index, address, len, flags, next } => {
                self.describe(index, address, len, [flags, next.into()]);
            }
            Step::Packed { index, address, len, flags, id } => {
                self.describe(index, address, len, [id.into(), flags]);
            }
            Step::Index { value } => {
                self.right = false;
                let at = self.driver.layout().driver + 2;
                self.heap.window.write(at, &value.to_le_bytes()).expect("the rings are there");
            }
        }
    }

    fn describe(&mut self, index: u8, address: u32, len: u16, last: [u16; 2]) {
        self.right = false;
        let layout = self.driver.layout();
        let at = layout.descriptors + 16 * (u64::from(index) % u64::from(layout.size));
        let last = u64::from(len) | u64::from(last[0]) << 32 | u64::from(last[1]) << 48;
        let words = [u64::from(address).to_le_bytes(), last.to_le_bytes()];
        self.heap.window.write(at, words.as_flattened()).expect("the rings are there");
    }
}

fuzz_target!(|input: Input| {
    let Input { indirect, event_index, packed, .. } = input;
    let features = Features { indirect, event_index, packed };
    let size = if packed { u16::from(input.size) % 40 + 1 } else { 1 << (input.size % 6) };
    let start = if packed {
        Position { index: input.start % size, wrap: input.wrap }
    } else {
        Position { index: input.start, wrap: true }
    };
    let memory = Memory::new(&[(START, HALF), (START + HALF, HALF)], DMA);
    let window = memory.window();
    let mut heap = Heap::new(window, START, START + RINGS);
    let driver = driver_at(&mut heap, size, features, start);
    let layout = driver.layout();
    let state = State { available: start, used: start, ..State::at_reset(features) };
    let queue = Queue::new(&window, layout, features, state).expect("the driver lays it out right");
    let mut run = Run {
        heap: Heap::new(window, START + HALF - 100, START + 2 * HALF),
        features,
        driver,
        queue,
        chain: Chain::new(),
        tables: 0,
        right: true,
        offered: VecDeque::new(),
        taken: Vec::new(),
        completed: Vec::new(),
        published: VecDeque::new(),
        asleep: false,
        waiting: false,
    };
    for step in input.steps {
        run.step(step);
    }
    assert_eq!(run.queue.state().in_flight.iter().filter(|n| **n != 0).count(), run.taken.len());
});
