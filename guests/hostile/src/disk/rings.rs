//! Rings that aren't memory, indices that jump, chains that are none.

use super::raw::{AREAS, Raw, SIZE};
use super::{afterwards, elsewhere, gives_up, needed};
use machine::{
    boot::Boot,
    console::check,
    cpu, idt,
    random::Random,
    virtio::{NO_VECTOR, Virtio, status},
    virtio_blk::{kind, status as outcome},
    virtqueue::{Descriptor, INDIRECT, NEXT, WRITE, get, put},
    wait, x2apic,
};

const SEED: u64 = 0xD15C;
/// The vector by which it says that it can't go on.
const VECTOR: u8 = 0x62;
/// Rounds of [`indices`].
const JUMPS: u64 = 24;
/// Sizes that a ring of a split queue can't have here.
const SIZES: [u16; 6] = [0, 3, 127, 257, 0x4000, 0xFFFF];

/// Each area of a ring where no memory is, or unaligned; sizes that none has; and a ring in the
/// last bytes of memory, which is a good one.
pub fn places(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let raw = Raw::new(boot, 0);
    let (mut tried, mut given_up) = (0, 0);
    let mut refused = |areas| {
        tried += 1;
        given_up += u32::from(Raw { areas, ..raw }.start(&disk, 0) && gives_up(&disk));
    };
    for (area, unaligned) in [8, 1, 2].into_iter().enumerate() {
        for address in elsewhere(&disk, boot).into_iter().chain([raw.areas[area] + unaligned]) {
            let mut areas = raw.areas;
            areas[area] = address;
            refused(areas);
        }
    }
    check!(test, given_up == tried, "{given_up} of {tried} rings elsewhere were given up");
    let kept = SIZES.into_iter().filter(|size| {
        disk.negotiate(disk.offered() & super::WANTED);
        disk.place(0, *size, raw.areas, NO_VECTOR);
        disk.size(0).is_power_of_two() && disk.size(0) <= 256
    });
    let kept = kept.count();
    check!(test, kept == SIZES.len(), "{kept} of {} sizes were refused", SIZES.len());
    let end = boot.free_memory().end;
    let mut served = 0;
    for (area, bytes) in AREAS.into_iter().enumerate() {
        raw.clear();
        let mut at_end = Raw { areas: raw.areas, ..raw };
        at_end.areas[area] = (end - bytes) & !15;
        let ring = at_end.areas[area];
        (ring..end).for_each(|at| put(at, 0u8));
        at_end.put_good();
        at_end.offer(0);
        served += u32::from(at_end.start(&disk, 0) && at_end.uses(1));
    }
    check!(test, served == 3, "{served} of 3 rings in the last bytes of memory were served");
    afterwards(test, &disk, boot);
}

/// The driver's index by more than the ring holds, and to anywhere, with requests under way; heads
/// that don't exist. Each time it is told so by an interrupt.
pub fn indices(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let raw = Raw::new(boot, 0);
    let mut random = Random::new(SEED);
    let (mut given_up, mut served, mut told) = (0, 0, 0);
    idt::on(VECTOR, |_| x2apic::complete());
    cpu::enable_interrupts();
    for round in 0..JUMPS {
        raw.clear();
        raw.put_good();
        if !raw.start(&disk, 0) {
            continue;
        }
        disk.configuration_by(0);
        disk.route(0, x2apic::id() as usize, VECTOR);
        let before = idt::count(VECTOR);
        let good = 1 + (random.number() % 100) as u16;
        (0..good).for_each(|_| raw.offer(0));
        served += u64::from(raw.uses(good));
        let r = random.number();
        match round % 3 {
            // Between one too many and all the way round.
            0 => {
                raw.set_index(good.wrapping_add(SIZE + 1 + (r % (0xFFFF - u64::from(SIZE))) as u16))
            }
            1 => raw.set_index(good.wrapping_sub(1 + (r % 64) as u16)),
            _ => raw.offer([SIZE, 255, 256, 0x7FFF, 0xFFFF][(r % 5) as usize]),
        }
        given_up += u64::from(gives_up(&disk));
        told += u64::from(wait::until(|| idt::count(VECTOR) > before));
    }
    disk.mask(0, true);
    cpu::disable_interrupts();
    let good = [given_up, told, served] == [JUMPS; 3];
    check!(test, good, "{given_up} of {JUMPS} given up, {told} told, {served} served before that");
    afterwards(test, &disk, boot);
}

const fn piece(address: u64, bytes: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address, bytes, flags, next }
}

/// Loops, chains longer than the ring, tables in tables, of any length and anywhere; buffers that
/// aren't memory; no status byte. Each must end the queue. And what looks bad and isn't.
pub fn chains(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let raw = Raw::new(boot, 0);
    let (header, data, state, table) = (raw.header(), raw.data(), raw.status(), raw.table());
    let mut tried = Tried { disk: &disk, raw: &raw, given_up: 0, all: 0 };
    let last = piece(state, 1, WRITE, 0);
    let begin = piece(header, 16, NEXT, 1);
    // In the ring itself.
    tried.ends(&[piece(header, 16, NEXT, 0)], &[]);
    tried.ends(&[begin, piece(data, 512, NEXT, 0)], &[]);
    tried.ends(&[begin, piece(data, 512, NEXT | WRITE, 1)], &[]);
    for next in [SIZE, SIZE + 1, 256, 0xFFFF] {
        tried.ends(&[piece(header, 16, NEXT, next)], &[]);
    }
    tried.ends(&[piece(data, 512, NEXT | WRITE, 1), piece(header, 16, 0, 0)], &[]);
    tried.ends(&[piece(header, 16, 0, 0)], &[]);
    tried.ends(&[begin, piece(data, 512, 0, 0)], &[]);
    tried.ends(&[piece(header, 0, 0, 0)], &[]);
    tried.ends(&[begin, piece(state, 0, WRITE, 0)], &[]);
    // Tables: behind NEXT, in a table, in themselves, of lengths that none has.
    tried.ends(&[piece(table, 48, INDIRECT | NEXT, 1), last], &[begin, last]);
    tried.ends(&[piece(table, 48, INDIRECT, 0)], &[piece(table, 48, INDIRECT, 0), last]);
    tried.ends(
        &[piece(table, 48, INDIRECT, 0)],
        &[begin, piece(table + 16, 32, INDIRECT | NEXT, 2), last],
    );
    for bytes in [0, 1, 15, 17, 0x2FF8, u32::MAX] {
        tried.ends(&[piece(table, bytes, INDIRECT, 0)], &[begin, last]);
    }
    tried.ends(&[piece(table, 0x3000, INDIRECT, 0)], &[begin, piece(data, 1, NEXT | WRITE, 1)]);
    tried.ends(&[piece(table, 32, INDIRECT, 0)], &[piece(header, 16, NEXT, 2), last, last]);
    // Of a table that ends where no memory is only what is used counts.
    tried.ends(&[piece(table, 0xFFFF_FFF0, INDIRECT, 0)], &[piece(header, 16, NEXT, 0xFFFF), last]);
    for address in elsewhere(&disk, boot) {
        tried.ends(&[piece(address, 48, INDIRECT, 0)], &[]);
        tried.ends(&[begin, piece(address, 512, NEXT | WRITE, 2), last], &[]);
        tried.ends(&[begin, piece(data, 512, NEXT, 2), piece(address, 17, WRITE, 0)], &[]);
    }
    for bytes in [u32::MAX, u32::MAX - 15, 0x8000_0000] {
        tried.ends(&[begin, piece(data, bytes, NEXT | WRITE, 2), last], &[]);
        tried.ends(&[piece(header, bytes, NEXT, 1), last], &[]);
    }
    let Tried { given_up, all, .. } = tried;
    check!(test, given_up == all && all > 60, "{given_up} of {all} chains ended their queue");
    let said = answered(&disk, &raw);
    check!(test, said == [Some(outcome::OK); 3], "odd, and good: {said:?}");
    afterwards(test, &disk, boot);
}

/// Chains that are tried.
struct Tried<'a> {
    disk: &'a Virtio,
    raw: &'a Raw,
    given_up: u32,
    all: u32,
}

impl Tried<'_> {
    /// A chain from the ring's first descriptor on, and what is in the table.
    fn ends(&mut self, ring: &[Descriptor], table: &[Descriptor]) {
        let Tried { disk, raw, .. } = *self;
        raw.clear();
        put(raw.header(), kind::IN);
        raw.put(raw.areas[0], ring);
        raw.put(raw.table(), table);
        raw.offer(0);
        self.all += 1;
        self.given_up += u32::from(raw.start(disk, 0) && gives_up(disk));
    }
}

/// What becomes of good chains that look otherwise: a header in sixteen pieces with empty ones
/// between; one as long as the ring; a table as long as any may be.
fn answered(disk: &Virtio, raw: &Raw) -> [Option<u8>; 3] {
    let (header, data, state) = (raw.header(), raw.data(), raw.status());
    let pieces: [Descriptor; 34] = core::array::from_fn(|i| match i {
        32 => piece(data, 512, NEXT | WRITE, 33),
        33 => piece(state, 1, WRITE, 0),
        _ => piece(header + i as u64 / 2, i as u32 % 2, NEXT, i as u16 + 1),
    });
    let long = |count: usize| {
        move |i: usize| match i {
            0 => piece(header, 16, NEXT, 1),
            _ if i + 1 == count => piece(state, 1, WRITE, 0),
            _ => piece(data, 512, NEXT | WRITE, i as u16 + 1),
        }
    };
    let whole: [Descriptor; SIZE as usize] = core::array::from_fn(long(SIZE as usize));
    let indirect: [Descriptor; 130] = core::array::from_fn(long(130));
    let table = piece(raw.table(), 16 * 130, INDIRECT, 0);
    [(&pieces[..], &[][..]), (&whole, &[]), (&[table], &indirect)].map(|(ring, table)| {
        raw.clear();
        put(header, kind::IN);
        put(state, outcome::NONE);
        raw.put(raw.areas[0], ring);
        raw.put(raw.table(), table);
        raw.offer(0);
        let used = raw.start(disk, 0) && raw.uses(1);
        let whole = disk.status() & status::NEEDS_RESET == 0;
        (used && whole).then(|| get(state))
    })
}
