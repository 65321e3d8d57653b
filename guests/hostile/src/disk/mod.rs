//! Paravirtual disks, which a core of the host's serves for this VM and for others.
//!
//! Each attack counts what it did and what the device said of it, and fails if that isn't what the
//! standard asks for; at its end the disk must serve as if nothing had been.

pub mod ends;
pub mod messages;
pub mod packed;
pub mod raw;
pub mod registers;
pub mod requests;
pub mod rings;
pub mod starts;
pub mod together;

use crate::fixture;
use machine::{
    boot::Boot,
    console::check,
    virtio::{BLOCK, Virtio, feature, status},
    virtio_blk::{self as blk, Queue, Request, features, kind, status as outcome},
    virtqueue::{get, put},
    wait,
};

/// What is asked for where it is offered.
pub const WANTED: u64 = feature::VERSION_1
    | feature::EVENT_INDEX
    | feature::INDIRECT
    | features::FLUSH
    | features::MQ
    | features::DISCARD
    | features::WRITE_ZEROES;
/// Bytes of a request that is tried after an attack.
const TRIED: u32 = 4096;
const PATTERN: u64 = 0x0D15_C000_0000_5EED;

/// The disk, or a failed check.
pub fn needed(test: &str) -> Option<Virtio> {
    let disk = Virtio::all(BLOCK).next();
    if disk.is_none() {
        check!(test, false, "no paravirtual disk answers");
    }
    disk
}

/// Starts its first `queues` queues, without interrupts.
pub fn start(disk: &Virtio, queues: usize, boot: &Boot) -> bool {
    let started = blk::start(disk, disk.offered() & WANTED, queues, boot);
    (0..queues).for_each(|number| blk::queue(number).ring.be_quiet(true));
    started
}

/// Whether it says soon that it can't go on.
pub fn gives_up(disk: &Virtio) -> bool {
    wait::until(|| disk.status() & status::NEEDS_RESET != 0)
}

/// Puts requests of two pages in every free slot of a queue: reads and writes in turn.
pub fn fill(queue: &Queue, seed: u64) -> u64 {
    let mut n = 0;
    while let Some(slot) = queue.free_slot() {
        let kind = if (seed + n) & 1 == 0 { kind::IN } else { kind::OUT };
        queue.submit(slot, Request::new(kind, (seed + n) % 1024, blk::DATA));
        n += 1;
    }
    n
}

/// Takes out what has completed, and makes its slots free; how many there were.
pub fn collect(queue: &Queue) -> u64 {
    queue.poll();
    let mut n = 0;
    while let Some(slot) = queue.done_slot() {
        queue.release(slot);
        n += 1;
    }
    n
}

/// Waits until nothing is under way in these; whether it came to that.
pub fn idle(mut queues: impl Iterator<Item = &'static Queue>) -> bool {
    queues.all(|queue| {
        wait::patiently(|| {
            queue.poll();
            queue.under_way() == 0
        })
    })
}

/// Whatever there was, the disk can be reset and serves again.
pub fn afterwards(test: &str, disk: &Virtio, boot: &Boot) {
    let reset = disk.reset();
    let started = reset && start(disk, 1, boot);
    let queue = blk::queue(0);
    let words = |slot| (0..u64::from(TRIED) / 8).map(move |i| queue.data(slot) + 8 * i);
    let mut right = started;
    for kind in [kind::OUT, kind::IN] {
        let now = if kind == kind::OUT { PATTERN } else { 0 };
        words(0).for_each(|at| put(at, now ^ at));
        right = right && queue.one(Request::new(kind, 8, TRIED)).map(|o| o.0) == Some(outcome::OK);
    }
    let same = words(0).all(|at| get::<u64>(at) == PATTERN ^ at);
    let quiet = disk.reset();
    check!(test, right && same && quiet, "afterwards: started {started}, served {right}, {same}");
}

/// Where nothing of this VM's memory is: beyond it, across its end, in device registers, in the
/// disk's own.
pub fn elsewhere(disk: &Virtio, boot: &Boot) -> [u64; 12] {
    let (end, own) = (boot.memory_end(), disk.registers());
    [
        end,
        end - 16,
        end + (1 << 20),
        0x9000_0000,
        fixture::IOAPIC,
        fixture::LOCAL_APIC,
        fixture::LEDGER,
        own,
        disk.kicks() & !0xFFF,
        1 << 40,
        1 << 63,
        !0xF,
    ]
}
