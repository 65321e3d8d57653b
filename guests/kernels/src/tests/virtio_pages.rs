//! virtio-blk whose requests name a page more than once, before one that is full of addresses: a
//! server that counts pages where it should count pieces has its controller take that page for a
//! list of what to read and write.
//!
//! Each read leaves in memory what is on the disk, and nothing beside it; each write leaves on the
//! disk what was in memory. The addresses are all that the machine may have memory at, so that a
//! list that is taken for one hits the neighbour, which watches its own. `reach=N`: how many MiB.

use super::virtio::{SECTOR, fill, started, word};
use crate::virtio_blk::{self as blk, Queue, Request, kind, status as outcome};
use crate::virtqueue::{Descriptor, NEXT, WRITE, get, put};
use crate::{boot::Boot, console::check, console::typed, wait};

const PAGE: u64 = 4096;
/// Sectors of the disk that all requests are within.
const SECTORS: u64 = 128;
const ON_DISK: u64 = 0x0D15_C0DE;
const IN_MEMORY: u64 = 0x3E30_12F0;
/// Distance of the addresses that are tried: less than a neighbour watches.
const STEP: u64 = 4 << 20;
/// What a list of addresses has if there is nothing to hit.
const NOWHERE: u64 = 0x10_0000;

/// Part of a page, by the page's number.
#[derive(Clone, Copy)]
struct Piece {
    page: u64,
    at: u64,
    bytes: u64,
}

const fn part(page: u64, at: u64, bytes: u64) -> Piece {
    Piece { page, at, bytes }
}

const X: Piece = part(0, 0, PAGE);
const Z: Piece = part(1, 0, PAGE);
/// The page with the addresses.
const Y: Piece = part(LISTED, 0, PAGE);
const LISTED: u64 = 2;
const PAGES: u64 = 3;

/// The first bytes of a page, and its last ones.
const HEAD: Piece = part(0, 0, 512);
const TAIL: Piece = part(0, PAGE - 512, 512);
/// Half a block: such pieces can't be where they are, and are copied.
const HALF: Piece = part(0, 0, 256);

const SHAPES: [&[Piece]; 14] = [
    &[X, X],
    &[X, X, Y],
    &[X, X, X, Y],
    &[Z, X, X, Y],
    &[X, Y, X, Y],
    &[X, X, Z, Z, Y, Y],
    // A page comes again where it ended, or begins.
    &[TAIL, X, HEAD],
    &[TAIL, X, Y],
    &[TAIL, X, X, Y],
    &[X, HEAD],
    &[part(0, 0, 2048), part(0, 2048, 2048), X, Y],
    // Commands of their own, more than an operation may have, and what is copied.
    &[HEAD, HEAD, HEAD],
    &[HEAD, HEAD, HEAD, HEAD, HEAD, HEAD, HEAD, HEAD, HEAD, X, Y],
    &[HALF, X, Y, HALF],
];

/// All shapes, then one whose page of addresses is a whole list, for each address there may be.
pub fn pages(test: &str, boot: &Boot) {
    let Some(disk) = started(test, boot, 0, 1) else { return };
    let queue = blk::queue(0);
    queue.ring.be_quiet(true);
    // The neighbour watches by then.
    check!(test, wait::patiently(|| typed().is_some()), "told to begin");
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let (wrote, read) = (written(queue, shape), prepare(queue) && reads(queue, shape, NOWHERE));
        check!(test, wrote && read, "shape {number}: written {wrote}, read {read}");
    }
    let reach = boot.option("reach").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 20;
    let mut whole = [X; 16];
    whole[15] = Y;
    let tried = reach / STEP;
    let prepared = prepare(queue);
    let right = (0..tried).filter(|n| reads(queue, &whole, n * STEP)).count() as u64;
    check!(test, prepared && right == tried, "{right} of {tried} reads were of the disk alone");
    check!(test, disk.reset(), "it can be reset");
}

/// Has the disk hold what reads are to find.
fn prepare(queue: &Queue) -> bool {
    plain_requests().all(|sector| {
        fill(queue, 0, sector, blk::DATA, ON_DISK);
        let said = queue.one(Request::new(kind::OUT, sector, blk::DATA));
        said == Some((outcome::OK, 1))
    })
}

/// The first sectors of requests of one piece that go through all.
fn plain_requests() -> impl Iterator<Item = u64> {
    (0..SECTORS).step_by((blk::DATA / SECTOR) as usize)
}

/// Whether a read leaves the disk's data in these pieces, and all else as it was.
fn reads(queue: &Queue, shape: &[Piece], target: u64) -> bool {
    lay_out(queue, target);
    let bytes = shape.iter().map(|piece| piece.bytes).sum::<u64>() as u32;
    if ask(queue, kind::IN, shape) != Some((outcome::OK, bytes + 1)) {
        return false;
    }
    // Of pieces that lie one over the other any may have been the last.
    let may_be = |page: u64, at: u64, found: u64| {
        let (mut is_named, mut offset) = (false, 0);
        for piece in shape {
            let inside = at.checked_sub(piece.at).filter(|inside| *inside < piece.bytes);
            if let Some(inside) = inside.filter(|_| piece.page == page) {
                is_named = true;
                if found == on_disk(offset + inside) {
                    return true;
                }
            }
            offset += piece.bytes;
        }
        !is_named && found == laid_out(page, at, target)
    };
    (0..PAGES)
        .all(|page| (0..PAGE).step_by(8).all(|at| may_be(page, at, get(place(queue, page) + at))))
}

/// Whether a write leaves these pieces on the disk, one behind the other.
fn written(queue: &Queue, shape: &[Piece]) -> bool {
    if !prepare(queue) {
        return false;
    }
    lay_out(queue, NOWHERE);
    if ask(queue, kind::OUT, shape) != Some((outcome::OK, 1)) {
        return false;
    }
    let wanted = |offset: u64| {
        let mut left = offset;
        for piece in shape {
            if left < piece.bytes {
                return laid_out(piece.page, piece.at + left, NOWHERE);
            }
            left -= piece.bytes;
        }
        on_disk(offset)
    };
    plain_requests().all(|sector| {
        let said = queue.one(Request::new(kind::IN, sector, blk::DATA));
        let offset = sector * u64::from(SECTOR);
        let right = |at: u64| get::<u64>(queue.data(0) + at) == wanted(offset + at);
        said.is_some_and(|said| said.0 == outcome::OK)
            && (0..u64::from(blk::DATA)).step_by(8).all(right)
    })
}

/// A request of these pieces, from the first sector on: what it comes to.
fn ask(queue: &Queue, kind: u32, shape: &[Piece]) -> Option<(u8, u32)> {
    let header = queue.data(8 + PAGES as usize);
    let status = header + 16;
    put(header, u64::from(kind));
    put(header + 8, 0u64);
    put(status, outcome::NONE);
    let flags = if kind == kind::IN { WRITE | NEXT } else { NEXT };
    let front = core::iter::once((header, 16, NEXT));
    let data = shape.iter().map(|p| (place(queue, p.page) + p.at, p.bytes as u32, flags));
    let chain = front.chain(data).chain([(status, 1, WRITE)]);
    for (index, (address, bytes, flags)) in (0..).zip(chain) {
        Descriptor { address, bytes, flags, next: index + 1 }.put(queue.ring.descriptors(), index);
    }
    queue.ring.publish(0);
    let mut used = None;
    wait::patiently(|| {
        used = queue.ring.take();
        used.is_some()
    });
    used.filter(|(head, _)| *head == 0).map(|(_, written)| (get(status), written))
}

/// Where a page is.
fn place(queue: &Queue, page: u64) -> u64 {
    queue.data(8 + page as usize)
}

/// Fills all pages.
fn lay_out(queue: &Queue, target: u64) {
    for page in 0..PAGES {
        (0..PAGE)
            .step_by(8)
            .for_each(|at| put(place(queue, page) + at, laid_out(page, at, target)));
    }
}

/// What a page has at an offset before a request.
fn laid_out(page: u64, at: u64, target: u64) -> u64 {
    match page {
        LISTED => target + at / 8 * PAGE,
        _ => word(page, at / 8, IN_MEMORY),
    }
}

/// What the disk has at an offset.
fn on_disk(offset: u64) -> u64 {
    let sector = u64::from(SECTOR);
    word(offset / sector, offset % sector / 8, ON_DISK)
}
