//! Descriptors (2.7.5, 2.8.13), as they are read: each once, in two words.
//!
//! Guarantees: what is checked is what was read. A table is followed for no more descriptors than
//! [`SEGMENTS`].
use crate::chain::{Plain, Taking};
use crate::{Broken, Chain, SEGMENTS};
use core::slice::Iter;
use window::{Outside, Span, Window};

/// VIRTQ_DESC_F_NEXT: the chain goes on.
pub const NEXT: u16 = 1 << 0;
/// VIRTQ_DESC_F_WRITE: the device may write the buffer, else it may read it.
pub const WRITE: u16 = 1 << 1;
/// VIRTQ_DESC_F_INDIRECT: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 1 << 2;
/// Bytes of a descriptor, of either kind.
pub const BYTES: u64 = 16;

/// A descriptor of a packed ring, or of a table for one.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    pub address: u64,
    pub len: u32,
    pub id: u16,
    pub flags: u16,
}

impl Packed {
    /// Where its word with the flags is in the ring.
    #[inline]
    pub fn flags_at(index: u16) -> u64 {
        u64::from(index) * BYTES + 8
    }

    /// The word of length, buffer ID and flags as it is in the ring.
    #[inline]
    pub fn word(len: u32, id: u16, flags: u16) -> u64 {
        u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
    }

    /// The flags in that word.
    #[inline]
    pub fn flags_of(word: u64) -> u16 {
        (word >> 48) as u16
    }

    /// The one with this index, whose other word has been read.
    #[inline]
    pub fn read(ring: &Span, index: u16, word: u64) -> Result<Packed, Outside> {
        Ok(Packed::of(ring.load_u64(u64::from(index) * BYTES)?, word))
    }

    #[inline]
    fn of(address: u64, word: u64) -> Packed {
        let (len, id) = (word as u32, (word >> 32) as u16);
        Packed { address, len, id, flags: Packed::flags_of(word) }
    }
}

/// Takes the chain that begins with this head of a split ring's table, whose words were read. It
/// has no more descriptors there than the table has, and at most one indirect table at its end
/// (2.7.5.3.2). That is a chain of its own, from its first descriptor on (2.7.5.3); it may be
/// longer than the queue: Linux makes such ones for a small queue.
#[inline]
pub fn split_chain(
    window: &Window,
    ring: &Span,
    words: [u64; 2],
    head: u16,
    indirect: bool,
    chain: &mut Chain,
) -> Result<(), Broken> {
    if !is(words, NEXT | INDIRECT)
        && let Some(span) = window.span_of_largest(words[0], u64::from(words[1] as u32))
    {
        // As nearly all frames are.
        chain.set_one(head, span, is(words, WRITE));
        return Ok(());
    }
    split_walk(window, ring, words, &[], head, indirect, chain)
}

/// The same of a chain whose first descriptor was read, and the next ones, which are `seen`.
///
/// A function of its own, for its loop needs all registers. What nearly no chain has is left to
/// [`go_on`].
#[inline(never)]
pub fn split_walk(
    window: &Window,
    ring: &Span,
    mut words: [u64; 2],
    seen: &[[u64; 2]],
    head: u16,
    indirect: bool,
    chain: &mut Chain,
) -> Result<(), Broken> {
    let (mut span, mut address, mut len) = (*ring, 0, 0);
    let mut most = SEGMENTS.min((ring.len() / BYTES) as usize);
    let mut plain = chain.begin_plain(window);
    let mut seen = seen.iter();
    if is(words, INDIRECT) {
        // The whole chain is in a table.
        let table = Table::from(window, words, indirect)?;
        (span, address, len, most) = (table.span, table.address, table.len, SEGMENTS);
        match seen.next().map_or_else(|| span.load_u64_pair(0), |words| Ok(*words)) {
            Ok(first) => words = first,
            Err(Outside) => return go_on(table, Step::At(0), seen, indirect, plain, head),
        }
    }
    loop {
        if is(words, INDIRECT) || !plain.push(words[0], words[1] as u32, is(words, WRITE))? {
            let table = Table { span, address, len };
            return go_on(table, Step::Read(words), seen, indirect, plain, head);
        }
        if !is(words, NEXT) {
            return plain.finish(head);
        }
        if plain.count() >= most {
            return Err(Broken::TooLong);
        }
        let next = (words[1] >> 48) as u16;
        let load = || span.load_u64_pair(u64::from(next) * BYTES);
        let Ok(following) = seen.next().map_or_else(load, |words| Ok(*words)) else {
            let table = Table { span, address, len };
            return go_on(table, Step::At(next), seen, indirect, plain, head);
        };
        words = following;
    }
}

/// Where a chain goes on.
enum Step {
    /// At the table's descriptor of this index.
    At(u16),
    /// At this descriptor, which was read.
    Read([u64; 2]),
}

/// Takes the rest of a chain, whatever it is.
#[cold]
#[inline(never)]
fn go_on(
    mut table: Table,
    mut step: Step,
    mut seen: Iter<'_, [u64; 2]>,
    indirect: bool,
    plain: Plain<'_>,
    head: u16,
) -> Result<(), Broken> {
    let mut chain = plain.go_on()?;
    let most = if table.is_indirect() { SEGMENTS as u32 } else { table.entries() };
    let mut left = most.min(SEGMENTS as u32).saturating_sub(chain.descriptors());
    while left > 0 {
        left -= 1;
        let words = match step {
            Step::At(index) => table.words(chain.window, index)?,
            Step::Read(words) => words,
        };
        if is(words, INDIRECT) {
            table = Table::from(chain.window, words, indirect && !table.is_indirect())?;
            (left, step) = (SEGMENTS as u32, Step::At(0));
            continue;
        }
        chain.push(words[0], words[1] as u32, is(words, WRITE))?;
        if !is(words, NEXT) {
            chain.finish(head);
            return Ok(());
        }
        let next = Step::At((words[1] >> 48) as u16);
        step = seen.next().map_or(next, |words| Step::Read(*words));
    }
    Err(Broken::TooLong)
}

/// Whether a descriptor of a split ring has this flag.
#[inline(always)]
fn is(words: [u64; 2], flag: u16) -> bool {
    (words[1] >> 32) as u16 & flag != 0
}

/// Takes all of the indirect table of a packed ring (2.8.7): WRITE is the only flag that counts.
#[inline]
pub fn packed_table(address: u64, len: u32, chain: &mut Taking<'_>) -> Result<(), Broken> {
    let table = Table::new(chain.window, address, len)?;
    if table.entries() > SEGMENTS as u32 {
        return Err(Broken::TooLong);
    }
    for index in 0..table.entries() as u16 {
        let [address, word] = table.words(chain.window, index)?;
        let descriptor = Packed::of(address, word);
        chain.push(descriptor.address, descriptor.len, descriptor.flags & WRITE != 0)?;
    }
    Ok(())
}

/// A table of descriptors: a ring's, or an indirect one, which may lie anywhere in memory, aligned
/// or not.
struct Table {
    /// All of it, if one region holds it, else nothing.
    span: Span,
    /// Where an indirect one is, and its bytes: else 0.
    address: u64,
    len: u32,
}

impl Table {
    #[inline]
    fn new(window: &Window, address: u64, len: u32) -> Result<Table, Broken> {
        if len == 0 || !len.is_multiple_of(BYTES as u32) {
            return Err(Broken::TableLength(len));
        }
        let span = window.span(address, len.into()).unwrap_or(Span::EMPTY);
        Ok(Table { span, address, len })
    }

    /// The one that a descriptor of a split ring refers to, if there `may` be one.
    #[inline]
    fn from(window: &Window, words: [u64; 2], may: bool) -> Result<Table, Broken> {
        if !may || is(words, NEXT) {
            return Err(Broken::Indirect);
        }
        Table::new(window, words[0], words[1] as u32)
    }

    fn is_indirect(&self) -> bool {
        self.len != 0
    }

    /// How many descriptors it has.
    fn entries(&self) -> u32 {
        let bytes = if self.is_indirect() { self.len.into() } else { self.span.len() };
        (bytes / BYTES) as u32
    }

    /// The two words of a descriptor, each read once.
    #[inline(always)]
    fn words(&self, window: &Window, index: u16) -> Result<[u64; 2], Broken> {
        match self.span.load_u64_pair(u64::from(index) * BYTES) {
            Ok(words) => Ok(words),
            Err(Outside) => self.read_bytes(window, index),
        }
    }

    /// The same of one in an indirect table that isn't aligned, or goes over the border of regions.
    #[cold]
    #[inline(never)]
    fn read_bytes(&self, window: &Window, index: u16) -> Result<[u64; 2], Broken> {
        if u32::from(index) >= self.entries() {
            return Err(Broken::Index(index));
        }
        if !self.is_indirect() {
            return Err(Broken::Ring);
        }
        let outside = Broken::Outside { address: self.address, len: self.len };
        let mut words = [[0; 8]; 2];
        let at = self.address.checked_add(u64::from(index) * BYTES).ok_or(outside)?;
        window.read(at, words.as_flattened_mut()).map_err(|_| outside)?;
        Ok(words.map(u64::from_le_bytes))
    }
}
