//! A guest with one queue: memory, a driver, and the server behind it.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../virtqueue/tests/driver/mod.rs"]
mod driver;

use blk::config::{Config, Features, Parameters};
use blk::{Backend, Broken, Budget, Outcome, Server};
use driver::{Buffer, Driver, Heap};
use std::collections::HashMap;
use virtqueue::{Log, Queue, State};
use window::{Memory, Span, Window};

/// Requests that the server has in flight at most.
pub const PLACES: usize = 8;
const RING: u16 = 64;
/// Where buffers are: behind the rings.
const BUFFERS: u64 = 1 << 20;
const MEMORY: u64 = 16 << 20;
const DMA: u64 = 1 << 40;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
pub const SECTORS: u64 = 4096;

pub fn parameters() -> Parameters {
    Parameters {
        capacity: SECTORS,
        discard: 4096,
        write_zeroes: 4096,
        packed: true,
        serial: *b"a serial of 20 bytes",
        ..Parameters::default()
    }
}

/// How a driver lays its chains out. The fast way is for those that are like the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chains {
    /// By turns in the ring and in tables, one buffer right behind the other.
    Mixed,
    /// In the ring as far as it has room, or in tables; buffers begin at multiples of 16.
    InRing,
    InTables,
}

/// Runs a test on both kinds of rings, on split ones with all kinds of chains.
pub fn both(test: fn(Guest)) {
    all(parameters(), test);
}

/// The same of a disk with these parameters.
pub fn all(asked: Parameters, test: fn(Guest)) {
    for chains in [Chains::Mixed, Chains::InRing, Chains::InTables] {
        test(Guest { chains, ..Guest::new(asked, false) });
    }
    test(Guest::new(asked, true));
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent(usize);

pub struct Guest {
    _memory: Memory,
    pub window: Window,
    pub server: Server<PLACES>,
    pub accepted: Features,
    driver: Box<dyn Driver>,
    packed: bool,
    pub chains: Chains,
    /// Where the next buffer is.
    next: u64,
    /// Of each request, its writable buffers.
    writable: Vec<Vec<(u64, u32)>>,
    /// By the number that the driver gave it.
    sent: HashMap<u16, Sent>,
}

/// The header of a request.
pub fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// The range of a discard or write-zeroes request.
pub fn segment(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

impl Guest {
    pub fn new(asked: Parameters, packed: bool) -> Guest {
        let memory = Memory::new(&[(0, MEMORY)], DMA);
        let window = memory.window();
        let config = Config::new(asked).unwrap();
        let driver = new_driver(window, packed);
        let mut guest = Guest {
            _memory: memory,
            window,
            server: Server::new(config, 3),
            accepted: config.features(),
            driver,
            packed,
            chains: Chains::Mixed,
            next: BUFFERS,
            writable: Vec::new(),
            sent: HashMap::new(),
        };
        guest.reset();
        guest
    }

    /// Stops the server, and starts it with a new queue.
    pub fn reset(&mut self) {
        self.server.stop();
        let features = features(self.packed);
        self.window.span(0, BUFFERS).unwrap().fill(0);
        self.driver = new_driver(self.window, self.packed);
        self.sent.clear();
        let layout = self.driver.layout();
        let state = State::at_reset(features);
        let queue = Queue::new(&self.window, layout, features, state).unwrap();
        self.server.start(queue, self.accepted);
    }

    /// From now on all that the disk may write is marked in a log, which has no bits.
    pub fn log_changes(&mut self) {
        let queue = self.server.stop().unwrap();
        let log = Log { bits: Span::EMPTY, ring: None, exact: false };
        self.server.start(queue.logged(self.driver.layout(), log), self.accepted);
    }

    fn buffer(&mut self, len: u32) -> u64 {
        if self.chains != Chains::Mixed {
            self.next = self.next.next_multiple_of(16);
        }
        if self.next + u64::from(len) > MEMORY {
            self.next = BUFFERS;
        }
        let at = self.next;
        self.next += u64::from(len);
        at
    }

    /// Sends a request of these readable bytes, in buffers as given, and of writable buffers of
    /// these lengths, whose bytes are 0xee. Buffers of no length are left out.
    pub fn send(&mut self, readable: &[&[u8]], writable: &[u32]) -> Sent {
        let mut from = Vec::new();
        for bytes in readable.iter().filter(|bytes| !bytes.is_empty()) {
            let at = self.buffer(bytes.len() as u32);
            self.window.write(at, bytes).unwrap();
            from.push((at, bytes.len() as u32));
        }
        let mut into = Vec::new();
        for len in writable.iter().copied().filter(|len| *len > 0) {
            let at = self.buffer(len);
            self.window.span(at, len.into()).unwrap().fill(0xee);
            into.push((at, len));
        }
        let buffers: Vec<Buffer> = from
            .iter()
            .map(|(address, len)| Buffer { address: *address, len: *len, writable: false })
            .chain(into.iter().map(|(address, len)| Buffer {
                address: *address,
                len: *len,
                writable: true,
            }))
            .collect();
        let in_table = match self.chains {
            Chains::Mixed => self.writable.len().is_multiple_of(2),
            chains => chains == Chains::InTables,
        };
        // Long ones have one in any case.
        let number = if in_table || buffers.len() > 6 {
            let table = self.buffer(16 * buffers.len() as u32);
            self.driver.add_indirect(table, &buffers)
        } else {
            self.driver.add(&buffers)
        };
        let number = number.expect("the ring has room");
        let sent = Sent(self.writable.len());
        self.writable.push(into);
        self.sent.insert(number, sent);
        sent
    }

    pub fn read(&mut self, sector: u64, bytes: u32) -> Sent {
        self.send(&[&header(0, sector)], &[bytes, 1])
    }

    pub fn write(&mut self, sector: u64, bytes: &[u8]) -> Sent {
        self.send(&[&header(1, sector), bytes], &[1])
    }

    /// Where a writable buffer of a request is for devices.
    pub fn dma(&self, sent: Sent, buffer: usize) -> u64 {
        DMA + self.writable[sent.0][buffer].0
    }

    /// One turn.
    pub fn serve(&mut self, backend: &mut impl Backend) -> Result<Outcome, Broken> {
        self.server.serve(&self.window, backend)
    }

    /// As many turns as this allows: what they did, and how the last one ended.
    pub fn serve_some(
        &mut self,
        backend: &mut impl Backend,
        budget: Budget,
    ) -> (Outcome, Result<(), Broken>) {
        self.server.serve_some(&self.window, backend, budget)
    }

    /// Turns until this request is answered, the last one sent: its status, and the bytes that were
    /// written. Operations that wait in the back end are ended by `end`.
    pub fn run_until<B: Backend>(
        &mut self,
        backend: &mut B,
        sent: Sent,
        mut end: impl FnMut(&mut B),
    ) -> (u8, u32) {
        for _ in 0..1000 {
            self.serve(backend).expect("the queue isn't broken");
            end(backend);
            self.server.collect(backend, 100);
            self.server.queue().expect("it was started").publish();
            if let Some((id, written)) = self.used() {
                assert_eq!(sent, id);
                return (self.status(sent), written);
            }
        }
        panic!("{sent:?} isn't answered");
    }

    /// As `run_until`, for a back end that is done at once.
    pub fn run<B: Backend>(&mut self, backend: &mut B, sent: Sent) -> (u8, u32) {
        self.run_until(backend, sent, |_| {})
    }

    /// The next request that was answered, and the bytes that were written.
    pub fn used(&mut self) -> Option<(Sent, u32)> {
        let (number, written) = self.driver.used()?;
        Some((self.sent.remove(&number).expect("it was sent"), written))
    }

    /// What is in the status byte.
    pub fn status(&self, sent: Sent) -> u8 {
        *self.all(sent).last().expect("it has one")
    }

    /// What is in the writable buffers before the status byte.
    pub fn data(&self, sent: Sent) -> Vec<u8> {
        let mut bytes = self.all(sent);
        bytes.pop();
        bytes
    }

    fn all(&self, sent: Sent) -> Vec<u8> {
        let mut all = Vec::new();
        for (at, len) in &self.writable[sent.0] {
            let mut bytes = vec![0; *len as usize];
            self.window.read(*at, &mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }
}

fn new_driver(window: Window, packed: bool) -> Box<dyn Driver> {
    driver::driver(&mut Heap::new(window, 0, BUFFERS), RING, features(packed))
}

fn features(packed: bool) -> virtqueue::Features {
    virtqueue::Features { indirect: true, event_index: true, packed }
}
