//! Resets in the middle of I/O: when the device says that it is reset it has let go of the memory,
//! and then everything works as before.

use super::virtio::{WANTED, disk};
use super::virtio_load::{VECTOR, run, verdict};
use crate::virtio_blk::{self as blk, Request, kind};
use crate::virtqueue::{get, put};
use crate::{boot::Boot, console::check, cpu, idt, random::Random, wait, x2apic};

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
