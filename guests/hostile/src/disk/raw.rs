//! A queue whose driver keeps to nothing: descriptors, heads and indices are what an attack says.

use super::WANTED;
use machine::{
    boot::Boot,
    cpu,
    virtio::{NO_VECTOR, Virtio},
    virtio_blk::{self as blk, kind, status},
    virtqueue::{Descriptor, NEXT, RING_BYTES, WRITE, get, put},
    wait,
};

/// Entries of the ring.
pub const SIZE: u16 = 128;
/// Bytes of the three areas of such a ring, with event indices.
pub const AREAS: [u64; 3] = [16 * SIZE as u64, 6 + 2 * SIZE as u64, 6 + 8 * SIZE as u64];
/// Memory of one.
pub const BYTES: u64 = 0x1_0000;

/// A queue of [`SIZE`] entries.
pub struct Raw {
    /// Where its memory is, a page's start.
    pub base: u64,
    /// Where its ring is: descriptors, the driver's area, the device's.
    pub areas: [u64; 3],
}

impl Raw {
    /// The one of this number, its areas one behind the other, all zero.
    pub fn new(boot: &Boot, number: u64) -> Raw {
        let first = boot.free_memory().start.next_multiple_of(0x1000);
        // Behind the queues of the driver that keeps to the standard.
        let base = first + blk::QUEUE_BYTES * blk::QUEUES as u64 + BYTES * number;
        let raw = Raw { base, areas: [base, base + 0x1000, base + 0x2000] };
        raw.clear();
        raw
    }

    /// All its memory is zero.
    pub fn clear(&self) {
        (0..BYTES / 8).for_each(|i| put(self.base + 8 * i, 0u64));
    }

    /// Resets the disk and has it serve this as its queue of this number; whether it took all that.
    pub fn start(&self, disk: &Virtio, queue: u16) -> bool {
        let taken = disk.negotiate(disk.offered() & WANTED);
        disk.place(queue, SIZE, self.areas, NO_VECTOR);
        disk.go();
        taken
    }

    /// Where a request's header is.
    pub fn header(&self) -> u64 {
        self.base + RING_BYTES
    }

    /// Where its status byte is.
    pub fn status(&self) -> u64 {
        self.header() + 0x800
    }

    /// Where its indirect table is, of three pages.
    pub fn table(&self) -> u64 {
        self.base + 0x4000
    }

    /// Where its data is.
    pub fn data(&self) -> u64 {
        self.base + 0x8000
    }

    /// Puts descriptors into a table, from its first place on, as they are.
    pub fn put(&self, table: u64, chain: &[Descriptor]) {
        (0..).zip(chain).for_each(|(index, descriptor)| descriptor.put(table, index));
    }

    /// A good request in the first three descriptors: a read of a sector.
    pub fn put_good(&self) {
        put(self.header(), kind::IN);
        put(self.header() + 8, 0u64);
        put(self.status(), status::NONE);
        let chain = [
            Descriptor { address: self.header(), bytes: 16, flags: NEXT, next: 1 },
            Descriptor { address: self.data(), bytes: 512, flags: NEXT | WRITE, next: 2 },
            Descriptor { address: self.status(), bytes: 1, flags: WRITE, next: 0 },
        ];
        self.put(self.areas[0], &chain);
    }

    /// The driver's index.
    pub fn index(&self) -> u16 {
        get(self.areas[1] + 2)
    }

    /// Sets it.
    pub fn set_index(&self, index: u16) {
        cpu::fence();
        put(self.areas[1] + 2, index);
    }

    /// Offers a chain.
    pub fn offer(&self, head: u16) {
        let index = self.index();
        put(self.areas[1] + 4 + 2 * u64::from(index % SIZE), head);
        self.set_index(index.wrapping_add(1));
    }

    /// The device's index.
    pub fn used(&self) -> u16 {
        get(self.areas[2] + 2)
    }

    /// Whether so many chains are used soon.
    pub fn uses(&self, chains: u16) -> bool {
        wait::until(|| self.used() == chains)
    }
}
