//! ELF programs for 64-bit mode that run wherever they are put, and relocate themselves.
//!
//! Guarantees: every segment and the entry point lie in the range that the program gives. Segments
//! may overlap: the later one counts where they do.

use alloc::vec::Vec;

use crate::elf::{self, Elf, checked_entry};
use crate::{Error, Segment};

/// Such a program, at the addresses that it was linked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program<'a> {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Where it is entered.
    pub entry: u64,
    /// What is copied where; between them are zeroes.
    pub segments: Vec<Segment<'a>>,
}

impl<'a> Program<'a> {
    /// Reads `file`, whose entry point is the number in the note of that name and type.
    pub fn read(file: &'a [u8], note: (&str, u32)) -> Result<Self, Error> {
        if !elf::detect(file) {
            return Err(Error::UnknownFormat);
        }
        let elf = Elf::parse(file)?;
        if !(elf.is_64 && elf.is_relocatable) {
            return Err(Error::NotRelocatable);
        }
        let segments = elf.segments()?;
        let (mut start, mut end) = (u64::MAX, 0);
        for segment in &segments {
            let segment_end = segment.at.checked_add(segment.size()).ok_or(Error::Header {
                what: "ELF segment's address",
                found: segment.at,
                needed: "the segment must end below 2^64",
            })?;
            (start, end) = (segment.at.min(start), segment_end.max(end));
        }
        let (name, kind) = note;
        let entry = elf.note(name.as_bytes(), kind)?.ok_or(Error::NoEntryNote)?;
        let entry = checked_entry(entry, &segments)?;
        Ok(Program { start, end, entry, segments })
    }
}
