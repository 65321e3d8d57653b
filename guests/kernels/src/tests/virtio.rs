//! virtio-blk: negotiation, configuration, and each kind of request with what it comes to.
//!
//! The disk is one that may be overwritten. Options say what it must be: `sectors=N`, `serial=X`,
//! `bad=N`, a sector that can't be read; and what it is to hold: `pattern=N`.

use crate::virtio::{BLOCK, Virtio, feature, status};
use crate::virtio_blk::{self as blk, Queue, Request, features, kind, status as outcome};
use crate::virtqueue::{get, put};
use crate::{boot::Boot, console::check, counters};
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a sector, in which the device counts.
pub const SECTOR: u32 = 512;
/// What this kernel asks for where the device offers it.
pub const WANTED: u64 = feature::VERSION_1
    | feature::EVENT_INDEX
    | feature::INDIRECT
    | features::SEG_MAX
    | features::RO
    | features::BLK_SIZE
    | features::FLUSH
    | features::MQ
    | features::DISCARD
    | features::WRITE_ZEROES;
const WRITTEN: u64 = 0x5EED_0001;
/// Mixed into every word: VMs whose disks lie side by side have different ones.
static PATTERN: AtomicU64 = AtomicU64::new(0);

/// The first block device, or a failed check.
pub fn disk(test: &str) -> Option<Virtio> {
    let found = Virtio::all(BLOCK).next();
    if found.is_none() {
        check!(test, false, "no block device (1AF4:1042) with MSI-X on bus 0");
    }
    found
}

/// The same with `count` queues and these features of its own at work; interrupts are masked.
pub fn started(test: &str, boot: &Boot, unwanted: u64, count: usize) -> Option<Virtio> {
    let disk = disk(test)?;
    let pattern = boot.option("pattern").and_then(|n| n.parse().ok());
    PATTERN.store(pattern.unwrap_or(0), Ordering::Relaxed);
    let features = disk.offered() & WANTED & !unwanted;
    let good = usize::from(disk.queues()) >= count && blk::start(&disk, features, count, boot);
    check!(test, good, "{count} of {} queues, features {features:#x}", disk.queues());
    good.then_some(disk)
}

/// What stands in a word of a sector.
pub fn word(sector: u64, index: u64, seed: u64) -> u64 {
    let mixed = (sector << 8 | index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ seed ^ PATTERN.load(Ordering::Relaxed)
}

/// Fills a slot's data with what is to be on the disk from `sector` on.
pub fn fill(queue: &Queue, slot: usize, sector: u64, bytes: u32, seed: u64) {
    each(queue, slot, sector, bytes, |at, sector, index| {
        put(at, word(sector, index, seed));
        true
    });
}

/// Whether a slot's data is that.
pub fn holds(queue: &Queue, slot: usize, sector: u64, bytes: u32, seed: u64) -> bool {
    each(queue, slot, sector, bytes, |at, sector, index| {
        get::<u64>(at) == word(sector, index, seed)
    })
}

fn each(
    queue: &Queue,
    slot: usize,
    sector: u64,
    bytes: u32,
    mut what: impl FnMut(u64, u64, u64) -> bool,
) -> bool {
    let words = u64::from(SECTOR / 8);
    (0..u64::from(bytes / 8)).all(|i| what(queue.data(slot) + 8 * i, sector + i / words, i % words))
}

/// What the device says of itself, and what it takes.
pub fn negotiation(test: &str, _: &Boot) {
    let Some(disk) = disk(test) else { return };
    check!(test, disk.reset(), "it can be reset");
    let offered = disk.offered();
    let needed = feature::VERSION_1 | feature::EVENT_INDEX | feature::INDIRECT | features::FLUSH;
    check!(test, offered & needed == needed, "offers {offered:#x}");
    let vectors = (0..disk.queues()).map(|q| disk.vectors(q));
    let clear = vectors.into_iter().all(|v| v == (0xFFFF, 0xFFFF, false));
    check!(test, clear, "no queue is enabled, none has a vector");
    check!(test, disk.entries() > disk.queues(), "{} entries of MSI-X", disk.entries());
    let more = (0..64).find(|bit| offered >> bit & 1 == 0).map_or(0, |bit| 1 << bit);
    if counters::under_exitless() {
        let without = offered & WANTED & !feature::VERSION_1;
        check!(test, !disk.negotiate(without), "not without VERSION_1");
        let refused = !disk.negotiate(offered & WANTED | more);
        check!(test, refused, "not with a feature that it doesn't offer: {more:#x}");
    }
    let taken = disk.negotiate(offered & WANTED);
    let bits = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK;
    check!(test, taken && disk.status() == bits, "status {:#x}", disk.status());
    check!(test, disk.reset() && disk.status() == 0, "a reset takes it all back");
}

/// Each kind of request, in one piece and in two, with and without indirect descriptors.
pub fn requests(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let sectors = config(test, &disk, boot);
    let offered = disk.offered();
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    for indirect in [false, true] {
        queue.be_indirect(indirect);
        for (sector, bytes, first) in
            [(0, 512, 512), (1, 512, 16), (8, 4096, 4096), (17, 8192, 24), (sectors - 16, 8192, 8)]
        {
            let seed = WRITTEN + u64::from(bytes) + u64::from(indirect);
            fill(queue, 0, sector, bytes, seed);
            let wrote = queue.one(Request { kind: kind::OUT, sector, bytes, first });
            fill(queue, 0, sector, bytes, !seed);
            let read = queue.one(Request { kind: kind::IN, sector, bytes, first });
            let same = holds(queue, 0, sector, bytes, seed);
            let right = wrote == Some((outcome::OK, 1)) && read == Some((outcome::OK, bytes + 1));
            check!(
                test,
                right && same,
                "{bytes} bytes at {sector}, {first} in front, indirect {indirect}: {wrote:?}, {read:?}"
            );
        }
    }
    let flushed = queue.one(Request::new(kind::FLUSH, 0, 0));
    check!(test, flushed == Some((outcome::OK, 1)), "flush: {flushed:?}");
    identity(test, queue, boot);
    if offered & features::WRITE_ZEROES != 0 {
        zeroed(test, queue);
    }
    if offered & features::DISCARD != 0 {
        discarded(test, queue);
    }
    refused(test, queue, sectors);
    let account = queue.account();
    check!(test, account.balances() && account.by_interrupt == 0, "{account:?}");
    // QEMU sets it all the same.
    let silent = disk.isr() == 0 || !counters::under_exitless();
    check!(test, silent, "no ISR status with MSI-X");
    check!(test, disk.reset(), "it can be reset");
}

/// The configuration (5.2.4); gives the capacity.
fn config(test: &str, disk: &Virtio, boot: &Boot) -> u64 {
    let wide = |at| u64::from(disk.config(at)) | u64::from(disk.config(at + 4)) << 32;
    let generation = disk.generation();
    let (sectors, segments, block) = (wide(0), disk.config(12), disk.config(20));
    let same = disk.generation() == generation;
    let wanted = boot.option("sectors").and_then(|n| n.parse::<u64>().ok());
    let right = wanted.is_none_or(|n| n == sectors) && sectors > 64;
    check!(test, right && same, "{sectors} sectors, generation {generation}");
    let offered = disk.offered();
    let segments_right = offered & features::SEG_MAX == 0 || segments >= 2;
    let block_right = offered & features::BLK_SIZE == 0 || block == SECTOR;
    check!(test, segments_right && block_right, "{segments} segments, blocks of {block}");
    let queues = (disk.config(32) >> 16) as u16;
    let right = offered & features::MQ == 0 || queues == disk.queues();
    check!(test, right, "num_queues {queues} of {}", disk.queues());
    let limits = [36, 40, 48, 52].map(|at| disk.config(at));
    let [discard, discard_segments, zeroes, zeroes_segments] = limits;
    let has = |bit, limits: [u32; 2]| offered & bit == 0 || limits.iter().all(|n| *n > 0);
    let right = has(features::DISCARD, [discard, discard_segments])
        && has(features::WRITE_ZEROES, [zeroes, zeroes_segments]);
    check!(test, right, "limits of discard and write zeroes {limits:?}");
    sectors
}

fn identity(test: &str, queue: &Queue, boot: &Boot) {
    const BYTES: u32 = 20;
    (0..u64::from(BYTES)).for_each(|i| put(queue.data(0) + i, 0xEEu8));
    let read = queue.one(Request::new(kind::GET_ID, 0, BYTES));
    let found: [u8; BYTES as usize] = core::array::from_fn(|i| get(queue.data(0) + i as u64));
    let wanted = boot.option("serial").unwrap_or("").as_bytes();
    // QEMU ends it with one zero and leaves the rest.
    let ends = if counters::under_exitless() { found.len() } else { wanted.len() + 1 };
    let padded = wanted.iter().copied().chain(core::iter::repeat(0)).take(ends);
    let same = found.into_iter().zip(padded).all(|(a, b)| a == b);
    let right = matches!(read, Some((outcome::OK, n)) if n > 1);
    check!(test, right && same, "serial number {found:x?}: {read:?}");
}

/// A segment of discard and write zeroes (5.2.6).
fn range(queue: &Queue, kind: u32, sector: u64, sectors: u32, flags: u32) -> Option<(u8, u32)> {
    put(queue.data(0), sector);
    put(queue.data(0) + 8, sectors);
    put(queue.data(0) + 12, flags);
    queue.one(Request::new(kind, 0, 16))
}

/// Writes 16 sectors from 64 on; gives what reading them says after `what`: how many of the outer
/// ones are as before, and how many of those from 68 to 75 are zero.
fn around(queue: &Queue, what: impl FnOnce()) -> Option<(usize, usize)> {
    const BYTES: u32 = 16 * SECTOR;
    fill(queue, 0, 64, BYTES, WRITTEN);
    queue.one(Request::new(kind::OUT, 64, BYTES)).filter(|o| o.0 == outcome::OK)?;
    what();
    queue.one(Request::new(kind::IN, 64, BYTES)).filter(|o| o.0 == outcome::OK)?;
    let words =
        |sector: u64| (0..64).map(move |i| (i, queue.data(0) + (sector - 64) * 512 + 8 * i));
    let kept =
        |sector: &u64| words(*sector).all(|(i, at)| get::<u64>(at) == word(*sector, i, WRITTEN));
    let zero = |sector: &u64| words(*sector).all(|(_, at)| get::<u64>(at) == 0);
    let outer = (64..68).chain(76..80).filter(kept).count();
    Some((outer, (68..76).filter(zero).count()))
}

fn zeroed(test: &str, queue: &Queue) {
    for unmap in [0, 1] {
        let mut said = None;
        let seen = around(queue, || said = range(queue, kind::WRITE_ZEROES, 68, 8, unmap));
        let right = said == Some((outcome::OK, 1)) && seen == Some((8, 8));
        check!(test, right, "write zeroes, unmap {unmap}: {said:?}, kept and zero {seen:?}");
    }
}

fn discarded(test: &str, queue: &Queue) {
    let mut said = None;
    let seen = around(queue, || said = range(queue, kind::DISCARD, 68, 8, 0));
    let right = said == Some((outcome::OK, 1)) && seen.is_some_and(|s| s.0 == 8);
    check!(test, right, "discard: {said:?}, kept and zero {seen:?}");
    let said = range(queue, kind::DISCARD, 68, 8, 1);
    check!(test, said == Some((outcome::UNSUPP, 1)), "discard with unmap: {said:?}");
}

/// What isn't on the disk, and what no disk knows.
fn refused(test: &str, queue: &Queue, sectors: u64) {
    fill(queue, 0, sectors - 1, SECTOR, WRITTEN);
    let wrote = queue.one(Request::new(kind::OUT, sectors - 1, SECTOR));
    check!(test, wrote == Some((outcome::OK, 1)), "the last sector: {wrote:?}");
    let far = u64::MAX / u64::from(SECTOR);
    for sector in [sectors, sectors - 1, u64::MAX, far, far + 1] {
        for kind in [kind::OUT, kind::IN] {
            let said = queue.one(Request::new(kind, sector, 2 * SECTOR)).map(|o| o.0);
            let right = said == Some(outcome::IOERR);
            check!(test, right, "kind {kind}, two sectors at {sector:#x}: {said:?}");
        }
    }
    let said = queue.one(Request::new(kind::OUT, 0, SECTOR + 8)).map(|o| o.0);
    check!(test, said == Some(outcome::IOERR), "part of a sector: {said:?}");
    let said = queue.one(Request::new(0x7777, 0, SECTOR)).map(|o| o.0);
    check!(test, said == Some(outcome::UNSUPP), "an unknown kind: {said:?}");
    let read = queue.one(Request::new(kind::IN, sectors - 1, SECTOR)).map(|o| o.0);
    let same = holds(queue, 0, sectors - 1, SECTOR, WRITTEN);
    check!(test, read == Some(outcome::OK) && same, "the last sector is as it was: {read:?}");
}

/// A sector that can't be read: each request that has it fails, and no other.
pub fn errors(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let Some(bad) = boot.option("bad").and_then(|n| n.parse::<u64>().ok()) else {
        return check!(test, false, "no option bad=N");
    };
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    for _ in 0..50 {
        for (sector, bytes, wanted) in [
            (bad, SECTOR, outcome::IOERR),
            (bad - 1, SECTOR, outcome::OK),
            (bad + 1, SECTOR, outcome::OK),
            (bad - 3, 8 * SECTOR, outcome::IOERR),
            (bad - 8, 8 * SECTOR, outcome::OK),
        ] {
            let said = queue.one(Request::new(kind::IN, sector, bytes)).map(|o| o.0);
            check!(test, said == Some(wanted), "{bytes} bytes at {sector}: {said:?}");
        }
    }
    let wrote = queue.one(Request::new(kind::OUT, bad, SECTOR));
    check!(test, wrote == Some((outcome::OK, 1)), "it can be written: {wrote:?}");
    let flushed = queue.one(Request::new(kind::FLUSH, 0, 0));
    check!(test, flushed == Some((outcome::OK, 1)), "flush: {flushed:?}");
    check!(test, disk.reset(), "it can be reset");
}

/// A disk that says it is read-only is one.
pub fn read_only(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let offered = disk.offered();
    check!(test, offered & features::RO != 0, "offers {offered:#x}, read-only");
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    let before = queue.one(Request::new(kind::IN, 0, SECTOR));
    let first: u64 = get(queue.data(0));
    check!(test, before == Some((outcome::OK, SECTOR + 1)), "it can be read: {before:?}");
    fill(queue, 0, 0, SECTOR, !WRITTEN);
    let wrote = queue.one(Request::new(kind::OUT, 0, SECTOR)).map(|o| o.0);
    check!(test, wrote == Some(outcome::IOERR), "not written: {wrote:?}");
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        let said = range(queue, kind, 0, 1, 0).map(|o| o.0);
        let right = matches!(said, Some(outcome::IOERR | outcome::UNSUPP));
        check!(test, right, "kind {kind} is refused: {said:?}");
    }
    let after = queue.one(Request::new(kind::IN, 0, SECTOR)).map(|o| o.0);
    let same = after == Some(outcome::OK) && get::<u64>(queue.data(0)) == first;
    check!(test, same, "the first sector is as it was: {after:?}");
    check!(test, disk.reset(), "it can be reset");
}
