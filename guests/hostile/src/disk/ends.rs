//! A VM that ends with requests under way, by a reset and by a fault.

use super::{afterwards, fill, needed, start};
use crate::ends;
use machine::{
    boot::Boot, console::check, console::println, lives, random::Random, virtio_blk as blk, wait,
};

/// Resets of the VM.
const LIVES: u64 = 5;

/// Resets itself in the middle of I/O, again and again; then its disk is as new.
pub fn reboot(test: &str, boot: &Boot) {
    let life = lives::lives();
    println!("life {life}");
    let Some(disk) = needed(test) else { return };
    let status = disk.status();
    check!(test, status == 0, "life {life}: the device's status is {status:#x}");
    if life < LIVES {
        under_way(boot, life);
        lives::reset();
    }
    afterwards(test, &disk, boot);
}

/// Ends by a fault in the middle of I/O.
pub fn fault(test: &str, boot: &Boot) {
    under_way(boot, 0);
    ends::triple_fault(test, boot);
}

/// Fills all queues, a moment before the end.
fn under_way(boot: &Boot, life: u64) {
    let Some(disk) = needed("under-way") else { return };
    let count = usize::from(disk.queues()).min(blk::QUEUES);
    let started = start(&disk, count, boot);
    let n: u64 = (0..count).map(|number| fill(blk::queue(number), life)).sum();
    let wanted = (count * blk::DEPTH) as u64;
    check!("under-way", started && n == wanted, "{n} requests in {count} queues");
    wait::ticks(Random::new(life + 1).number() % 50_000);
}
