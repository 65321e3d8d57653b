//! Requests as large and as many as there may be: what they cost the host is its own matter, and no
//! other VM's.

use super::{afterwards, collect, idle, needed, start};
use machine::{
    boot::Boot,
    console::check,
    virtio_blk::{self as blk, Request, kind, status as outcome},
    virtqueue::put,
};

/// Rounds of every slot of every queue.
const ROUNDS: u64 = 4;
/// Sectors of the disk, at the most.
const MOST: u64 = 1 << 20;

/// Discards and write-zeroes of the whole disk and beyond it, flushes, reads of all sizes, in all
/// queues at once.
pub fn largest(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let count = usize::from(disk.queues()).min(blk::QUEUES);
    let sectors = u64::from(disk.config(0)) | u64::from(disk.config(4)) << 32;
    if !start(&disk, count, boot) || !(1..=MOST).contains(&sectors) {
        return check!(test, false, "{count} queues of {sectors} sectors don't start");
    }
    let (mut begun, mut done, mut wrong) = (0, 0, 0);
    for round in 0..ROUNDS {
        for queue in (0..count).map(blk::queue) {
            for slot in 0..blk::DEPTH {
                let what = (round + slot as u64) % 8;
                let kind = match what {
                    0 | 1 => kind::DISCARD,
                    2..=4 => kind::WRITE_ZEROES,
                    5 => kind::FLUSH,
                    _ => kind::IN,
                };
                // The whole disk, nothing, more than there is, more than may be asked for at once.
                let [first, count, flags] = match what {
                    1 => [1, sectors, 0],
                    4 => [u64::MAX, u64::from(u32::MAX), 1],
                    _ => [0, sectors, slot as u64 >> 3 & 1],
                };
                put(queue.data(slot), first);
                put(queue.data(slot) + 8, count as u32);
                put(queue.data(slot) + 12, flags as u32 & u32::from(kind == kind::WRITE_ZEROES));
                let bytes = match kind {
                    kind::FLUSH => 0,
                    kind::IN => blk::DATA,
                    _ => 16,
                };
                queue.submit(slot, Request::new(kind, slot as u64, bytes));
                begun += 1;
            }
        }
        for queue in (0..count).map(blk::queue) {
            if !idle([queue].into_iter()) {
                return check!(test, false, "{} requests never complete", queue.under_way());
            }
            for slot in 0..blk::DEPTH {
                let wanted = if matches!((round + slot as u64) % 8, 1 | 4) {
                    outcome::IOERR
                } else {
                    outcome::OK
                };
                wrong += u32::from(queue.outcome(slot).0 != wanted);
            }
            done += collect(queue);
        }
    }
    check!(test, done == begun && wrong == 0, "{done} of {begun} requests, {wrong} wrong");
    afterwards(test, &disk, boot);
}
