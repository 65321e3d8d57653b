//! CPUs that a disk's interrupts are for, stopped and started again while these are sent and moved.

use super::{afterwards, collect, fill, idle, needed, start};
use crate::cpus;
use machine::{
    boot::Boot, console::check, cpu, idt, random::Random, smp, virtio::Virtio, virtio_blk as blk,
    wait, x2apic,
};

const SEED: u64 = 0x1217;
const VECTOR: u8 = 0x62;
const ROUNDS: u64 = 150;
/// TSC ticks, within which some of what was asked for is completed.
const MOMENT: u64 = 60_000;

/// INIT and start-up for the CPU that the interrupts go to; meanwhile they are masked, moved to
/// another CPU, to none, or the disk is reset. At last they come to each CPU.
pub fn starts(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let Some(count) = cpus::all(test, boot) else { return };
    if !start(&disk, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    let mut random = Random::new(SEED);
    (0x20..=255).filter(|v| *v != 0xFB).for_each(|v| idt::on(v, |_| x2apic::complete()));
    queue.ring.be_quiet(false);
    cpu::enable_interrupts();
    let (mut done, mut resets, mut up) = (0, 0, true);
    for round in 0..ROUNDS {
        let r = random.number();
        let victim = 1 + (r >> 32) as usize % (count - 1);
        disk.route(queue.entry(), victim, VECTOR);
        done += collect(queue);
        fill(queue, round);
        wait::ticks(r % MOMENT);
        smp::stop(victim);
        match r >> 40 & 7 {
            0 => disk.mask(queue.entry(), r >> 48 & 1 == 0),
            1 => disk.route(queue.entry(), 0, VECTOR),
            2 => disk.route(queue.entry(), count + 3, VECTOR),
            3 => disk.route(queue.entry(), victim, 0xF0 | (r >> 48) as u8 & 0xF),
            4 => {
                resets += 1;
                up &= disk.reset() && start(&disk, 1, boot);
                queue.ring.be_quiet(false);
            }
            _ => {}
        }
        wait::ticks(r >> 8 & 0xFFFF);
        up &= smp::start(victim);
    }
    queue.ring.be_quiet(true);
    check!(test, up && done > ROUNDS, "{done} requests, {resets} resets; all came up again: {up}");
    let came = (0..count).filter(|target| comes(&disk, *target)).count();
    check!(test, came == count, "at last they come to {came} of {count} CPUs");
    disk.mask(queue.entry(), true);
    cpu::disable_interrupts();
    afterwards(test, &disk, boot);
}

/// Whether a completion interrupts this CPU.
fn comes(disk: &Virtio, target: usize) -> bool {
    let queue = blk::queue(0);
    let ended = idle([queue].into_iter());
    collect(queue);
    queue.ring.be_quiet(false);
    disk.route(queue.entry(), target, VECTOR);
    wait::settle();
    let before = idt::count_on(target, VECTOR);
    fill(queue, 0);
    let came = wait::patiently(|| idt::count_on(target, VECTOR) > before);
    queue.ring.be_quiet(true);
    ended && came && idle([queue].into_iter())
}
