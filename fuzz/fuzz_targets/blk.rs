//! A block device behind a driver that may be hostile: any chains, any words of its memory changed
//! at any time, resets, and a back end that ends its operations in any order.
#![no_main]

#[path = "../../crates/virtqueue/tests/driver/mod.rs"]
mod driver;

use arbitrary::Arbitrary;
use blk::config::{Config, Features, Parameters};
use blk::{
    Backend, Budget, Completion, Failure, LEAST_CHARGE, Operation, PIECE_DATA, PIECE_RANGE, SECTOR,
    Server, Submitted, Token,
};
use driver::{Buffer, Driver, Heap};
use libfuzzer_sys::fuzz_target;
use virtqueue::{Queue, State};
use window::{Memory, Span, Window};

const MEMORY: u64 = 1 << 20;
/// Rings are before it, buffers behind.
const RINGS: u64 = 1 << 14;
const RING: u16 = 16;
const PLACES: usize = 4;
const DMA: u64 = 1 << 40;

#[derive(Arbitrary, Debug)]
struct Input {
    packed: bool,
    read_only: bool,
    large_blocks: bool,
    capacity: u16,
    accepted: u64,
    room: u8,
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    /// A request as the standard has it, with any values.
    Ask {
        kind: u8,
        sector: u64,
        near: bool,
        range: [u32; 4],
        readable: u16,
        writable: u32,
        cut: u16,
    },
    /// A read or a write as nearly all drivers lay it out, so that it goes the fast way.
    Usual {
        writes: bool,
        sector: u16,
        sectors: u8,
        in_table: bool,
        data_is_writable: bool,
    },
    /// A chain of any buffers.
    Chain {
        indirect: bool,
        buffers: Vec<(u32, u32, bool)>,
    },
    /// The guest writes anything anywhere.
    Poke {
        at: u32,
        rings: bool,
        value: u64,
    },
    Serve,
    ServeSome {
        requests: u8,
        charge: u32,
    },
    End {
        place: u8,
        fails: bool,
    },
    /// A completion that was never due.
    Stray {
        bits: u64,
    },
    Publish,
    Reset,
}

/// Checks every operation, and does nothing else.
struct Storage {
    capacity: u64,
    block: u64,
    read_only: bool,
    durable: bool,
    room: usize,
    waiting: Vec<Token>,
    done: Vec<Completion>,
}

impl Storage {
    fn within(&self, sector: u64, bytes: u64, most: u32) {
        assert!(bytes > 0 && bytes <= most.into());
        assert!(bytes % self.block == 0 && sector * SECTOR % self.block == 0);
        assert!(sector <= self.capacity && bytes / SECTOR <= self.capacity - sector);
    }

    fn bytes(spans: &[Span]) -> u64 {
        for span in spans {
            let at = span.dma().checked_sub(DMA).expect("it is the guest's memory");
            assert!(!span.is_empty() && at <= MEMORY && span.len() <= MEMORY - at);
        }
        spans.iter().map(Span::len).sum()
    }
}

impl Backend for Storage {
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match operation {
            Operation::Read { sector, into } => self.within(sector, Self::bytes(into), PIECE_DATA),
            Operation::Write { sector, from, durable } => {
                assert!(!self.read_only && durable == self.durable);
                self.within(sector, Self::bytes(from), PIECE_DATA);
            }
            Operation::Flush => {}
            Operation::Discard { sector, sectors } => {
                assert!(!self.read_only);
                self.within(sector, sectors * SECTOR, PIECE_RANGE);
            }
            Operation::WriteZeroes { sector, sectors, durable, .. } => {
                assert!(!self.read_only && durable == self.durable);
                self.within(sector, sectors * SECTOR, PIECE_RANGE);
            }
        }
        if self.room == 0 {
            return Submitted::Done(Ok(()));
        }
        if self.waiting.len() >= self.room {
            return Submitted::Full;
        }
        assert!(!self.waiting.contains(&token) || self.waiting.len() < self.room);
        self.waiting.push(token);
        Submitted::Accepted
    }

    fn poll(&mut self) -> Option<Completion> {
        self.done.pop()
    }
}

struct Guest {
    window: Window,
    heap: Heap,
    driver: Box<dyn Driver>,
    server: Server<PLACES>,
    packed: bool,
    accepted: Features,
    /// The rings may hold anything: the driver isn't asked what was used.
    poked: bool,
}

impl Guest {
    fn features(packed: bool) -> virtqueue::Features {
        virtqueue::Features { indirect: true, event_index: true, packed }
    }

    fn new_driver(window: Window, packed: bool) -> Box<dyn Driver> {
        window.span(0, RINGS).expect("it is there").fill(0);
        driver::driver(&mut Heap::new(window, 0, RINGS), RING, Self::features(packed))
    }

    fn reset(&mut self) {
        self.server.stop();
        self.driver = Self::new_driver(self.window, self.packed);
        let features = Self::features(self.packed);
        let state = State::at_reset(features);
        let queue = Queue::new(&self.window, self.driver.layout(), features, state);
        self.server.start(queue.expect("the rings are in memory"), self.accepted);
        self.heap = Heap::new(self.window, RINGS, MEMORY);
        self.poked = false;
    }

    fn offer(&mut self, indirect: bool, buffers: &[Buffer]) {
        if indirect {
            // Three descriptors lie in the region that is looked at first, others elsewhere.
            let table = if buffers.len() == 3 { RINGS / 2 } else { MEMORY - 0x1000 };
            self.driver.add_indirect(table, &buffers[..buffers.len().min(256)]);
        } else {
            self.driver.add(buffers);
        }
    }
}

/// Cuts a buffer in two.
fn cut(buffer: Buffer, at: u32) -> [Buffer; 2] {
    let at = at.min(buffer.len);
    [
        Buffer { len: at, ..buffer },
        Buffer { address: buffer.address + u64::from(at), len: buffer.len - at, ..buffer },
    ]
}

fuzz_target!(|input: Input| {
    let block = if input.large_blocks { 4096 } else { 512 };
    let capacity = u64::from(input.capacity) / 8 * 8;
    let config = Config::new(Parameters {
        capacity,
        block_size: block,
        read_only: input.read_only,
        discard: 1 << 16,
        write_zeroes: 1 << 15,
        write_zeroes_may_unmap: true,
        ..Parameters::default()
    });
    let config = config.expect("there can be such a disk");
    let accepted = Features::from_bits_truncate(input.accepted) & config.features();
    let memory = Memory::new(&[(0, MEMORY / 2), (MEMORY / 2, MEMORY / 2)], DMA);
    let window = memory.window();
    let mut guest = Guest {
        window,
        heap: Heap::new(window, RINGS, MEMORY),
        driver: Guest::new_driver(window, input.packed),
        server: Server::new(config, 1),
        packed: input.packed,
        accepted,
        poked: false,
    };
    guest.reset();
    let mut storage = Storage {
        capacity,
        block: block.into(),
        read_only: input.read_only,
        durable: !accepted.contains(Features::FLUSH),
        room: usize::from(input.room) % 8,
        waiting: Vec::new(),
        done: Vec::new(),
    };
    for action in input.actions {
        match action {
            Action::Ask { kind, sector, near, range, readable, writable, cut: at } => {
                // Buffers may overlap: a guest is free to do so.
                guest.heap = Heap::new(window, RINGS, MEMORY);
                let mut bytes = [0; 32];
                bytes[0] = kind % 16;
                let sector = if near { sector % (capacity + 9) } else { sector };
                bytes[8..16].copy_from_slice(&sector.to_le_bytes());
                for (at, word) in range.iter().enumerate() {
                    bytes[16 + 4 * at..20 + 4 * at].copy_from_slice(&word.to_le_bytes());
                }
                let mut from = guest.heap.put(&bytes);
                from.len =
                    if near { 16 + u32::from(readable) / 256 * 256 } else { readable.into() };
                let mut into = guest.heap.room(0);
                into.len = if near { writable % 0x40000 / 512 * 512 + 1 } else { writable };
                let [first, second] = cut(from, at.into());
                let [third, fourth] = cut(into, u32::from(at) * 3);
                guest.offer(at % 2 == 0, &[first, second, third, fourth]);
            }
            Action::Usual { writes, sector, sectors, in_table, data_is_writable } => {
                guest.heap = Heap::new(window, RINGS, MEMORY);
                let mut bytes = [0; 16];
                bytes[0] = writes.into();
                bytes[8..10].copy_from_slice(&sector.to_le_bytes());
                let header = guest.heap.put(&bytes);
                let data = guest.heap.room(u32::from(sectors) * 512);
                let data = Buffer { writable: data_is_writable, ..data };
                let status = guest.heap.room(1);
                guest.offer(in_table, &[header, data, status]);
            }
            Action::Chain { indirect, buffers } => {
                let buffers: Vec<Buffer> = buffers
                    .iter()
                    .map(|(at, len, writable)| Buffer {
                        address: u64::from(at % (MEMORY as u32 + 64)),
                        len: *len,
                        writable: *writable,
                    })
                    .collect();
                guest.poked |= buffers.iter().any(|buffer| buffer.address < RINGS);
                guest.offer(indirect, &buffers);
            }
            Action::Poke { at, rings, value } => {
                let at = u64::from(at) % if rings { 0x800 } else { MEMORY };
                guest.poked |= at < RINGS;
                let _ = window.write(at, &value.to_le_bytes());
            }
            Action::Serve => {
                let before = guest.server.in_flight();
                let served = guest.server.serve(&window, &mut storage);
                let Ok(outcome) = served else {
                    assert_eq!(served, guest.server.serve(&window, &mut storage), "it stays so");
                    continue;
                };
                assert!(outcome.bytes <= u64::from(PIECE_DATA.max(PIECE_RANGE)));
                assert!(outcome.charge >= outcome.bytes && outcome.completed <= 1);
                assert!(!(outcome.more && outcome.full));
                assert_eq!(outcome.more, outcome.charge >= LEAST_CHARGE);
                assert!(guest.server.in_flight() <= before + 1);
            }
            Action::ServeSome { requests, charge } => {
                let budget = Budget { requests: requests.into(), charge: charge.into() };
                let before = guest.server.in_flight();
                let (done, served) = guest.server.serve_some(&window, &mut storage, budget);
                assert!(done.asked <= budget.requests.max(1));
                assert!(
                    done.charge < budget.charge.max(1) + u64::from(PIECE_DATA.max(PIECE_RANGE))
                );
                assert!(done.charge >= done.bytes && done.completed <= done.asked + 1);
                let in_flight = u32::from(guest.server.in_flight());
                assert!(in_flight <= u32::from(before) + done.asked + 1);
                if served.is_err() {
                    assert_eq!(served.err(), guest.server.serve(&window, &mut storage).err());
                }
            }
            Action::End { place, fails } => {
                if !storage.waiting.is_empty() {
                    let place = usize::from(place) % storage.waiting.len();
                    let token = storage.waiting.swap_remove(place);
                    let result = if fails { Err(Failure::Io) } else { Ok(()) };
                    storage.done.push(Completion { token, result });
                }
                guest.server.collect(&mut storage, 8);
            }
            Action::Stray { bits } => {
                let token = Token::from_bits(bits | 0x8000_0000);
                assert!(!guest.server.finish(Completion { token, result: Ok(()) }));
                // It was counted as if it had been accepted.
                if token.server == 1 {
                    return;
                }
            }
            Action::Publish => {
                if let Some(queue) = guest.server.queue() {
                    queue.publish();
                    queue.wants_call();
                }
                while !guest.poked && guest.driver.used().is_some() {}
            }
            Action::Reset => guest.reset(),
        }
        assert_eq!(storage.waiting.len() as u64, guest.server.outstanding());
        assert!(usize::from(guest.server.in_flight()) <= PLACES);
    }
    // All that was accepted ends, and then nothing is left but the open request.
    while let Some(token) = storage.waiting.pop() {
        guest.server.finish(Completion { token, result: Ok(()) });
    }
    assert_eq!(0, guest.server.outstanding());
    assert!(guest.server.in_flight() <= 1);
    guest.server.stop();
    assert_eq!(0, guest.server.in_flight());
});
