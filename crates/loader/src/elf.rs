//! ELF files for x86, 32-bit and 64-bit, as far as loading needs them: the entry
//! point, the segments and notes (System V ABI, chapters 4 and 5).

use alloc::vec::Vec;

use crate::bytes::{slice, u8, u16, u32, u64};
use crate::memory::Memory;
use crate::{Error, Segment};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const ET_DYN: u16 = 3;
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;
/// More than any kernel has; bounds the time a crafted file can cost.
const MAX_PROGRAM_HEADERS: u16 = 128;
/// XEN_ELFNOTE_PHYS32_ENTRY: the 32-bit entry point.
const PHYS32_ENTRY: u32 = 18;
const XEN: &[u8] = b"Xen";

pub fn detect(kernel: &[u8]) -> bool {
    kernel.starts_with(b"\x7FELF")
}

pub struct Elf<'a> {
    image: &'a [u8],
    pub is_64: bool,
    /// Whether it may be loaded elsewhere than where it was linked.
    pub is_relocatable: bool,
    pub entry: u64,
    headers: Vec<ProgramHeader>,
}

struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

impl<'a> Elf<'a> {
    pub fn parse(image: &'a [u8]) -> Result<Self, Error> {
        let is_64 = match u8(image, 4)? {
            1 => false,
            2 => true,
            class => return Err(header("ELF class", class, "it must be 1 or 2")),
        };
        let data = u8(image, 5)?;
        if data != 1 {
            return Err(header("ELF byte order", data, "it must be 1, little-endian"));
        }
        let is_relocatable = u16(image, 16)? == ET_DYN;
        let machine = u16(image, 18)?;
        if !matches!(machine, EM_386 | EM_X86_64) {
            return Err(header("ELF machine", machine, "it must be 3 or 62, x86"));
        }
        let (entry, table, size, count) = if is_64 {
            (u64(image, 24)?, u64(image, 32)?, u16(image, 54)?, u16(image, 56)?)
        } else {
            (u32(image, 24)?.into(), u32(image, 28)?.into(), u16(image, 42)?, u16(image, 44)?)
        };
        if size != if is_64 { 56 } else { 32 } {
            return Err(header(
                "ELF program header size",
                size,
                "it must be 56, or 32 for 32 bits",
            ));
        }
        if count > MAX_PROGRAM_HEADERS {
            return Err(header("number of ELF program headers", count, "at most 128 are read"));
        }
        let size = u64::from(size);
        let table = slice(image, table, size * u64::from(count), "the program header table")?;
        let headers = (0..u64::from(count))
            .map(|index| ProgramHeader::parse(table, index * size, is_64))
            .collect::<Result<_, _>>()?;
        Ok(Self { image, is_64, is_relocatable, entry, headers })
    }

    /// The loadable segments at their physical addresses.
    pub fn segments(&self) -> Result<Vec<Segment<'a>>, Error> {
        let mut segments = Vec::new();
        for header in self.headers.iter().filter(|header| header.kind == PT_LOAD) {
            let zeros = header.memory_size.checked_sub(header.file_size).ok_or(Error::Header {
                what: "ELF segment's size in memory",
                found: header.memory_size,
                needed: "it must not be less than the size in the file",
            })?;
            if header.memory_size == 0 {
                continue;
            }
            let bytes = slice(self.image, header.offset, header.file_size, "a segment")?;
            segments.push(Segment { at: header.address, bytes, zeros });
        }
        if segments.is_empty() { Err(Error::Empty) } else { Ok(segments) }
    }

    /// The same, claimed in `memory`.
    pub fn claimed_segments(&self, memory: &mut Memory) -> Result<Vec<Segment<'a>>, Error> {
        let segments = self.segments()?;
        for segment in &segments {
            memory.claim(segment.at, segment.size(), "kernel")?;
        }
        Ok(segments)
    }

    /// The entry point of the PVH note.
    pub fn pvh_entry(&self) -> Result<u64, Error> {
        self.note(XEN, PHYS32_ENTRY)?.ok_or(Error::NoPvhNote)
    }

    /// The number that the note of that name (without its NUL) and type holds, if there is one.
    pub fn note(&self, name: &[u8], kind: u32) -> Result<Option<u64>, Error> {
        for header in self.headers.iter().filter(|header| header.kind == PT_NOTE) {
            let notes = slice(self.image, header.offset, header.file_size, "a note segment")?;
            let align = if header.align == 8 { 8 } else { 4 };
            if let Some(value) = note(notes, align, name, kind) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl ProgramHeader {
    fn parse(table: &[u8], at: u64, is_64: bool) -> Result<Self, Error> {
        let kind = u32(table, at)?;
        Ok(if is_64 {
            Self {
                kind,
                offset: u64(table, at + 8)?,
                address: u64(table, at + 24)?,
                file_size: u64(table, at + 32)?,
                memory_size: u64(table, at + 40)?,
                align: u64(table, at + 48)?,
            }
        } else {
            Self {
                kind,
                offset: u32(table, at + 4)?.into(),
                address: u32(table, at + 12)?.into(),
                file_size: u32(table, at + 16)?.into(),
                memory_size: u32(table, at + 20)?.into(),
                align: u32(table, at + 28)?.into(),
            }
        })
    }
}

/// Looks for a note through a segment of them; a broken one ends the search.
fn note(notes: &[u8], align: u64, name: &[u8], wanted: u32) -> Option<u64> {
    let mut at = 0;
    while at < notes.len() as u64 {
        let name_size = u64::from(u32(notes, at).ok()?);
        let descriptor_size = u64::from(u32(notes, at + 4).ok()?);
        let kind = u32(notes, at + 8).ok()?;
        let descriptor_at = (at + 12 + name_size).next_multiple_of(align);
        let found = slice(notes, at + 12, name_size, "a name").ok()?;
        if kind == wanted && found.strip_suffix(b"\0") == Some(name) {
            return match descriptor_size {
                4 => u32(notes, descriptor_at).ok().map(u64::from),
                8 => u64(notes, descriptor_at).ok(),
                _ => None,
            };
        }
        at = (descriptor_at + descriptor_size).next_multiple_of(align);
    }
    None
}

/// A 32-bit entry point that lies in one of `segments`.
pub fn checked_entry(entry: u64, segments: &[Segment]) -> Result<u64, Error> {
    let inside = |segment: &Segment| {
        entry.checked_sub(segment.at).is_some_and(|offset| offset < segment.size())
    };
    if segments.iter().any(inside) { Ok(entry) } else { Err(Error::EntryOutside(entry)) }
}

fn header(what: &'static str, found: impl Into<u64>, needed: &'static str) -> Error {
    Error::Header { what, found: found.into(), needed }
}
