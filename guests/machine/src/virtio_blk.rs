//! A driver of virtio-blk (virtio 1.2, 5.2), for tests: a block device's queues, each with slots
//! for requests. Completions are taken out by the handler of the queue's interrupt or by polling,
//! and which of them it was is counted.
//!
//! Guarantees: each request completes once, or an oddity is counted; a handler on one CPU and
//! another on the next don't take the same completion, and leave none. One CPU at a time submits to
//! a queue.

use crate::{
    boot::Boot,
    idt,
    idt::Frame,
    virtio::{self, Virtio, feature},
    virtqueue::{self, Descriptor, MAX_SIZE, NEXT, RING_BYTES, Ring, WRITE, get, put},
    wait, x2apic,
};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Features of block devices (5.2.3).
pub mod features {
    /// VIRTIO_BLK_F_SEG_MAX.
    pub const SEG_MAX: u64 = 1 << 2;
    /// VIRTIO_BLK_F_RO.
    pub const RO: u64 = 1 << 5;
    /// VIRTIO_BLK_F_BLK_SIZE.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// VIRTIO_BLK_F_FLUSH.
    pub const FLUSH: u64 = 1 << 9;
    /// VIRTIO_BLK_F_MQ.
    pub const MQ: u64 = 1 << 12;
    /// VIRTIO_BLK_F_DISCARD.
    pub const DISCARD: u64 = 1 << 13;
    /// VIRTIO_BLK_F_WRITE_ZEROES.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Kinds of requests (5.2.6).
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Read the serial number.
    pub const GET_ID: u32 = 8;
    /// Discard.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// What a request comes to.
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// An error.
    pub const IOERR: u8 = 1;
    /// Such requests aren't served.
    pub const UNSUPP: u8 = 2;
    /// What stands there before.
    pub const NONE: u8 = 0xAA;
}

/// Queues that there is room for.
pub const QUEUES: usize = 4;
/// Requests under way in a queue.
pub const DEPTH: usize = 32;
/// The same of a queue that was made wide.
pub const WIDE: usize = 64;
/// Bytes of data that a request may have.
pub const DATA: u32 = 0x2000;
/// Descriptors of a slot: header, two pieces of data, status.
const CHAIN: u16 = MAX_SIZE / DEPTH as u16;
/// A page for header, status and indirect table; the data.
const SLOT: u64 = 0x1000 + DATA as u64;
const STATUS: u64 = 16;
const TABLE: u64 = 64;
/// Memory of a queue with its slots.
pub const QUEUE_BYTES: u64 = RING_BYTES + SLOT * WIDE as u64;

/// A request.
#[derive(Clone, Copy)]
pub struct Request {
    /// One of [`kind`], or another.
    pub kind: u32,
    /// Where.
    pub sector: u64,
    /// Bytes of data, at most [`DATA`].
    pub bytes: u32,
    /// Its data is in two descriptors of these sizes together.
    pub first: u32,
}

impl Request {
    /// One whose data is in one piece.
    pub const fn new(kind: u32, sector: u64, bytes: u32) -> Request {
        Request { kind, sector, bytes, first: bytes }
    }

    fn device_writes(self) -> bool {
        matches!(self.kind, kind::IN | kind::GET_ID)
    }
}

const FREE: u8 = 0;
const BUSY: u8 = 1;
const DONE: u8 = 2;

struct Slot {
    state: AtomicU8,
    written: AtomicU32,
}

/// A queue.
pub struct Queue {
    /// Its ring.
    pub ring: Ring,
    indirect: AtomicBool,
    wide: AtomicBool,
    entry: AtomicU16,
    slots: [Slot; WIDE],
    /// Handlers that came while one was at work, and that one.
    draining: AtomicU64,
    submitted: AtomicU64,
    by_interrupt: AtomicU64,
    by_poll: AtomicU64,
    odd: AtomicU64,
}

static ALL: [Queue; QUEUES] = [const {
    Queue {
        ring: Ring::new(),
        indirect: AtomicBool::new(false),
        wide: AtomicBool::new(false),
        entry: AtomicU16::new(0),
        slots: [const { Slot { state: AtomicU8::new(FREE), written: AtomicU32::new(0) } }; WIDE],
        draining: AtomicU64::new(0),
        submitted: AtomicU64::new(0),
        by_interrupt: AtomicU64::new(0),
        by_poll: AtomicU64::new(0),
        odd: AtomicU64::new(0),
    }
}; QUEUES];

/// Which queue's interrupt comes at a vector.
static BY_VECTOR: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

/// Completions of a queue, and what else there is to know at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Requests.
    pub submitted: u64,
    /// Completions that an interrupt's handler took out.
    pub by_interrupt: u64,
    /// Those that were polled for.
    pub by_poll: u64,
    /// Completions of nothing.
    pub odd: u64,
}

impl Account {
    /// Whether each request completed once.
    pub fn balances(self) -> bool {
        self.submitted == self.by_interrupt + self.by_poll && self.odd == 0
    }
}

/// A queue by its number.
pub fn queue(number: usize) -> &'static Queue {
    &ALL[number]
}

/// Negotiates these features and sets up the first `queues` queues, each with the MSI-X entry after
/// its number; interrupts are wanted, but no entry is unmasked. Says whether it all went well.
pub fn start(virtio: &Virtio, features: u64, queues: usize, boot: &Boot) -> bool {
    let free = boot.free_memory();
    let first = free.start.next_multiple_of(0x1000);
    let room = free.end.saturating_sub(first) / QUEUE_BYTES;
    if !virtio.negotiate(features) || (room as usize) < queues.min(QUEUES) {
        return false;
    }
    let all = ALL.iter().take(queues).enumerate().all(|(number, queue)| {
        let base = first + QUEUE_BYTES * number as u64;
        let size = virtio.size(number as u16).min(MAX_SIZE);
        queue.set_up(base, size, features);
        queue.entry.store(number as u16 + 1, SeqCst);
        let kick = virtio.set_up(number as u16, &queue.ring, number as u16 + 1);
        queue.ring.set_kick(kick.unwrap_or(base), number as u16);
        kick.is_some() && size == MAX_SIZE
    });
    virtio.go();
    all && virtio.status() & virtio::status::NEEDS_RESET == 0
}

/// Has a queue's interrupts come to a CPU at a vector.
pub fn handle(virtio: &Virtio, number: usize, cpu: usize, vector: u8) {
    BY_VECTOR[usize::from(vector)].store(number as u8, SeqCst);
    idt::on(vector, handler);
    virtio.route(ALL[number].entry(), cpu, vector);
}

fn handler(frame: &mut Frame) {
    let number = BY_VECTOR[frame.vector as usize].load(SeqCst);
    if let Some(queue) = ALL.get(usize::from(number)) {
        queue.drain(&queue.by_interrupt);
    }
    x2apic::complete();
}

impl Queue {
    fn set_up(&self, base: u64, size: u16, features: u64) {
        self.ring.set_up(base, size, features);
        self.indirect.store(features & feature::INDIRECT != 0, SeqCst);
        self.wide.store(false, SeqCst);
        self.slots.iter().for_each(|slot| slot.state.store(FREE, SeqCst));
        for count in [&self.draining, &self.submitted, &self.by_interrupt, &self.by_poll, &self.odd]
        {
            count.store(0, SeqCst);
        }
    }

    /// Its MSI-X entry.
    pub fn entry(&self) -> u16 {
        self.entry.load(SeqCst)
    }

    /// What was counted since it was set up.
    pub fn account(&self) -> Account {
        Account {
            submitted: self.submitted.load(SeqCst),
            by_interrupt: self.by_interrupt.load(SeqCst),
            by_poll: self.by_poll.load(SeqCst),
            odd: self.odd.load(SeqCst),
        }
    }

    /// Whether chains have one descriptor in the ring, where the device takes that.
    pub fn be_indirect(&self, indirect: bool) {
        self.indirect.store(indirect, SeqCst);
    }

    /// Has [`WIDE`] slots from now on, where the device takes indirect chains; says whether it
    /// does.
    pub fn be_wide(&self) -> bool {
        let wide = self.indirect.load(SeqCst);
        self.wide.store(wide, SeqCst);
        wide
    }

    /// The first descriptor of a slot's chain. One of the upper half has a single one, between
    /// those of a slot of the lower half, which uses its first alone meanwhile.
    fn head(slot: usize) -> u16 {
        CHAIN * (slot % DEPTH) as u16 + (slot / DEPTH) as u16
    }

    fn place(&self, slot: usize) -> u64 {
        self.ring.descriptors() + RING_BYTES + SLOT * slot as u64
    }

    /// Where a slot's data is.
    pub fn data(&self, slot: usize) -> u64 {
        self.place(slot) + 0x1000
    }

    /// The memory of the ring and of all slots.
    pub fn memory(&self) -> core::ops::Range<u64> {
        let base = self.ring.descriptors();
        base..base + QUEUE_BYTES
    }

    /// A slot that no request has.
    pub fn free_slot(&self) -> Option<usize> {
        let slots = if self.wide.load(SeqCst) { WIDE } else { DEPTH };
        self.slots.iter().take(slots).position(|slot| slot.state.load(SeqCst) == FREE)
    }

    /// How many requests are under way.
    pub fn under_way(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state.load(SeqCst) == BUSY).count()
    }

    /// Submits a request in a free slot, whose data the caller has put there.
    pub fn submit(&self, slot: usize, request: Request) {
        let place = self.place(slot);
        put(place, request.kind);
        put(place + 4, 0u32);
        put(place + 8, request.sector);
        put(place + STATUS, status::NONE);
        let first = request.first.min(request.bytes);
        let write = if request.device_writes() { WRITE } else { 0 };
        let mut chain = [
            (place, 16, 0),
            (self.data(slot), first, write),
            (self.data(slot) + u64::from(first), request.bytes - first, write),
            (place + STATUS, 1, WRITE),
        ];
        // Empty buffers aren't chained.
        let used = {
            let mut used = 0;
            for i in 0..chain.len() {
                if chain[i].1 > 0 {
                    chain[used] = chain[i];
                    used += 1;
                }
            }
            used
        };
        let head = Queue::head(slot);
        let indirect = self.indirect.load(SeqCst);
        let (table, from) =
            if indirect { (place + TABLE, 0) } else { (self.ring.descriptors(), head) };
        for (i, (address, bytes, flags)) in chain.into_iter().take(used).enumerate() {
            let more = if i + 1 < used { NEXT } else { 0 };
            let index = from + i as u16;
            Descriptor { address, bytes, flags: flags | more, next: index + 1 }.put(table, index);
        }
        if indirect {
            let (bytes, flags) = (16 * used as u32, virtqueue::INDIRECT);
            let whole = Descriptor { address: table, bytes, flags, next: 0 };
            whole.put(self.ring.descriptors(), head);
        }
        self.slots[slot].state.store(BUSY, SeqCst);
        self.submitted.fetch_add(1, SeqCst);
        self.ring.publish(head);
    }

    /// Takes out what has completed, without an interrupt.
    pub fn poll(&self) {
        self.drain(&self.by_poll);
    }

    /// Takes out what has completed. Where several do at once, the first does it for all.
    fn drain(&self, how: &AtomicU64) {
        if self.draining.fetch_add(1, SeqCst) > 0 {
            return;
        }
        loop {
            let asked = self.draining.load(SeqCst);
            loop {
                while let Some((head, written)) = self.ring.take() {
                    self.completed(head, written, how);
                }
                if !self.ring.ask() {
                    break;
                }
            }
            if self.draining.fetch_sub(asked, SeqCst) == asked {
                return;
            }
        }
    }

    fn completed(&self, head: u32, written: u32, how: &AtomicU64) {
        let (slot, rest) = (head / u32::from(CHAIN), head % u32::from(CHAIN));
        let upper = usize::from(rest == 1 && self.wide.load(SeqCst));
        let slot = (slot as usize).checked_add(upper * DEPTH);
        let slot = slot.filter(|_| rest == upper as u32).and_then(|slot| self.slots.get(slot));
        let Some(slot) = slot else {
            self.odd.fetch_add(1, SeqCst);
            return;
        };
        slot.written.store(written, SeqCst);
        match slot.state.compare_exchange(BUSY, DONE, SeqCst, SeqCst) {
            Ok(_) => how.fetch_add(1, SeqCst),
            Err(_) => self.odd.fetch_add(1, SeqCst),
        };
    }

    /// A slot whose request has completed and wasn't released.
    pub fn done_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.state.load(SeqCst) == DONE)
    }

    /// What a completed request came to, and how many bytes the device says it wrote.
    pub fn outcome(&self, slot: usize) -> (u8, u32) {
        (get(self.place(slot) + STATUS), self.slots[slot].written.load(SeqCst))
    }

    /// Makes a slot free.
    pub fn release(&self, slot: usize) {
        self.slots[slot].state.store(FREE, SeqCst);
    }

    /// One request, polled for or, unless the ring is quiet, waited for; none if it never
    /// completes. Its data is in slot 0, which must be free.
    pub fn one(&self, request: Request) -> Option<(u8, u32)> {
        self.submit(0, request);
        let done = || {
            if self.ring.is_quiet() {
                self.poll();
            }
            self.slots[0].state.load(SeqCst) == DONE
        };
        let outcome = wait::patiently(done).then(|| self.outcome(0));
        if outcome.is_some() {
            self.release(0);
        }
        outcome
    }
}
