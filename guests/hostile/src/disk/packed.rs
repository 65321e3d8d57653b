//! Packed rings (virtio 1.2, 2.8): wrap counters that say nonsense, chains round the whole ring,
//! tables over the ring itself and across what there is, descriptors that change once they are
//! offered.

use super::{WANTED, elsewhere, gives_up, needed, raw::Raw};
use machine::{
    boot::Boot,
    console::check,
    cpu,
    random::Random,
    virtio::{NO_VECTOR, Virtio, status},
    virtio_blk::{kind, status as outcome},
    virtqueue::{INDIRECT, NEXT, WRITE, get, put},
    wait,
};

/// VIRTIO_F_RING_PACKED.
const PACKED: u64 = 1 << 34;
/// Flags of a descriptor: for the driver's wrap counter, and for the device's.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const SEED: u64 = 0x9AC2_ED00;
/// Rounds of a ring, and of chains that are rewritten.
const ROUNDS: u64 = 3;
const REWRITES: u64 = 400;

/// A piece of a chain: address, bytes, flags.
type Piece = (u64, u32, u16);

/// A packed ring.
struct Ring<'a> {
    disk: &'a Virtio,
    raw: &'a Raw,
    size: u16,
    next: u16,
    wrap: bool,
}

impl Ring<'_> {
    /// Resets the disk and has it serve a ring of this size; whether it took that.
    fn start(&mut self, size: u16) -> bool {
        self.raw.clear();
        (self.size, self.next, self.wrap) = (size, 0, true);
        put(self.raw.header(), kind::IN);
        put(self.raw.status(), outcome::NONE);
        let offered = self.disk.offered();
        let taken = self.disk.negotiate(offered & (WANTED | PACKED));
        self.disk.place(0, size, self.raw.areas, NO_VECTOR);
        self.disk.go();
        taken && offered & PACKED != 0
    }

    /// The pieces of a good read.
    fn good(&self) -> [Piece; 3] {
        let raw = self.raw;
        [(raw.header(), 16, 0), (raw.data(), 512, WRITE), (raw.status(), 1, WRITE)]
    }

    fn flags(wrap: bool) -> u16 {
        if wrap { AVAILABLE } else { USED }
    }

    /// Puts a descriptor into a table.
    fn put(table: u64, index: u16, (address, bytes, flags): Piece, id: u16) {
        let at = table + 16 * u64::from(index);
        put(at, address);
        put(at + 8, bytes);
        put(at + 12, id);
        cpu::fence();
        put(at + 14, flags);
    }

    /// Offers a chain, the first descriptor last: where it begins. Its pieces are linked if their
    /// flags don't say so.
    fn offer(&mut self, chain: &[Piece], id: u16) -> (u16, bool) {
        let first = (self.next, self.wrap);
        let place = |n: usize| {
            let at = usize::from(first.0) + n;
            let over = at >= usize::from(self.size);
            ((at % usize::from(self.size)) as u16, first.1 ^ over)
        };
        for n in (0..chain.len()).rev() {
            let (at, wrap) = place(n);
            let (address, bytes, flags) = chain[n];
            let link = if n + 1 < chain.len() { NEXT } else { 0 };
            let flags = flags | link | Self::flags(wrap);
            Self::put(self.raw.areas[0], at, (address, bytes, flags), id);
        }
        (self.next, self.wrap) = place(chain.len());
        first
    }

    /// Whether what began there is used soon.
    fn is_used(&self, (at, wrap): (u16, bool)) -> bool {
        let both = if wrap { AVAILABLE | USED } else { 0 };
        let flags = || get::<u16>(self.raw.areas[0] + 16 * u64::from(at) + 14);
        wait::until(|| flags() & (AVAILABLE | USED) == both)
    }
}

/// All of it.
pub fn packed(test: &str, boot: &Boot) {
    let Some(disk) = needed(test) else { return };
    let raw = Raw::new(boot, 0);
    let mut ring = Ring { disk: &disk, raw: &raw, size: 0, next: 0, wrap: true };
    let sizes = rounds(&mut ring);
    check!(test, sizes == 5, "{sizes} of 5 sizes go round {ROUNDS} times");
    let idle = wraps(&mut ring);
    check!(test, idle == 4, "{idle} of 4 times nothing is served that isn't offered");
    let (ended, all) = bad(&mut ring, boot);
    check!(test, ended == all && all > 20, "{ended} of {all} chains ended their queue");
    let answered = odd(&mut ring);
    check!(test, answered == 4, "{answered} of 4 odd tables are served");
    let (used, given_up) = rewritten(&mut ring);
    check!(
        test,
        used > 0 && used + given_up == REWRITES,
        "{used} of {REWRITES} rewritten chains used, {given_up} given up"
    );
    super::afterwards(test, &disk, boot);
}

/// Rings of sizes that are a power of two and not, full round after round. How many are right.
fn rounds(ring: &mut Ring) -> usize {
    let all = [3, 4, 7, 127, 128];
    let right = |size: &u16| {
        let mut right = ring.start(*size);
        for n in 0..ROUNDS * u64::from(*size) {
            put(ring.raw.status(), outcome::NONE);
            let chain = ring.good();
            let first = ring.offer(&chain, n as u16 % *size);
            right = right && ring.is_used(first) && get::<u8>(ring.raw.status()) == outcome::OK;
        }
        right
    };
    all.iter().copied().filter(right).count()
}

/// Descriptors whose flags don't say that they are available. How often nothing was done.
fn wraps(ring: &mut Ring) -> usize {
    let kinds = [0, USED, AVAILABLE | USED, WRITE];
    let still = |flags: &u16| {
        let started = ring.start(8);
        for at in 0..8 {
            Ring::put(ring.raw.areas[0], at, (ring.raw.header(), 16, *flags), at);
        }
        wait::settle();
        let status = ring.disk.status();
        let here = |at: u64| get::<u16>(ring.raw.areas[0] + 16 * at + 14) == *flags;
        started && status & status::NEEDS_RESET == 0 && (0..8).all(here)
    };
    kinds.iter().copied().filter(still).count()
}

/// Chains that must end the queue: how many did, of how many.
fn bad(ring: &mut Ring, boot: &Boot) -> (usize, usize) {
    let (raw, disk) = (ring.raw, ring.disk);
    let [header, data, state] = ring.good();
    let (table, own) = (raw.table(), raw.areas[0]);
    let (mut ended, mut all) = (0, 0);
    let mut tried = |ring: &mut Ring, chain: &[Piece], inner: &[Piece], id: u16| {
        let started = ring.start(16);
        (0..).zip(inner).for_each(|(at, piece)| Ring::put(table, at, *piece, 0));
        ring.offer(chain, id);
        all += 1;
        ended += usize::from(started && gives_up(disk));
    };
    // Buffer IDs that there aren't.
    for id in [16, 17, 255, 0x7FFF, 0xFFFF] {
        tried(ring, &[header, data, state], &[], id);
    }
    // Longer than the ring; the last leads to the first.
    tried(ring, &[(raw.data(), 0, NEXT | WRITE); 16], &[], 0);
    tried(ring, &[(raw.data(), 8, NEXT); 16], &[], 0);
    // The device's part first, no place for the status, no header's end.
    tried(ring, &[data, header], &[], 0);
    tried(ring, &[header], &[], 0);
    // Tables: with more behind, behind others, of lengths that none has, over the ring itself.
    tried(ring, &[(table, 48, INDIRECT), state], &[header, data, state], 0);
    tried(ring, &[header, (table, 32, INDIRECT)], &[data, state], 0);
    for bytes in [0, 1, 15, 17, 16 * 131, 0x8000_0000, u32::MAX] {
        tried(ring, &[(table, bytes, INDIRECT)], &[header, data, state], 0);
    }
    // Of a ring that is no request: two descriptors of it, and then what is zero.
    tried(ring, &[(own, 32, INDIRECT)], &[], 0);
    for address in elsewhere(disk, boot) {
        tried(ring, &[(address, 48, INDIRECT)], &[], 0);
        tried(ring, &[header, (address, 512, WRITE), state], &[], 0);
    }
    (ended, all)
}

/// Tables that look bad and aren't: at an odd address, across two pages, with flags that mean
/// nothing there, in the ring's own last places. How many are served.
fn odd(ring: &mut Ring) -> usize {
    let raw = ring.raw;
    let chain = ring.good();
    let places = [raw.table() + 1, raw.table() + 0x1000 - 24, raw.table(), raw.areas[0] + 16 * 100];
    let served = |(kind, table): (usize, u64)| {
        let mut right = ring.start(128);
        let more = if kind == 2 { NEXT | INDIRECT | USED } else { 0 };
        for (at, (address, bytes, flags)) in (0..).zip(chain) {
            Ring::put(table, at, (address, bytes, flags | more), 0xFFFF);
        }
        let first = ring.offer(&[(table, 48, INDIRECT)], 5);
        right = right && ring.is_used(first);
        right && get::<u8>(raw.status()) == outcome::OK
    };
    places.into_iter().enumerate().map(served).filter(|right| *right).count()
}

/// Chains whose descriptors change as soon as they are offered: used or given up, each. The next
/// begins with another ring.
fn rewritten(ring: &mut Ring) -> (u64, u64) {
    let mut random = Random::new(SEED);
    let (mut used, mut given_up) = (0, 0);
    for _ in 0..REWRITES {
        let started = ring.start(16);
        let table = ring.raw.table();
        let chain = ring.good();
        (0..).zip(chain).for_each(|(at, piece)| Ring::put(table, at, piece, 0));
        let first = match random.number() & 1 {
            0 => ring.offer(&[(table, 48, INDIRECT)], 0),
            _ => ring.offer(&chain, 0),
        };
        // What makes it unavailable again isn't among it: then it would be neither.
        for _ in 0..random.number() % 32 {
            let r = random.number();
            let at = if r & 1 == 0 { table } else { ring.raw.areas[0] };
            let at = at + 16 * (r >> 1 & 3);
            match r >> 8 & 3 {
                0 => put(at, [0, !0xFFF, table, ring.raw.areas[0]][(r >> 16 & 3) as usize]),
                1 => put(at + 8, [0, 16, u32::MAX, r as u32][(r >> 18 & 3) as usize]),
                2 => put(at + 12, (r >> 32) as u16),
                _ => put(at + 10, (r >> 48) as u16),
            }
        }
        let both = AVAILABLE | USED;
        let at = ring.raw.areas[0] + 16 * u64::from(first.0) + 14;
        let mut broken = false;
        let ended = started
            && wait::until(|| {
                broken = ring.disk.status() & status::NEEDS_RESET != 0;
                broken || get::<u16>(at) & both == both
            });
        given_up += u64::from(ended && broken);
        used += u64::from(ended && !broken);
    }
    (used, given_up)
}
