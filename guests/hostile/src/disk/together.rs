//! One disk, several CPUs: what one of them offers the others change, at any moment.

use super::raw::{Raw, SIZE};
use super::{WANTED, afterwards, elsewhere, needed};
use crate::cpus;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use machine::{
    boot::Boot,
    console::check,
    cpu, edu, idt, pci,
    random::Random,
    smp,
    virtio::{NO_VECTOR, Virtio, field, status},
    virtqueue::{Descriptor, INDIRECT, NEXT, WRITE, put},
    wait, x2apic,
};

const SEED: u64 = 0x70CE;
/// Looks at the ring for each at a register, which is an exit.
const LOOKS: u64 = 256;
/// Requests whose descriptors are rewritten.
const REQUESTS: u64 = 300;
/// Operations of each CPU.
const OPERATIONS: u64 = 1200;
/// Kinds of them.
const KINDS: usize = 10;

static GO_ON: AtomicBool = AtomicBool::new(false);
/// The disk, as the first CPU found it: several at configuration space's ports would find others.
static DISK: AtomicU64 = AtomicU64::new(0);
/// Where the ring is whose descriptors are rewritten.
static BASE: AtomicU64 = AtomicU64::new(0);
static DONE: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// What no memory of this VM's is. Nothing else may be the device's to write.
static FAR: [AtomicU64; 12] = [const { AtomicU64::new(0) }; 12];

fn prepare(disk: &Virtio, boot: &Boot) {
    FAR.iter().zip(elsewhere(disk, boot)).for_each(|(to, address)| to.store(address, SeqCst));
    DONE.iter().for_each(|count| count.store(0, SeqCst));
    BASE.store(Raw::new(boot, 0).base, SeqCst);
    GO_ON.store(true, SeqCst);
}

/// The ring that all know.
fn shared() -> Raw {
    let base = BASE.load(SeqCst);
    Raw { base, areas: [base, base + 0x1000, base + 0x2000] }
}

/// A descriptor of any kind, in the ring's own data or where no memory is.
fn any(raw: &Raw, random: &mut Random) -> Descriptor {
    let r = random.number();
    let address = match r % 8 {
        0 => FAR[(r >> 8) as usize % FAR.len()].load(SeqCst),
        1 | 2 => raw.header(),
        3 => raw.table(),
        4 => raw.status(),
        _ => raw.data() + (r >> 8 & 0xFFF),
    };
    let bytes = match r >> 24 & 7 {
        0 => (r >> 32) as u32,
        1 => 0,
        2 => 16,
        3 => 1,
        4 => 48,
        _ => 512,
    };
    let flags = [NEXT, NEXT | WRITE, WRITE, 0, INDIRECT, NEXT, NEXT | WRITE, INDIRECT | NEXT];
    let next = if r >> 60 == 0 { (r >> 40) as u16 } else { (r >> 40) as u16 % 8 };
    Descriptor { address, bytes, flags: flags[(r >> 56 & 7) as usize], next }
}

fn rewrite(_: usize) {
    let raw = shared();
    let mut random = Random::new(SEED);
    while GO_ON.load(SeqCst) {
        let r = random.number();
        if r.is_multiple_of(4) {
            raw.put_good();
            // Of a good one, what is torn.
            put(raw.areas[0] + 16 + 8, if r >> 8 & 1 == 0 { 512u32 } else { 0xFFFF_FFFF });
            put(raw.areas[0] + 16, if r >> 9 & 1 == 0 { raw.data() } else { !0xFFF });
        } else {
            let table = if r % 4 == 1 { raw.table() } else { raw.areas[0] };
            any(&raw, &mut random).put(table, (r >> 16) as u16 % 8);
        }
        if r >> 10 & 1 == 0 {
            raw.put_good();
        }
        DONE[0].fetch_add(1, SeqCst);
    }
}

/// One CPU offers a good request again and again, the others rewrite its descriptors and its table.
pub fn rewritten(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let Some(count) = cpus::all(test, boot) else { return };
    prepare(&disk, boot);
    let raw = shared();
    let (mut offered, mut served, mut given_up) = (0, 0, 0);
    raw.put_good();
    let done = smp::others(count, rewrite, || {
        let mut running = raw.start(&disk, 0);
        while running && offered < REQUESTS {
            let used = raw.used();
            raw.offer(0);
            offered += 1;
            let (mut broken, mut looks) = (false, 0);
            let went_on = wait::patiently(|| {
                let served = raw.used() != used;
                looks += 1;
                broken = !served
                    && looks % LOOKS == 0
                    && disk.status() & status::NEEDS_RESET != 0
                    && raw.used() == used;
                served || broken
            });
            running = went_on;
            if broken {
                given_up += 1;
                running = disk.reset();
                put(raw.areas[1], 0u32);
                put(raw.areas[2], 0u32);
                running = running && raw.start(&disk, 0);
            } else {
                served += u64::from(went_on);
            }
        }
        GO_ON.store(false, SeqCst);
        running
    });
    let rewrites = DONE[0].load(SeqCst);
    // Whether one is read while it is rewritten is the machine's to say.
    let good = done && served > 0 && rewrites > REQUESTS && served + given_up == REQUESTS;
    check!(
        test,
        good,
        "{offered} requests, {rewrites} times rewritten: {served} served, {given_up} given up"
    );
    afterwards(test, &disk, boot);
}

fn operate(index: usize) {
    let raw = shared();
    // SAFETY: `everything` put it there, changes it no more, and waits for all CPUs.
    let disk = unsafe { &*(DISK.load(SeqCst) as *const Virtio) };
    let mut random = Random::new(SEED + 1 + index as u64);
    for _ in 0..OPERATIONS {
        let (r, s) = (random.number(), random.number());
        // Configuration space's two ports are one CPU's at a time.
        let kind = (r % if index == 0 { KINDS as u64 } else { KINDS as u64 - 2 }) as usize;
        match kind {
            0 => any(&raw, &mut random).put(raw.areas[0], (r >> 16) as u16 % 8),
            1 => any(&raw, &mut random).put(raw.table(), (r >> 16) as u16 % 8),
            2 => {
                raw.put_good();
                (0..r >> 16 & 0x7F).for_each(|_| raw.offer(0));
            }
            3 if r >> 20 & 15 == 0 => raw.set_index((r >> 32) as u16),
            3 => raw.offer(if r >> 24 & 15 == 0 {
                (r >> 32) as u16
            } else {
                (r >> 32) as u16 % SIZE
            }),
            4 if r >> 16 & 3 == 0 => set_status(disk, 0),
            4 | 5 => begin(disk, &raw, r, s),
            6 => {
                let entry = disk.entry((r >> 16) as u16 % disk.entries());
                let vector = 0x20 + (r >> 24) as u32 % 0xDB;
                cpu::mmio_write(entry, edu::message_address((r >> 40) as u32 % 8) as u32);
                cpu::mmio_write(entry + 8, (r >> 48) as u32 & 0x700 | vector);
                cpu::mmio_write(entry + 12, (r >> 60) as u32 & 1);
            }
            7 => {
                cpu::mmio_write16(disk.registers() + field::QUEUE_SELECT, (r >> 16) as u16 % 8);
                cpu::mmio_write16(disk.registers() + field::QUEUE_VECTOR, (r >> 24) as u16 % 8);
                cpu::mmio_write16(disk.registers() + field::QUEUE_ENABLE, (r >> 32) as u16 & 1);
                cpu::mmio_write16(disk.kicks(), s as u16);
            }
            8 => disk.function.write(pci::COMMAND, 2 | (r >> 16 & 4) as u32),
            _ => {
                let control = disk.function.read(disk.msix());
                disk.function.write(disk.msix(), control ^ ((r >> 16 & 3) as u32) << 30);
            }
        }
        DONE[kind].fetch_add(1, SeqCst);
    }
}

fn set_status(disk: &Virtio, status: u8) {
    cpu::mmio_write8(disk.registers() + field::DEVICE_STATUS, status);
}

/// Asks for features without a look at what comes of it: the others would take it away again.
fn negotiate(disk: &Virtio, features: u64) {
    set_status(disk, 0);
    set_status(disk, status::ACKNOWLEDGE | status::DRIVER);
    for select in 0..2u32 {
        cpu::mmio_write(disk.registers() + field::DRIVER_FEATURE_SELECT, select);
        let half = (features >> (32 * select)) as u32;
        cpu::mmio_write(disk.registers() + field::DRIVER_FEATURE, half);
    }
    disk.add_status(status::FEATURES_OK);
}

/// Any of the steps of a start, each with what a driver would say or with something else.
fn begin(disk: &Virtio, raw: &Raw, r: u64, s: u64) {
    let features = if r >> 16 & 7 == 0 { s } else { disk.offered() & WANTED };
    if r >> 20 & 1 == 0 {
        negotiate(disk, features);
    }
    let mut areas = raw.areas;
    if r >> 24 & 7 == 0 {
        areas[(s % 3) as usize] = FAR[(s >> 8) as usize % FAR.len()].load(SeqCst);
    }
    let size = if r >> 28 & 7 == 0 { (s >> 16) as u16 } else { SIZE };
    let entry = if s >> 60 & 1 == 0 { NO_VECTOR } else { 1 };
    disk.place((s >> 32) as u16 % 4, size.min(SIZE), areas, entry);
    cpu::mmio_write16(disk.registers() + field::CONFIG_VECTOR, 0);
    disk.go();
}

/// All CPUs do anything at all, each by a seed of its own.
pub fn everything(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let Some(count) = cpus::all(test, boot) else { return };
    prepare(&disk, boot);
    (0x20..=255).filter(|v| *v != 0xFB).for_each(|v| idt::on(v, |_| x2apic::complete()));
    DISK.store(&raw const disk as u64, SeqCst);
    let done = smp::all(count, operate);
    cpu::disable_interrupts();
    disk.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    (0..disk.entries()).for_each(|entry| disk.mask(entry, true));
    let control = disk.function.read(disk.msix());
    disk.function.write(disk.msix(), control & !(1 << 30) | 1 << 31);
    let kinds: [u64; KINDS] = core::array::from_fn(|kind| DONE[kind].load(SeqCst));
    let all: u64 = kinds.iter().sum();
    let good = done && all == OPERATIONS * count as u64 && kinds.iter().all(|n| *n > 0);
    check!(test, good, "seed {SEED:#x}, {count} CPUs, {all} operations, by kind {kinds:?}");
    afterwards(test, &disk, boot);
}
