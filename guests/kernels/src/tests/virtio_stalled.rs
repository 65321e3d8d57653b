//! Writes that complete one by one while reads of the same queue never do: each interrupt that is
//! held back for more completions is sent all the same, though none come.
//!
//! The CPU sleeps until it is interrupted, and has no timer: a lost interrupt stops the test.

use super::virtio::{SECTOR, WANTED, disk};
use super::virtio_load::VECTOR;
use crate::virtio_blk::{self as blk, Request, kind, status as outcome};
use crate::{boot::Boot, console::check, console::println, cpu, idt, x2apic};

/// Reads that are under way all the time: so many that a part of the completions is held back.
const READS: usize = 24;
/// Writes, one after the other.
const WRITES: u64 = 300;

/// The machine's reads go on when the test says `told`.
pub fn stalled(test: &str, boot: &Boot) {
    let Some(disk) = disk(test) else { return };
    if !blk::start(&disk, disk.offered() & WANTED, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    // Not the first slot, which writes have.
    for slot in 1..=READS {
        queue.submit(slot, Request::new(kind::IN, 0, blk::DATA));
    }
    let right = (0..WRITES).filter(|_| {
        queue.submit(0, Request::new(kind::OUT, 0, SECTOR));
        while queue.done_slot() != Some(0) {
            cpu::halt_until_interrupt();
        }
        let said = queue.outcome(0).0;
        queue.release(0);
        said == outcome::OK
    });
    let right = right.count() as u64;
    let (reads, came) = (queue.under_way(), idt::count(VECTOR));
    println!("told");
    let account = queue.account();
    // One read may be had before the machine's limit holds.
    let stalled = reads >= READS - 1 && account.by_poll == 0 && account.odd == 0;
    check!(test, right == WRITES && came >= WRITES, "{right} writes, {came} interrupts");
    check!(test, stalled, "{reads} reads under way, {account:?}");
    while queue.under_way() > 0 {
        cpu::halt_until_interrupt();
    }
    check!(test, disk.reset(), "it can be reset");
}
