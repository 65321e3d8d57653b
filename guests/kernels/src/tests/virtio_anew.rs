//! A queue that begins anew comes behind nobody and before nobody: a VM of the least weight has its
//! disk's queue begin anew as often as it can, beside a VM of the largest weight that always has
//! something to be served.
//!
//! Who came first by beginning anew would be served each time. By its weight it is served once in
//! hundreds of thousands of the heavy one's pieces: in a few of the rounds, however slow they are.

use super::virtio::started;
use crate::virtio_blk::{self as blk, Queue, Request, features, kind, status as outcome};
use crate::virtqueue::{Descriptor, INDIRECT, NEXT, WRITE, put};
use crate::{boot::Boot, console::check, console::typed, cpu, pci, virtio::feature, wait};

/// Requests of the heavy one, and buffers of each, all in the same memory: some gigabytes of reads
/// that move nothing.
const REQUESTS: u16 = 8;
const PIECES: u16 = 120;
const PIECE: u64 = 16 << 20;
/// Of a request: its header, its status byte, its table.
const STATUS: u64 = 16;
const TABLE: u64 = 64;
const PLACE: u64 = 0x1000;

/// How often the light one begins anew, and TSC ticks from one time to the next.
const ROUNDS: u64 = 40;
const PAUSE: u64 = 1_000_000;
/// TSC ticks that its requests take at the least where it isn't alone, and how often in a row.
const LONG: u64 = 20_000_000;
const IN_A_ROW: u64 = 3;

/// The heavy one: keeps its queue full until somebody types.
pub fn backlog(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    let places = queue.memory().end;
    let data = places + PLACE * u64::from(REQUESTS);
    if data + PIECE > boot.free_memory().end {
        return check!(test, false, "there is too little memory");
    }
    queue.ring.be_quiet(true);
    for number in 0..REQUESTS {
        let place = places + PLACE * u64::from(number);
        put(place, kind::IN);
        put(place + 8, 0_u64);
        let first = Descriptor { address: place, bytes: 16, flags: NEXT, next: 1 };
        first.put(place + TABLE, 0);
        for piece in 1..=PIECES {
            let (bytes, next) = (PIECE as u32, piece + 1);
            let piece_of = Descriptor { address: data, bytes, flags: NEXT | WRITE, next };
            piece_of.put(place + TABLE, piece);
        }
        let status = Descriptor { address: place + STATUS, bytes: 1, flags: WRITE, next: 0 };
        status.put(place + TABLE, PIECES + 1);
        let bytes = 16 * (u32::from(PIECES) + 2);
        let all = Descriptor { address: place + TABLE, bytes, flags: INDIRECT, next: 0 };
        all.put(queue.ring.descriptors(), number);
        queue.ring.publish(number);
    }
    let mut done = 0_u64;
    while typed().is_none() {
        while let Some((head, _)) = queue.ring.take() {
            queue.ring.publish(head as u16);
            done += 1;
        }
        wait::ticks(PAUSE);
    }
    check!(test, done > 0 && disk.reset(), "{done} requests, and a reset");
}

/// The light one.
pub fn anew(test: &str, boot: &Boot) {
    // What it wants kicks for is in a word of the ring then, which is written when it begins.
    let Some(disk) = started(test, boot, feature::EVENT_INDEX | features::MQ, 1) else { return };
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    // As much at a time as a turn is.
    check!(test, queue.be_wide(), "{} requests at a time", blk::WIDE);
    let mut long = 0;
    let beside = wait::patiently(|| {
        let start = cpu::tsc();
        fill(queue);
        let all = wait::patiently(|| taken(queue) && queue.under_way() == 0);
        let took = cpu::tsc().wrapping_sub(start);
        long = if all && took >= LONG { long + 1 } else { 0 };
        long == IN_A_ROW
    });
    check!(test, beside, "it waits for the other one");
    let (mut served, mut began) = (0, 0);
    for _ in 0..ROUNDS {
        fill(queue);
        disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER & 2);
        put(queue.ring.device(), 0_u16);
        disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        began += u64::from(wait::until(|| queue.ring.is_polled()));
        wait::ticks(PAUSE);
        served += u64::from(taken(queue));
    }
    let right = began == ROUNDS && served <= ROUNDS / 2;
    check!(test, right, "began anew {began} times, and was served {served} times");
}

/// Asks for as much as there is room for.
fn fill(queue: &Queue) {
    while let Some(slot) = queue.free_slot() {
        queue.submit(slot, Request::new(kind::IN, 0, blk::DATA));
    }
}

/// Takes out what is completed; whether something was.
fn taken(queue: &Queue) -> bool {
    queue.poll();
    let mut some = false;
    while let Some(slot) = queue.done_slot() {
        some |= queue.outcome(slot).0 == outcome::OK;
        queue.release(slot);
    }
    some
}
