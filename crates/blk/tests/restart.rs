//! A server that ends between any two of its steps, and one that goes on by its records: with back
//! ends that answer at once, later, in any order, or have no room. Each request is answered once.
//! Where it ends within a step is for the records' own tests: here it is seen that they are told
//! before and after what was answered becomes visible.
mod storage;

#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;

use blk::config::{Config, Parameters};
use blk::{Backend as _, Keep, Server};
use driver::{Buffer, Driver, Heap, driver};
use proptest::prelude::*;
use storage::Storage;
use virtqueue::{Features, Head, Layout, Log, PackedRecords, Queue, Records, State};
use window::{Memory, Span, Window};

const RING: u16 = 32;
const SECTORS: u64 = 4096;
/// Where the records are, and the requests' buffers behind them.
const RECORDS: u64 = 1 << 20;
const BUFFERS: u64 = RECORDS + 0x2000;
/// Requests that are sent and not answered.
const MOST: u64 = 16;
const MEMORY: u64 = 8 << 20;
/// A bit for each page.
const LOG: u64 = RECORDS + 0x1000;

type Kept = Server<8, 256, Watched>;

/// Records, and what the driver sees when they are told.
struct Watched {
    records: Option<Records<256>>,
    /// The used index of a split ring.
    index: Span,
    published: u16,
    publishing: bool,
    /// Those in flight, and how many of them were completed since.
    recorded: Vec<Head>,
    batch: u16,
}

impl Watched {
    fn visible(&self) -> u16 {
        self.index.load_u16(0).expect("two bytes")
    }
}

impl Keep for Watched {
    const KEEPS: bool = true;

    fn left(&self) -> u16 {
        self.records.left()
    }

    fn next_left(&mut self) -> Option<Head> {
        let head = self.records.next_left()?;
        self.recorded.push(head);
        Some(head)
    }

    fn has_batch(&self) -> bool {
        self.records.has_batch()
    }

    fn take(&mut self, head: Head) {
        assert!(self.records.is_none() || self.visible() == self.published);
        self.recorded.push(head);
        Keep::take(&mut self.records, head);
    }

    fn complete(&mut self, head: Head) {
        let place = self.recorded.iter().position(|recorded| *recorded == head);
        if let Some(place) = place {
            self.recorded.swap_remove(place);
            self.batch += 1;
        }
        self.records.complete(head);
    }

    fn publishing(&mut self, last: Head) {
        assert!(!self.publishing);
        if self.records.is_some() {
            assert_eq!(self.visible(), self.published, "it was shown before that was recorded");
        }
        self.publishing = true;
        self.records.publishing(last);
    }

    fn published(&mut self, used: u16) {
        assert!(std::mem::take(&mut self.publishing));
        if self.records.is_some() {
            assert_eq!(self.visible(), used, "it is recorded before it is shown");
            let shown = used.wrapping_sub(self.published);
            assert!(shown > 0 && [0, shown].contains(&self.batch), "{} of {shown}", self.batch);
        }
        self.batch = 0;
        self.published = used;
        self.records.published(used);
    }
}

impl Drop for Watched {
    /// Nothing was shown that they weren't told of.
    fn drop(&mut self) {
        if self.records.is_some() && !std::thread::panicking() {
            assert_eq!(self.visible(), self.published);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A write of so many pieces, and a bit.
    Send(u64),
    Serve,
    End(usize),
    Collect,
    Publish,
    /// The back end has room for so many from now on; 0: it answers at once.
    Room(usize),
    Die,
}

struct World {
    window: Window,
    features: Features,
    logged: bool,
    driver: Box<dyn Driver>,
    server: Kept,
    storage: Storage,
    next: u64,
    sent: Vec<(u16, u64)>,
}

impl World {
    fn start(&mut self) {
        let config = Config::new(Parameters { capacity: SECTORS, ..Parameters::default() });
        self.server = Server::new(config.expect("a disk"), 1);
        let layout = self.driver.layout();
        let (queue, records) = match self.features.packed {
            false => self.split(layout),
            true => {
                let bytes = PackedRecords::<256>::bytes(RING);
                let records = self.window.span(RECORDS, bytes).expect("in memory");
                // Whatever the front end says of where it is.
                let state = State::at_reset(self.features);
                let queue = Queue::recorded(&self.window, layout, self.features, state, records);
                (queue.expect("they are ours"), None)
            }
        };
        let queue = if self.logged {
            let bits = self.window.span(LOG, MEMORY >> 15).expect("in memory");
            queue.logged(layout, Log { bits, ring: Some(layout.device), exact: false })
        } else {
            queue
        };
        let index = self.window.span(layout.device + 2, 2).expect("in memory");
        let published = index.load_u16(0).expect("two bytes");
        let (recorded, batch) = (Vec::new(), 0);
        let keep = Watched { records, index, published, publishing: false, recorded, batch };
        self.server.start_with(queue, config.expect("a disk").features(), keep);
    }

    fn split(&self, layout: Layout) -> (Queue, Option<Records<256>>) {
        let mut used = [0; 2];
        self.window.read(layout.device + 2, &mut used).expect("in memory");
        let records = self.window.span(RECORDS, Records::<256>::bytes(RING)).expect("in memory");
        let (records, state) =
            Records::open(records, RING, u16::from_le_bytes(used)).expect("they are ours");
        let queue = Queue::new(&self.window, layout, self.features, state).expect("it fits");
        (queue, Some(records))
    }

    /// What the dead server asked for still ends, or doesn't: nobody hears of it.
    fn die(&mut self) {
        self.storage.waiting.clear();
        self.storage.done.clear();
        self.start();
    }

    fn send(&mut self, pieces: u64) {
        let len = pieces * u64::from(blk::PIECE_DATA) + 512;
        let sector = self.next % 64 * 8;
        self.next += 1;
        // One that nobody uses: the server may be writing to the others.
        let is_free = |at: &u64| self.sent.iter().all(|(_, status)| *status != at + 16);
        let mut places = (0..MOST).map(|place| BUFFERS + place * 0x20000);
        let Some(at) = places.find(is_free) else { return };
        let mut header = [0; 16];
        header[0] = 1;
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.window.write(at, &header).expect("in memory");
        self.window.write(at + 16, &[0xff]).expect("in memory");
        let buffer = |address, len, writable| Buffer { address, len, writable };
        let chain =
            [buffer(at, 16, false), buffer(at + 32, len as u32, false), buffer(at + 16, 1, true)];
        if let Some(head) = self.driver.add(&chain) {
            self.sent.push((head, at + 16));
        }
    }

    fn hear(&mut self) {
        while let Some((head, _)) = self.driver.used() {
            let place = self.sent.iter().position(|(sent, _)| *sent == head);
            let (_, status) = self.sent.remove(place.expect("it is answered once"));
            let mut byte = [0xff];
            self.window.read(status, &mut byte).expect("in memory");
            assert_eq!(byte, [0]);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(pieces) => self.send(pieces),
            Step::Serve => {
                self.server.serve(&self.window, &mut self.storage).expect("it isn't broken");
            }
            Step::End(which) if !self.storage.waiting.is_empty() => {
                self.storage.end(which % self.storage.waiting.len());
            }
            Step::End(_) => {}
            Step::Collect => {
                while let Some(completion) = self.storage.poll() {
                    self.server.finish(completion);
                }
            }
            Step::Publish => self.server.publish(),
            Step::Room(room) => self.storage.room = room,
            Step::Die => self.die(),
        }
        // Who asks whether it waits gives it turns for what isn't in the ring, too.
        let besides = self.server.left() + u16::from(self.server.is_open());
        let offered =
            self.server.queue().map_or(0, |queue| queue.available().expect("it is whole"));
        assert_eq!(self.server.waiting(), offered + besides);
        self.hear();
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..2u64).prop_map(Step::Send),
        8 => Just(Step::Serve),
        4 => any::<usize>().prop_map(Step::End),
        3 => Just(Step::Collect),
        3 => Just(Step::Publish),
        1 => (0..5usize).prop_map(Step::Room),
        1 => Just(Step::Die),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn each_request_is_answered_once(
        steps in steps(),
        packed in any::<bool>(),
        logged in any::<bool>(),
    ) {
        let memory = Memory::new(&[(0, MEMORY)], 0);
        let window = memory.window();
        let config = Config::new(Parameters { capacity: SECTORS, ..Parameters::default() });
        let features = Features { indirect: true, event_index: true, packed };
        let mut world = World {
            window,
            features,
            logged,
            driver: driver(&mut Heap::new(window, 0, RECORDS), RING, features),
            server: Server::new(config.expect("a disk"), 1),
            storage: Storage::new(SECTORS, 0),
            next: 0,
            sent: Vec::new(),
        };
        world.start();
        steps.iter().for_each(|step| world.step(step));
        for _ in 0..400 {
            [Step::Serve, Step::End(0), Step::Collect, Step::Publish]
                .iter()
                .for_each(|step| world.step(step));
        }
        prop_assert!(world.sent.is_empty(), "{:?} were lost", world.sent);
    }
}
