//! virtio-blk and several CPUs: a queue of its own for each, and an interrupt that goes from CPU to
//! CPU and from vector to vector while requests complete.

use super::virtio::started;
use super::virtio_load::{Load, REGION, run, verdict};
use crate::virtio_blk as blk;
use crate::{
    boot::Boot, console::check, counters::Window, cpu, idt, random::Random, smp, virtio::Virtio,
    wait,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Requests of each queue.
const REQUESTS: u64 = 6_000;
/// Requests while the interrupt moves; as many again, so often at the most, until each CPU has had
/// one: on a busy machine the others' moves are few.
const MOVED: u64 = 4_000;
const AGAIN: u64 = 64;
/// Of as many CPUs as queues there is room for, each its own.
const VECTORS: [u8; blk::QUEUES] = [0x41, 0x63, 0x85, 0xA7];
const SEED: u64 = 0x30FE_D15C;

static DONE: [AtomicU64; blk::QUEUES] = [const { AtomicU64::new(0) }; blk::QUEUES];
static WRONG: [AtomicU64; blk::QUEUES] = [const { AtomicU64::new(0) }; blk::QUEUES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LEAVE: AtomicU64 = AtomicU64::new(0);
static ROUTED: AtomicU64 = AtomicU64::new(0);
/// The most ticks of the TSC between two moves.
static PACE: AtomicU64 = AtomicU64::new(0);

/// Each CPU has a queue with a vector, all at once; none gets another's interrupt.
pub fn queues(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    let count = count.min(blk::QUEUES);
    let Some(disk) = started(test, boot, 0, count) else { return };
    for (cpu, vector) in VECTORS.into_iter().enumerate().take(count) {
        blk::handle(&disk, cpu, cpu, vector);
    }
    let windows: [Window; blk::QUEUES] = core::array::from_fn(Window::of);
    let done = smp::all(count, |cpu| {
        let load = run(blk::queue(cpu), REGION * cpu as u64, REQUESTS, |_| true);
        DONE[cpu].store(load.done, SeqCst);
        WRONG[cpu].store(load.wrong, SeqCst);
    });
    let counted = windows.map(Window::close);
    check!(test, done, "all {count} CPUs come to the end");
    for (cpu, vector) in VECTORS.into_iter().enumerate().take(count) {
        let queue = blk::queue(cpu);
        let account = queue.account();
        let (done, wrong) = (DONE[cpu].load(SeqCst), WRONG[cpu].load(SeqCst));
        let good = done == REQUESTS && wrong == 0 && account.balances() && account.by_poll == 0;
        check!(test, good, "queue {cpu}: {done} of {REQUESTS}, {wrong} wrong, {account:?}");
        let (own, all) = (idt::count_on(cpu, vector), idt::total(vector));
        check!(test, own > 0 && own == all, "{own} of its {all} interrupts came to its CPU");
    }
    // To give the others their work, and to wake them, takes an IPI each.
    let jobs = count as u64;
    counted[..count].iter().for_each(|c| c.expect_at_most(test, 2 + jobs));
    check!(test, disk.reset(), "it can be reset");
}

/// One CPU's load; another points its interrupt at random CPUs and vectors. Option `moves=N`: so
/// many times at the least, one after the other.
pub fn moved(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    let Some(disk) = started(test, boot, 0, 1) else { return };
    check!(test, true, "seed {SEED:#x}");
    let count = count.min(VECTORS.len());
    VECTORS.into_iter().for_each(|vector| blk::handle(&disk, 0, 0, vector));
    let least = boot.option("moves").and_then(|n| n.parse::<u64>().ok());
    LEAVE.store(0, SeqCst);
    ROUTED.store(0, SeqCst);
    PACE.store(if least.is_some() { 0xFF } else { 0xFFFF }, SeqCst);
    COUNT.store(count, SeqCst);
    cpu::enable_interrupts();
    let queue = blk::queue(0);
    let (mut all, mut total) = (Load::default(), 0);
    let came = smp::others(2, route_about, || {
        loop {
            let load = run(queue, 0, MOVED, |_| true);
            total += MOVED;
            (all.done, all.wrong) = (all.done + load.done, all.wrong + load.wrong);
            let few = least.is_some_and(|least| ROUTED.load(SeqCst) < least);
            let none = total < AGAIN * MOVED && (0..count).any(|cpu| share(cpu) == 0);
            if load.done != MOVED || !(few || none) {
                break;
            }
        }
        LEAVE.store(1, SeqCst);
        true
    });
    verdict(test, "while it moves", queue, all, total);
    let routed = ROUTED.load(SeqCst);
    check!(test, came && routed >= least.unwrap_or(1), "re-targeted {routed} times");
    check!(test, queue.account().by_poll == 0, "none was polled for");
    let shares: [u64; smp::MAX] = core::array::from_fn(share);
    check!(test, shares[..count].iter().all(|n| *n > 0), "by CPU: {:?}", &shares[..count]);
    stays(test, &disk, count);
    check!(test, disk.reset(), "it can be reset");
}

/// How many interrupts a CPU has had.
fn share(cpu: usize) -> u64 {
    VECTORS.into_iter().map(|v| idt::count_on(cpu, v)).sum()
}

fn route_about(_: usize) {
    let Some(disk) = Virtio::first_block() else { return };
    let mut random = Random::new(SEED);
    while LEAVE.load(SeqCst) == 0 {
        let r = random.number();
        let cpu = (r >> 8) as usize % COUNT.load(SeqCst);
        disk.route(blk::queue(0).entry(), cpu, VECTORS[(r >> 16) as usize % VECTORS.len()]);
        ROUTED.fetch_add(1, SeqCst);
        wait::ticks(r >> 32 & PACE.load(SeqCst));
    }
}

/// When the guest has moved it, it comes to the new CPU alone, at the new vector alone.
fn stays(test: &str, disk: &Virtio, count: usize) {
    let queue = blk::queue(0);
    for cpu in 0..count {
        for vector in VECTORS {
            disk.route(queue.entry(), cpu, vector);
            wait::settle();
            let before = (idt::count_on(cpu, vector), idt::everything());
            let load = run(queue, 0, 32, |_| true);
            wait::settle();
            let came = (idt::count_on(cpu, vector) - before.0, idt::everything() - before.1);
            let good = load.done == 32 && came.0 > 0 && came.0 == came.1;
            if !good {
                check!(test, false, "on CPU {cpu} at {vector:#x}: {load:?}, {came:?}");
                return;
            }
        }
    }
    check!(test, true, "then it stays where it was sent");
}
