//! virtio-blk with 32 requests under way: what it costs in exits, with event indices and with
//! flags, by interrupts and by polling; and interrupts that are masked meanwhile.
//!
//! By interrupts alone: nothing looks at the ring but the interrupt's handler, so that a lost
//! interrupt is a test that comes to a stop.

use super::virtio::{SECTOR, fill, holds, started};
use crate::virtio_blk::{self as blk, Queue, Request, kind, status as outcome};
use crate::{
    boot::Boot, console::check, counters, counters::Policy, counters::Window, cpu, idt,
    random::Random, virtio::feature, wait, x2apic,
};
use ledger::Reason;

pub const VECTOR: u8 = 0x41;
/// Requests in a window.
const REQUESTS: u64 = 20_000;
/// Requests whose interrupts are masked now and then.
const MASKED: u64 = 4_000;
const SEED: u64 = 0xB10C_5EED;
/// Sectors that a load uses, from its first on.
pub const REGION: u64 = 1024;

/// What came of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Requests that came to an end.
    pub done: u64,
    /// Those that went wrong, or read something else than was written.
    pub wrong: u64,
}

/// Keeps a queue busy with `total` requests of one sector from `first` on: each sector is written,
/// then read and compared. `between` is called all the time; false: enough.
pub fn run(queue: &Queue, first: u64, total: u64, mut between: impl FnMut(&Queue) -> bool) -> Load {
    let mut load = Load::default();
    let mut of_slot = [(0, 0); blk::DEPTH];
    let mut begun = 0;
    // The sector and the round of a request: half of a round writes, half reads.
    let what = |number: u64| (first + number % REGION, number / REGION);
    let progress = |load: &mut Load, of_slot: &mut [(u64, u64); blk::DEPTH]| {
        let Some(slot) = queue.done_slot() else { return false };
        let (sector, round) = of_slot[slot];
        let write = round.is_multiple_of(2);
        let bytes = if write { 1 } else { SECTOR + 1 };
        let mut right = queue.outcome(slot) == (outcome::OK, bytes);
        right &= write || holds(queue, slot, sector, SECTOR, SEED + round / 2);
        load.wrong += u64::from(!right);
        load.done += 1;
        queue.release(slot);
        true
    };
    let mut stopped = false;
    while load.done < total && !stopped {
        // A round begins when the one before it is over, as requests are in no order.
        let may_begin = begun < total && (begun % REGION != 0 || load.done == begun);
        match queue.free_slot().filter(|_| may_begin) {
            Some(slot) => {
                let (sector, round) = what(begun);
                of_slot[slot] = (sector, round);
                let kind = if round.is_multiple_of(2) { kind::OUT } else { kind::IN };
                fill(queue, slot, sector, SECTOR, SEED + round / 2 + round % 2);
                queue.submit(slot, Request::new(kind, sector, SECTOR));
                begun += 1;
                while progress(&mut load, &mut of_slot) {}
            }
            None => {
                let moved = wait::patiently(|| {
                    stopped = !between(queue);
                    stopped || progress(&mut load, &mut of_slot)
                });
                stopped |= !moved;
            }
        }
        stopped |= !between(queue);
    }
    load
}

/// Whether a load is what it must be, and each request completed once.
pub fn verdict(test: &str, what: &str, queue: &Queue, load: Load, total: u64) {
    let account = queue.account();
    let good = load.done == total && load.wrong == 0 && account.balances();
    check!(test, good, "{what}: {} of {total}, {} wrong, {account:?}", load.done, load.wrong);
    if !good {
        queue.ring.print();
    }
}

/// By interrupts, with event indices.
pub fn load(test: &str, boot: &Boot) {
    by_interrupts(test, boot, 0);
}

/// By interrupts, without event indices.
pub fn flags(test: &str, boot: &Boot) {
    by_interrupts(test, boot, feature::EVENT_INDEX);
    let queue = blk::queue(0);
    let before = idt::total(VECTOR);
    queue.ring.be_quiet(true);
    let load = run(queue, 0, 500, polling);
    verdict(test, "polled in between", queue, load, 500);
    let late = idt::total(VECTOR) - before;
    // One may have been on its way.
    check!(test, late <= 1, "{late} interrupts though none is wanted");
}

fn polling(queue: &Queue) -> bool {
    queue.poll();
    true
}

fn by_interrupts(test: &str, boot: &Boot, unwanted: u64) {
    let Some(disk) = started(test, boot, unwanted, 1) else { return };
    let queue = blk::queue(0);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::enable_interrupts();
    if counters::policy() != Policy::Bare {
        // Until the sidecore has come to it there are kicks, which exit no more than later ones.
        check!(test, wait::patiently(|| queue.ring.is_polled()), "the queue is polled");
    }
    let kicks = queue.ring.kicks();
    let (before, window) = idt::between(VECTOR, Window::open);
    let load = run(queue, 0, REQUESTS, |_| true);
    let (after, counted) = idt::between(VECTOR, || window.so_far());
    let (came, kicks) = (after - before, queue.ring.kicks() - kicks);
    verdict(test, "by interrupts", queue, load, REQUESTS);
    check!(test, (1..=REQUESTS).contains(&came), "{came} interrupts, {kicks} kicks");
    check!(test, queue.account().by_poll == 0, "none was polled for");
    counted.expect_at_most(test, 1);
    if counters::policy() != Policy::Bare {
        check!(test, kicks <= REQUESTS / 2_000, "{kicks} kicks of {REQUESTS} requests");
    }
    if counters::policy() == Policy::Trap {
        let [exits, completed] =
            [Reason::DeviceInterrupt, Reason::DeviceEoi].map(|r| counted.of(r));
        // On a shared core one that comes while another vCPU has it is no exit of this one's.
        let right = (exits >= came || counters::shared()) && completed == came;
        check!(
            test,
            right,
            "{exits} exits for {came} interrupts, {completed} for their completion"
        );
    }
}

/// Without interrupts.
pub fn polled(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::enable_interrupts();
    let before = idt::everything();
    let window = Window::open();
    let load = run(queue, 0, REQUESTS, polling);
    let counted = window.close();
    let came = idt::everything() - before;
    verdict(test, "polled", queue, load, REQUESTS);
    // QEMU sends the first one after a reset whether it is wanted or not.
    let most = u64::from(counters::policy() == Policy::Bare);
    check!(test, came <= most, "{came} interrupts though none is wanted");
    counted.expect_at_most(test, 1);
    if counters::policy() == Policy::Trap {
        let n = counted.own();
        check!(test, n <= 1, "{n} exits of any kind, at most 1 wanted");
    }
}

/// Its MSI-X entry is masked and unmasked at any time: none comes meanwhile, none is lost.
pub fn masked(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::enable_interrupts();
    let entry = queue.entry();
    let mut random = Random::new(SEED);
    let (mut times, mut early, mut unsaid) = (0, 0, 0);
    let load = run(queue, 0, MASKED, |queue| {
        if random.number().is_multiple_of(16) && queue.under_way() > 0 {
            times += 1;
            disk.mask(entry, true);
            // What was on its way has arrived by then.
            wait::ticks(random.number() % 40_000 + 10_000);
            let before = idt::total(VECTOR);
            if random.number().is_multiple_of(4) {
                // To the end: all that is under way completes, and the interrupt waits.
                wait::until(|| usize::from(queue.ring.waiting()) == queue.under_way());
                let all = queue.under_way() > 0;
                let waits = !all || wait::until(|| disk.is_pending(entry));
                unsaid += u64::from(!waits);
            } else {
                wait::ticks(random.number() % 100_000);
            }
            early += idt::total(VECTOR) - before;
            disk.mask(entry, false);
        }
        true
    });
    verdict(test, "masked now and then", queue, load, MASKED);
    check!(test, times > 0 && early == 0, "masked {times} times, {early} interrupts meanwhile");
    check!(test, unsaid == 0, "{unsaid} times the pending bit didn't say that one waits");
    check!(test, queue.account().by_poll == 0, "none was polled for");
    check!(test, disk.reset() && !disk.is_pending(entry), "nothing is pending after a reset");
}
