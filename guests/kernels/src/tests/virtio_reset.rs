//! Resets in the middle of I/O, of the device and of the whole VM: after it the device has let go
//! of the memory, and everything works as before.

use super::restart;
use super::virtio::{SECTOR, WANTED, disk, fill, holds};
use super::virtio_load::{REGION, VECTOR, run, verdict};
use crate::virtio_blk::{self as blk, Request, kind, status as outcome};
use crate::virtqueue::{get, put};
use crate::{
    boot::Boot, console::check, console::println, cpu, idt, pci, random::Random, wait, x2apic,
};

const ROUNDS: u64 = 40;
/// Requests after each reset.
const AFTERWARDS: u64 = 96;
const SEED: u64 = 0x4E5E_7000;
const POISON: u64 = 0xA5A5_A5A5_A5A5_A5A5;
/// TSC ticks in which a device that hadn't let go would write.
const SETTLE: u64 = 2_000_000;

/// Again and again, with the ring full of reads and writes.
pub fn reset(test: &str, boot: &Boot) {
    let Some(disk) = disk(test) else { return };
    let mut random = Random::new(SEED);
    let features = disk.offered() & WANTED;
    let (mut ends, mut touched, mut late, mut left) = (0, 0, 0, 0);
    let queue = blk::queue(0);
    cpu::enable_interrupts();
    for _ in 0..ROUNDS {
        if !blk::start(&disk, features, 1, boot) {
            return check!(test, false, "it doesn't start again after {ends} resets");
        }
        blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
        for slot in 0..blk::DEPTH {
            let kind = if random.number() & 1 == 0 { kind::IN } else { kind::OUT };
            queue.submit(slot, Request::new(kind, random.number() % 1024, blk::DATA));
        }
        wait::ticks(random.number() % 60_000);
        if !disk.reset() {
            return check!(test, false, "a reset never ends, after {ends}");
        }
        ends += 1;
        // What was sent before may still be on its way to this CPU, and nothing else.
        let memory = queue.memory();
        cpu::disable_interrupts();
        words(&memory).for_each(|at| put(at, POISON));
        let came = idt::total(VECTOR);
        wait::ticks(SETTLE);
        touched += u64::from(words(&memory).any(|at| get::<u64>(at) != POISON));
        // Nor is the ring what a late handler expects.
        queue.ring.set_up(memory.start, queue.ring.size(), features);
        cpu::enable_interrupts();
        wait::ticks(SETTLE / 8);
        late += u64::from(idt::total(VECTOR) > came + 1);
        left += u64::from(disk.vectors(0) != (0xFFFF, 0xFFFF, false));
    }
    check!(test, ends == ROUNDS, "{ends} resets with {} requests under way", blk::DEPTH);
    check!(test, touched == 0, "{touched} times it wrote to memory after a reset");
    check!(test, late == 0, "{late} times it interrupted after a reset");
    check!(test, left == 0, "{left} times a vector or a queue was left");
    let started = blk::start(&disk, features, 1, boot);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    let load = run(queue, 0, AFTERWARDS, |_| started);
    verdict(test, "afterwards", queue, load, AFTERWARDS);
}

fn words(memory: &core::ops::Range<u64>) -> impl Iterator<Item = u64> + use<> {
    memory.clone().step_by(8)
}

/// Sectors of the pattern that the first life leaves, after those that [`run`] uses.
const LEFT: core::ops::Range<u64> = REGION..REGION + 64;

/// The VM resets itself with the ring full of reads into its memory. In its next life nothing is
/// written there, and the disk holds what was written to it.
pub fn restart(test: &str, boot: &Boot) {
    let life = restart::lives();
    println!("life {life}");
    let Some(disk) = disk(test) else { return };
    let features = disk.offered() & WANTED;
    let status = disk.status();
    check!(test, status == 0, "life {life}: the device's status is {status:#x}");
    let queue = blk::queue(0);
    if life > 0 {
        let first = boot.free_memory().start.next_multiple_of(0x1000);
        let memory = first..first + blk::QUEUE_BYTES;
        words(&memory).for_each(|at| put(at, POISON));
        wait::settle();
        let touched = words(&memory).filter(|at| get::<u64>(*at) != POISON).count();
        check!(test, touched == 0, "life {life}: {touched} words were written after the reset");
    }
    let started = blk::start(&disk, features, 1, boot);
    check!(test, started, "life {life}: it starts");
    if !started {
        return;
    }
    queue.ring.be_quiet(true);
    let (mut right, mut same) = (0, 0);
    for sector in LEFT {
        let kind = if life == 0 { kind::OUT } else { kind::IN };
        fill(queue, 0, sector, SECTOR, if life == 0 { SEED } else { POISON });
        let said = queue.one(Request::new(kind, sector, SECTOR));
        right += u64::from(said.is_some_and(|said| said.0 == outcome::OK));
        same += u64::from(holds(queue, 0, sector, SECTOR, SEED));
    }
    let wanted = LEFT.end - LEFT.start;
    check!(test, right == wanted && same == wanted, "life {life}: {same} sectors are right");
    if life == 0 {
        for slot in 0..blk::DEPTH {
            queue.submit(slot, Request::new(kind::IN, LEFT.start, blk::DATA));
        }
        restart::reset();
    }
    queue.ring.be_quiet(false);
    blk::handle(&disk, 0, x2apic::id() as usize, VECTOR);
    cpu::enable_interrupts();
    let load = run(queue, 0, AFTERWARDS, |_| true);
    verdict(test, "afterwards", queue, load, AFTERWARDS);
}

/// Queues that are full of reads when the VM of a slow disk ends.
const STUCK: usize = 2;

/// With reads under way that take long the disk is reset, its bus mastering turned off, and the VM
/// reset. Nothing of that may wait for the reads to end on the VM's core: the disk isn't reset yet
/// when its bus mastering is off.
pub fn stuck(test: &str, boot: &Boot) {
    let life = restart::lives();
    println!("life {life}");
    let Some(disk) = disk(test) else { return };
    let features = disk.offered() & WANTED;
    if life == 0 {
        let mut begun = blk::start(&disk, features, STUCK, boot);
        for queue in (0..STUCK).map(blk::queue) {
            for slot in 1..blk::DEPTH {
                queue.submit(slot, Request::new(kind::IN, 0, blk::DATA));
            }
            // What is taken after them is a write, which doesn't take long.
            queue.submit(0, Request::new(kind::OUT, 0, SECTOR));
            begun = begun && wait::patiently(|| queue.ring.waiting() > 0);
        }
        disk.begin_reset();
        disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER & 2);
        let status = disk.status();
        check!(test, begun && status != 0, "life {life}: begun {begun}, then {status:#x}");
        restart::reset();
    }
    let started = blk::start(&disk, features, 1, boot);
    blk::queue(0).ring.be_quiet(true);
    let works = started && blk::queue(0).one(Request::new(kind::IN, 0, SECTOR)).is_some();
    check!(test, works, "life {life}: it serves");
}
