//! The driver's side of a virtqueue, for tests: what a guest's driver does by the standard.
//!
//! Taken in by path, so that other crates' tests and the fuzz targets use it as well:
//! `#[path = "../../virtqueue/tests/driver/mod.rs"] mod driver;`. It needs the crates `window`
//! (with the feature `memory`) and `virtqueue`.
//!
//! ```ignore
//! let memory = Memory::new(&[(0, 1 << 20)], 0);
//! let mut heap = Heap::new(memory.window(), 0x1000, 1 << 20);
//! let mut driver = driver(&mut heap, 16, features);      // lays the rings out
//! let mut queue: Queue =
//!     Queue::new(&memory.window(), driver.layout(), features, State::at_reset(features))?;
//! let buffers = [heap.put(b"header"), heap.room(512)];
//! let id = driver.add(&buffers).unwrap();                // visible to the device at once
//! if driver.kick() { … }                                 // would the driver notify?
//! // … the device takes, completes, publishes …
//! assert_eq!(driver.used(), Some((id, 512)));
//! ```
#![allow(dead_code)]

mod packed;
mod split;

pub use packed::PackedDriver;
pub use split::SplitDriver;

use virtqueue::{Broken, Chain, Features, Layout, Position, Queue};
use window::{Span, Window};

/// A piece of the guest's memory in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub address: u64,
    pub len: u32,
    /// The device may write it; else it may read it.
    pub writable: bool,
}

/// What a driver does with a queue. Chains are known by the number that [`add`](Driver::add) gives:
/// the head's index, or the buffer ID.
pub trait Driver {
    /// Where the rings are.
    fn layout(&self) -> Layout;
    /// Offers a chain of these buffers, in this order, at once; not if the ring has no room for it.
    fn add(&mut self, buffers: &[Buffer]) -> Option<u16>;
    /// As `add`, with an indirect table that is put at `table`.
    fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> Option<u16>;
    /// Whether the device wants a kick for what was added since this was last asked.
    fn kick(&mut self) -> bool;
    /// The next chain that the device is done with, and how many bytes it has written.
    fn used(&mut self) -> Option<(u16, u32)>;
    /// Wants a call when the next chain is used, then looks: false if one is used already. A driver
    /// that gets `true` may wait for the call.
    fn enable_calls(&mut self) -> bool;
    /// Wants no calls. With the event index of a split ring one may still come.
    fn disable_calls(&mut self);
}

/// The driver of a new queue, whose rings it puts into the heap.
pub fn driver(heap: &mut Heap, size: u16, features: Features) -> Box<dyn Driver> {
    let start = Position { index: 0, wrap: true };
    driver_at(heap, size, features, start)
}

/// The driver of a queue in which everything up to `start` is used.
pub fn driver_at(
    heap: &mut Heap,
    size: u16,
    features: Features,
    start: Position,
) -> Box<dyn Driver> {
    if features.packed {
        Box::new(PackedDriver::new(heap, size, features, start))
    } else {
        Box::new(SplitDriver::new(heap, size, features, start.index))
    }
}

/// Hands out pieces of memory, one behind the other.
#[derive(Clone, Debug)]
pub struct Heap {
    pub window: Window,
    next: u64,
    end: u64,
}

impl Heap {
    pub fn new(window: Window, start: u64, end: u64) -> Heap {
        Heap { window, next: start, end }
    }

    /// `len` bytes at a multiple of `alignment`.
    pub fn take(&mut self, len: u64, alignment: u64) -> u64 {
        let at = self.next.next_multiple_of(alignment);
        self.next = at + len;
        assert!(self.next <= self.end, "the test's memory is too small");
        at
    }

    /// A readable buffer with these bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Buffer {
        let address = self.take(bytes.len() as u64, 1);
        self.window.write(address, bytes).expect("the heap is in the window");
        Buffer { address, len: bytes.len() as u32, writable: false }
    }

    /// A writable buffer of so many bytes.
    pub fn room(&mut self, len: u32) -> Buffer {
        Buffer { address: self.take(len.into(), 1), len, writable: true }
    }

    fn area(&mut self, len: u64, alignment: u64) -> (u64, Span) {
        let at = self.take(len, alignment);
        (at, self.window.span(at, len).expect("the heap is in one region"))
    }
}

/// Takes a chain as a disk's server does, which looks for those of three buffers first: the same as
/// [`Queue::take`].
pub fn take_framed(queue: &mut Queue, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
    let Queue::Split(split) = queue else { return queue.take(window, chain) };
    let mut untaken = None;
    let taken = match split.has_tables() {
        true => split.take_framed::<16, 1, true>(window, &mut untaken),
        false => split.take_framed::<16, 1, false>(window, &mut untaken),
    };
    match (taken, untaken) {
        (Some(framed), _) => {
            split.hold_framed(&framed);
            framed.put(chain);
            Ok(true)
        }
        (None, None) => Ok(false),
        (None, Some(seen)) => queue.take_other(&seen, window, chain),
    }
}

/// The bytes of a descriptor: `last` is flags and next of a split one, ID and flags of a packed.
fn descriptor(address: u64, len: u32, last: [u16; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&last[0].to_le_bytes());
    bytes[14..].copy_from_slice(&last[1].to_le_bytes());
    bytes
}

/// Whether an event index asks for a notification, as the standard's
/// `vring_need_event` says it.
fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
