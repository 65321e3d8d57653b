//! virtio-blk beside those who attack the core that serves it: writes and reads, each compared,
//! until somebody types that it is enough; and what was written first is there at last.
//!
//! By interrupts alone, so that a lost one is a test that comes to a stop. Any interrupt but its
//! own is one that others sent it.

use super::virtio::{SECTOR, WANTED, disk, fill, holds};
use super::virtio_load::{REGION, VECTOR, run, verdict};
use crate::virtio_blk::{self as blk, Queue, Request, kind, status as outcome};
use crate::{
    boot::Boot, console::check, console::println, console::typed, cpu, idt, virtio::status, x2apic,
};

/// Rounds of writing and comparing at the least; there are more while nobody types.
const ROUNDS: u64 = 4;
/// Requests of a round: each sector of a region is written, and read.
const REQUESTS: u64 = 2 * REGION;
/// Regions that rounds go through in turn; the one behind them is kept.
const REGIONS: u64 = 8;
const KEPT: core::ops::Range<u64> = REGION * REGIONS..REGION * REGIONS + 64;
const SEED: u64 = 0x51C7_1ED0;

/// The loop.
pub fn victim(test: &str, boot: &Boot) {
    let Some(disk) = disk(test) else { return };
    let features = disk.offered() & WANTED;
    if !blk::start(&disk, features, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::enable_interrupts();
    let kept = kept(queue, kind::OUT);
    check!(test, kept == KEPT.end - KEPT.start, "{kept} sectors are written to be kept");
    let (mut rounds, mut wrong, mut enough) = (0, 0, false);
    while rounds < ROUNDS || !enough {
        let load = run(queue, rounds % REGIONS * REGION, REQUESTS, |_| true);
        wrong += load.wrong + (REQUESTS - load.done);
        rounds += 1;
        enough |= typed().is_some();
        if load.done < REQUESTS {
            verdict(test, "stopped", queue, load, REQUESTS);
            break;
        }
    }
    println!("rounds={rounds}");
    let account = queue.account();
    let right = wrong == 0 && account.balances() && account.by_poll == 0;
    check!(test, right, "{rounds} rounds of {REQUESTS} requests, {wrong} wrong, {account:?}");
    let same = self::kept(queue, kind::IN);
    check!(test, same == KEPT.end - KEPT.start, "{same} sectors were kept");
    let others = idt::everything() - idt::total(VECTOR);
    check!(test, others == 0, "{others} interrupts that aren't its own");
    let needs_reset = disk.status() & status::NEEDS_RESET != 0;
    check!(test, !needs_reset, "its queue was never given up");
}

/// Writes what is kept, or reads it; how many sectors are right.
fn kept(queue: &Queue, kind: u32) -> u64 {
    let right = |sector: &u64| {
        fill(queue, 0, *sector, SECTOR, if kind == kind::OUT { SEED } else { !SEED });
        let said = queue.one(Request::new(kind, *sector, SECTOR)).map(|o| o.0);
        said == Some(outcome::OK) && holds(queue, 0, *sector, SECTOR, SEED)
    };
    KEPT.filter(right).count() as u64
}
