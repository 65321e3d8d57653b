//! A disk whose VM's sidecore may serve so many requests a second, and no more.
//!
//! Options: `iops=N`. The clock is the ACPI PM timer of QEMU's q35, which the guest may read.

use super::virtio::started;
use super::virtio_load::{run, verdict};
use crate::{boot::Boot, console::check, cpu, virtio_blk as blk};

/// The PM timer: its port, its ticks in a second, and its bits.
const PORT: u16 = 0x608;
const HZ: u64 = 3_579_545;
const MASK: u32 = 0xFF_FFFF;
/// Requests, all of which may be under way at once.
const REQUESTS: u64 = 200;
/// The part of a second for which a limit is saved up (`sidecore::Settings::burst`).
const SAVED: u64 = 100;
/// The host's clock is exact to this part (`cpu::time::EXACT_TO` of the hypervisor).
const HOST_CLOCK: u64 = 10_000;

/// Requests take as long as their number says, less what was saved up and the last one.
pub fn limit(test: &str, boot: &Boot) {
    let Some(iops) = boot.option("iops").and_then(|n| n.parse::<u64>().ok()) else {
        return check!(test, false, "no option iops=N");
    };
    let Some(_disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    let now = || cpu::inl(PORT) & MASK;
    let (mut last, mut ticks) = (now(), 0_u64);
    let mut look = || {
        let new = now();
        ticks += u64::from(new.wrapping_sub(last) & MASK);
        last = new;
    };
    let load = run(queue, 0, REQUESTS, |queue| {
        // Looked at more often than it overflows, which is after 4.7 s.
        look();
        queue.poll();
        true
    });
    // The last answer may have come long after the look before it was polled for.
    look();
    verdict(test, "limited", queue, load, REQUESTS);
    let paid = REQUESTS - 1 - iops / SAVED;
    let least = paid * HZ / iops;
    let least = least - least / HOST_CLOCK;
    check!(test, ticks >= least, "{REQUESTS} requests took {ticks} ticks, {least} at the least");
}
