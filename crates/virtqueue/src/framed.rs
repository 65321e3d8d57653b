//! Chains of three buffers: data between a header and a trailer, as nearly all of a disk's requests
//! are laid out. They are taken by straight code, anything else by the walk of `descriptor`.
//!
//! Guarantees: what comes out was checked as that walk does it; a descriptor that was read for
//! nothing isn't read again, but handed on.
use crate::descriptor::{BYTES, INDIRECT, NEXT, WRITE};
use crate::{Chain, Head};
use arrayvec::ArrayVec;
use core::iter::once;
use window::{Ring, Span, Window};

/// A chain of three buffers, none of them empty. The device may read the header and write the
/// trailer. Until it is used or held the driver has lost it.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Which chain it is.
    pub head: Head,
    /// The first buffer, of `H` bytes.
    pub header: Span,
    /// The second one. All three together are less than 2^32 bytes.
    pub data: Span,
    /// The third one, of `T` bytes.
    pub trailer: Span,
    /// The device may write the data, else it may read it.
    pub writable: bool,
}

/// What was read of a chain that wasn't taken: nobody reads it again.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(crate) head: u16,
    /// The head's descriptor, and those behind it. If it has none, nothing counts.
    pub(crate) words: ArrayVec<[u64; 2], 4>,
}

impl Framed {
    /// Fills a chain with it.
    pub fn put(&self, chain: &mut Chain) {
        let Framed { head, header, data, trailer, writable } = *self;
        chain.set_three(head, [header, data, trailer], if writable { 1 } else { 2 });
    }
}

/// The chain that begins with these words of a split ring's table, if it is of three buffers with a
/// header of `H` bytes and a trailer of `T`: in a table of its own if `TABLE`, else in the ring's.
#[inline(always)]
pub fn framed<const H: u32, const T: u32, const TABLE: bool>(
    window: &Window,
    ring: &Ring<[u64; 2]>,
    words: [u64; 2],
    head: u16,
    untaken: &mut Option<Seen>,
) -> Option<Framed> {
    let mut untaken = |behind: &[[u64; 2]]| {
        other(untaken, head, words[0], words[1], behind);
        None
    };
    let (first, second, third);
    if TABLE {
        if !is(words, TABLE_BYTES as u32, INDIRECT) {
            return untaken(&[]);
        }
        let Some(table) = window.span_of_largest(words[0], TABLE_BYTES) else {
            return untaken(&[]);
        };
        let Ok(one) = table.load_u64_pair(0) else { return untaken(&[]) };
        if one[1] != u64::from(H) | u64::from(NEXT) << 32 | 1 << 48 {
            return untaken(&[one]);
        }
        let Ok(two) = table.load_u64_pair(BYTES) else { return untaken(&[one]) };
        if two[1] >> 32 & !u64::from(WRITE) != u64::from(NEXT) | 2 << 16 {
            return untaken(&[one, two]);
        }
        let Ok(three) = table.load_u64_pair(2 * BYTES) else { return untaken(&[one, two]) };
        (first, second, third) = (one, two, three);
    } else {
        if !is(words, H, NEXT) {
            return untaken(&[]);
        }
        let Some(two) = ring.get(next(words)) else { return untaken(&[]) };
        if (two[1] >> 32) as u16 & !WRITE != NEXT {
            return untaken(&[two]);
        }
        let Some(three) = ring.get(next(two)) else { return untaken(&[two]) };
        (first, second, third) = (words, two, three);
    }
    let len = second[1] as u32;
    if is(third, T, WRITE)
        && len <= u32::MAX - H - T
        && let Some(header) = window.span_of_largest(first[0], H.into())
        && let Some(data) = window.span_of_largest(second[0], len.into())
        && let Some(trailer) = window.span_of_largest(third[0], T.into())
    {
        let writable = second[1] & u64::from(WRITE) << 32 != 0;
        return Some(Framed { head: Head(head), header, data, trailer, writable });
    }
    if TABLE { untaken(&[first, second, third]) } else { untaken(&[second, third]) }
}

/// Bytes of a table of three descriptors.
const TABLE_BYTES: u64 = 3 * BYTES;

/// A chain that isn't taken: these words were read of it.
#[cold]
#[inline(never)]
fn other(untaken: &mut Option<Seen>, head: u16, first: u64, second: u64, behind: &[[u64; 2]]) {
    let words = once([first, second]).chain(behind.iter().copied()).collect();
    *untaken = Some(Seen { head, words });
}

impl Seen {
    /// Whether the chain lies in a table of its own, if that was read.
    pub fn in_table(&self) -> Option<bool> {
        self.words.first().map(|words| words[1] & u64::from(INDIRECT) << 32 != 0)
    }
}

/// Where a descriptor leads.
#[inline(always)]
fn next(words: [u64; 2]) -> u16 {
    (words[1] >> 48) as u16
}

/// Whether a descriptor is of this length and has these flags alone, wherever it leads.
#[inline(always)]
fn is(words: [u64; 2], len: u32, flags: u16) -> bool {
    words[1] << 16 == (u64::from(len) | u64::from(flags) << 32) << 16
}
