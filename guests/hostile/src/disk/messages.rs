//! The interrupts of a disk, pointed at every CPU that might be, in every mode, at every vector,
//! while it completes requests.

use super::{afterwards, collect, fill, idle, needed, start};
use machine::{
    boot::Boot, console::check, cpu, edu, idt, random::Random, virtio::Virtio, virtio::field,
    virtio_blk as blk, wait, x2apic,
};

const SEED: u64 = 0x3E55;
/// The vector by which its interrupts come that are good.
const VECTOR: u8 = 0x61;
/// Masks and switches of MSI-X in between.
const SWITCHES: u64 = 600;

/// Every vector, destination and delivery mode, with completions that send them.
pub fn everywhere(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    if !start(&disk, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    let mut random = Random::new(SEED);
    let entry = disk.entry(queue.entry());
    queue.ring.be_quiet(false);
    (0x20..=255).filter(|v| *v != 0xFB).for_each(|v| idt::on(v, |_| x2apic::complete()));
    cpu::enable_interrupts();
    let below = || (0..16).filter(|v| *v != 2).map(idt::count).sum::<u64>();
    let (before, mut done, mut aimed) = (below(), 0, 0);
    for round in 0..2048u32 {
        done += collect(queue);
        fill(queue, round.into());
        let r = random.number();
        let (vector, mode) = (round & 0xFF, round >> 8 & 7);
        // Itself at an exception's vector: `reserved` is an attack of its own.
        let id = match r % 3 {
            0 => 1 + (r >> 3) as u32 % 15,
            1 => [0x10, 0x55, 0xFE][(r >> 3) as usize % 3],
            _ if vector < 0x20 => 1,
            _ => [0, 0xFF][(r >> 3) as usize & 1],
        };
        let flags = [0, 0x4000, 0x8000, 0xC000][(r >> 8 & 3) as usize];
        cpu::mmio_write(entry, edu::message_address(id) as u32 | (r >> 16) as u32 & 0xC);
        cpu::mmio_write(entry + 4, if r >> 60 == 0 { (r >> 20) as u32 } else { 0 });
        cpu::mmio_write(entry + 8, flags | mode << 8 | vector);
        cpu::mmio_write(entry + 12, 0);
        aimed += 1;
    }
    let good = comes(&disk);
    done += collect(queue);
    let n = below() - before;
    let right = good && n == 0 && done > 500;
    check!(test, right, "{aimed} messages, {done} requests, {n} below 16; to a good one: {good}");
    disk.mask(queue.entry(), true);
    cpu::disable_interrupts();
    afterwards(test, &disk, boot);
}

/// Entries masked, the function masked, MSI-X off and on, pending bits written, at speed.
pub fn switched(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    if !start(&disk, 1, boot) {
        return check!(test, false, "it doesn't start");
    }
    let queue = blk::queue(0);
    let control = disk.function.read(disk.msix()) | 1 << 31;
    let mut random = Random::new(SEED);
    let mut done = 0;
    queue.ring.be_quiet(false);
    idt::on(VECTOR, |_| x2apic::complete());
    disk.route(queue.entry(), 0, VECTOR);
    cpu::enable_interrupts();
    for _ in 0..SWITCHES {
        done += collect(queue);
        fill(queue, random.number());
        let r = random.number();
        match r % 4 {
            0 => disk.mask(queue.entry(), r >> 8 & 1 == 0),
            1 => disk.function.write(disk.msix(), control & !(3 << 30) | ((r >> 8) as u32) << 30),
            2 => cpu::mmio_write(disk.pending_bits() + (r >> 8 & 0xFC), (r >> 16) as u32),
            // Another entry for the queue, or none.
            _ => {
                cpu::mmio_write16(disk.registers() + field::QUEUE_SELECT, 0);
                cpu::mmio_write16(disk.registers() + field::QUEUE_VECTOR, (r >> 8) as u16 % 8);
                cpu::mmio_write16(disk.registers() + field::CONFIG_VECTOR, (r >> 24) as u16 % 8);
            }
        }
    }
    disk.function.write(disk.msix(), control & !(1 << 30));
    cpu::mmio_write16(disk.registers() + field::QUEUE_SELECT, 0);
    cpu::mmio_write16(disk.registers() + field::QUEUE_VECTOR, queue.entry());
    let good = comes(&disk);
    check!(
        test,
        good && done > 100,
        "{SWITCHES} switches, {done} requests; at last they come: {good}"
    );
    disk.mask(queue.entry(), true);
    cpu::disable_interrupts();
    afterwards(test, &disk, boot);
}

/// Whether a completion interrupts when the entry is a good one.
fn comes(disk: &Virtio) -> bool {
    let queue = blk::queue(0);
    let ended = idle([queue].into_iter());
    collect(queue);
    idt::on(VECTOR, |_| x2apic::complete());
    disk.route(queue.entry(), 0, VECTOR);
    wait::settle();
    let before = idt::count(VECTOR);
    fill(queue, 0);
    // Not by looking at the ring meanwhile: a driver that has seen all wants no interrupt.
    let came = wait::patiently(|| idt::count(VECTOR) > before);
    ended && came && idle([queue].into_iter())
}
