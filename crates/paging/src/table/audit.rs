//! Looking a table over from outside, a few entries at a time, while hardware uses it.
//!
//! Guarantees, once a pass has ended without a [`Finding`]: each leaf, when it was looked at,
//! mapped memory that a [`Region`] names, at the address it names and with no more access; each
//! table frame is one of its owner's and lies in no region, so nobody who is mapped here can write
//! to a table. What is called a finding was so while nobody changed the table. A call reads at most
//! five words for each entry it is to look at, twice if that looks wrong, and only words of table
//! frames. Doesn't guarantee that everything is mapped that should be, nor anything about what
//! caches hold.

use super::{Table, entry_address, shift, size};
use crate::{Access, Entry, Format};
use thiserror::Error;

/// Memory that a table may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address it may be mapped at; none: any.
    pub va: Option<u64>,
    /// Where it is.
    pub pa: u64,
    /// Bytes.
    pub len: u64,
    /// The most that may be allowed on it, and how it is to be cached.
    pub access: Access,
}

impl Region {
    /// Whether the page may be mapped so.
    fn allows(&self, va: u64, pa: u64, len: u64, access: Access) -> bool {
        let Some(offset) = pa.checked_sub(self.pa) else { return false };
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let placed = self.va.is_none_or(|at| at.checked_add(offset) == Some(va));
        let cached = access.contains(Access::UNCACHED) == self.access.contains(Access::UNCACHED);
        within && placed && cached && self.access.contains(access)
    }

    /// Whether this address is in it.
    pub fn holds(&self, pa: u64) -> bool {
        pa.checked_sub(self.pa).is_some_and(|offset| offset < self.len)
    }

    /// Whether some memory is in both.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.len > 0 && other.len > 0 && (self.holds(other.pa) || other.holds(self.pa))
    }
}

/// How far a pass over a table has come. Starts at the beginning, and does so again after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    /// A page of memory that isn't allowed, or not there, or not with this access.
    #[error(
        "the page of {size:#x} bytes at {va:#x} leads to {pa:#x} with {access:?}, which no region allows"
    )]
    Leaf {
        /// Its address.
        va: u64,
        /// Where it leads.
        pa: u64,
        /// Its size in bytes.
        size: u64,
        /// What is allowed on it.
        access: Access,
    },
    /// An entry leads to a table in memory that is mapped.
    #[error(
        "the table for {va:#x} at level {level} lies at {frame:#x}, in memory that may be mapped"
    )]
    Reachable {
        /// An address that is translated through it.
        va: u64,
        /// Its level.
        level: u32,
        /// Where it is.
        frame: u64,
    },
    /// An entry leads to a table where no table can be.
    #[error(
        "the table for {va:#x} at level {level} would lie at {frame:#x}, which is no table's frame"
    )]
    Stray {
        /// An address that is translated through it.
        va: u64,
        /// Its level.
        level: u32,
        /// Where it would be.
        frame: u64,
    },
}

/// Where a table is, for whoever looks at it without holding it.
///
/// A table's root and format never change, so this stays true however often the table does.
#[derive(Clone, Copy, Debug)]
pub struct Outline<F> {
    format: F,
    root: u64,
}

/// By level, the frame of the last table that was found to lie where it may: that of the next
/// entry, too, as a rule.
#[derive(Default)]
struct Sound([Option<u64>; 6]);

impl Sound {
    fn contains(&self, level: u32, frame: u64) -> bool {
        self.0.get(level as usize) == Some(&Some(frame))
    }

    fn insert(&mut self, level: u32, frame: u64) {
        if let Some(slot) = self.0.get_mut(level as usize) {
            *slot = Some(frame);
        }
    }
}

impl<F: Format + Copy> Table<F> {
    /// Its outline.
    pub fn outline(&self) -> Outline<F> {
        Outline { format: self.format, root: self.root }
    }
}

impl<F: Format> Outline<F> {
    /// Of tables of this format that begin in this frame.
    pub const fn new(format: F, root: u64) -> Self {
        Outline { format, root }
    }

    /// Physical address of the frame in which they begin.
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// Looks at `entries` more pages, or absent entries, from where `cursor` stands. True when that
    /// was the end of the table. After a finding, the next call goes on behind it.
    ///
    /// The table may change meanwhile: what looks wrong is looked at again while what `hold` gives
    /// is held, and nobody may change the table then. When it gives nothing, the next call goes on
    /// there.
    ///
    /// `read` gives a word of a frame. `is_table`: may a table lie in this frame? It is asked
    /// before a word of the frame is read.
    pub fn audit<H>(
        &self,
        read: impl Fn(u64) -> u64,
        cursor: &mut Cursor,
        entries: u32,
        regions: &[Region],
        is_table: impl Fn(u64) -> bool,
        hold: impl Fn() -> Option<H>,
    ) -> Result<bool, Finding> {
        let mut sound = Sound::default();
        for _ in 0..entries {
            let input = cursor.0;
            let (mut level, mut result) = self.look(&read, input, regions, &is_table, &mut sound);
            if result.is_err() {
                let Some(_held) = hold() else { return Ok(false) };
                (level, result) = self.look(&read, input, regions, &is_table, &mut sound);
            }
            let last = input | (size(level) - 1);
            let ended = (last + 1) >> self.bits() != 0;
            cursor.0 = if ended { 0 } else { last + 1 };
            result?;
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks at the entry that decides about `input`, and at the tables on the way to it. Gives the
    /// level of the entry that this was about, too.
    fn look(
        &self,
        read: &impl Fn(u64) -> u64,
        input: u64,
        regions: &[Region],
        is_table: &impl Fn(u64) -> bool,
        sound: &mut Sound,
    ) -> (u32, Result<(), Finding>) {
        let va = self.va(input);
        let (mut level, mut frame) = (self.format.levels(), self.root);
        loop {
            if !sound.contains(level, frame) {
                if !is_table(frame) {
                    return (level + 1, Err(Finding::Stray { va, level, frame }));
                }
                if regions.iter().any(|region| region.holds(frame)) {
                    return (level + 1, Err(Finding::Reachable { va, level, frame }));
                }
                sound.insert(level, frame);
            }
            match self.format.decode(level, read(entry_address(frame, level, input))) {
                Entry::Table(next) if level > 1 => (level, frame) = (level - 1, next),
                Entry::Leaf { pa, access } => {
                    let size = size(level);
                    let va = self.va(input & !(size - 1));
                    let allowed = regions.iter().any(|r| r.allows(va, pa, size, access));
                    let found = Finding::Leaf { va, pa, size, access };
                    return (level, if allowed { Ok(()) } else { Err(found) });
                }
                _ => return (level, Ok(())),
            }
        }
    }

    /// Width of the addresses translated.
    fn bits(&self) -> u32 {
        shift(self.format.levels()) + 9
    }

    /// The address whose significant bits are `input`.
    fn va(&self, input: u64) -> u64 {
        let unused = 64 - self.bits();
        if F::SIGNED { ((input << unused) as i64 >> unused) as u64 } else { input }
    }
}
