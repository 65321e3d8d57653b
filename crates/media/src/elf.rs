//! An ELF program without what nobody loads: symbols, debug information, section headers.
//!
//! Guarantees: what the program headers name stays where it is, byte for byte, so that a
//! loader sees the same program. Field offsets are those of the ELF-64 Object File Format
//! 1.5, tables 2 and 8.

use crate::field;

/// Where the header has the place and the shape of the program headers.
const PROGRAM_HEADERS: usize = 0x20;
const PROGRAM_HEADER_SIZE: usize = 0x36;
const PROGRAM_HEADER_COUNT: usize = 0x38;
/// Where it has the place of the section headers, and from where on their size, their number
/// and which of them has names.
const SECTION_HEADERS: usize = 0x28;
const SECTION_HEADER_SHAPE: usize = 0x3A;
/// The size of the header, and of a program header.
const HEADER: usize = 0x40;
const PROGRAM_HEADER: usize = 0x38;
/// Where a program header has its segment's place and size in the file.
const OFFSET: usize = 0x08;
const FILE_SIZE: usize = 0x20;

/// Why a program is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another format.
    #[error("it is no 64-bit little-endian ELF file")]
    Format,
    /// No program headers, or of a size that they don't have.
    #[error("its ELF header names no program headers of {PROGRAM_HEADER} bytes")]
    Headers,
    /// A part lies outside of the file.
    #[error("it is cut short: its {what} ends beyond the file's {found} bytes")]
    Cut {
        /// What does.
        what: &'static str,
        /// Bytes there are.
        found: usize,
    },
}

/// The program up to the last byte that one of its segments has in the file.
pub fn stripped(elf: &[u8]) -> Result<Vec<u8>, Error> {
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err(Error::Format);
    }
    let found = elf.len();
    let cut = |what| Error::Cut { what, found };
    let place = |at| field::u64(elf, at).and_then(|n| usize::try_from(n).ok());
    let table = place(PROGRAM_HEADERS).ok_or(cut("header"))?;
    let size = field::u16(elf, PROGRAM_HEADER_SIZE).ok_or(cut("header"))?;
    let count = field::u16(elf, PROGRAM_HEADER_COUNT).ok_or(cut("header"))?;
    if count == 0 || usize::from(size) != PROGRAM_HEADER {
        return Err(Error::Headers);
    }
    let mut end = HEADER;
    for i in 0..usize::from(count) {
        let header = table.checked_add(i * PROGRAM_HEADER);
        let last = header.and_then(|h| h.checked_add(PROGRAM_HEADER)).filter(|n| *n <= found);
        let (Some(header), Some(last)) = (header, last) else {
            return Err(cut("table of program headers"));
        };
        let segment = place(header + OFFSET)
            .zip(place(header + FILE_SIZE))
            .and_then(|(offset, size)| offset.checked_add(size));
        let segment = segment.filter(|n| *n <= found).ok_or(cut("last segment"))?;
        end = end.max(last).max(segment);
    }
    let mut kept = elf.get(..end).ok_or(cut("header"))?.to_vec();
    for (at, bytes) in [(SECTION_HEADERS, 8), (SECTION_HEADER_SHAPE, 6)] {
        field::put(&mut kept, at, &[0; 8][..bytes]).ok_or(cut("header"))?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSection, ObjectSegment, read::elf::ElfFile64};
    use proptest::prelude::*;

    /// This test, an ELF program of a compiler and a linker that know better than a test.
    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// A program with one segment of these bytes, at the end of the headers, and 100 bytes more.
    fn small(segment: &[u8]) -> Vec<u8> {
        let mut elf = vec![0; HEADER + PROGRAM_HEADER];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[PROGRAM_HEADERS], elf[PROGRAM_HEADER_SIZE], elf[PROGRAM_HEADER_COUNT]) = (64, 56, 1);
        elf[SECTION_HEADERS] = 200;
        let (at, size) = (elf.len() as u64, segment.len() as u64);
        field::put(&mut elf, HEADER + OFFSET, &at.to_le_bytes()).unwrap();
        field::put(&mut elf, HEADER + FILE_SIZE, &size.to_le_bytes()).unwrap();
        [&elf, segment, &[7; 100]].concat()
    }

    #[test]
    fn segments_stay_and_sections_go() {
        let whole = own();
        let less = stripped(&whole).unwrap();
        assert!(less.len() < whole.len());
        let (before, after) =
            (ElfFile64::parse(&*whole).unwrap(), ElfFile64::parse(&*less).unwrap());
        // The ELF header itself may be in a segment.
        let loaded = |elf: &ElfFile64<object::Endianness>, bytes: &[u8]| {
            let ranges = elf.segments().map(|s| (s.address(), s.file_range()));
            ranges
                .map(|(address, (at, size))| {
                    let (start, end) = (at.max(HEADER as u64) as usize, (at + size) as usize);
                    (address, bytes[start.min(end)..end].to_vec())
                })
                .collect::<Vec<_>>()
        };
        assert!(loaded(&before, &whole) == loaded(&after, &less));
        assert_eq!((before.entry(), after.sections().count()), (after.entry(), 0));
        assert!(before.sections().any(|s| s.name() == Ok(".symtab")));
        assert_eq!(stripped(&less).unwrap(), less);
    }

    #[test]
    fn the_file_ends_with_its_last_segment() {
        let whole = small(b"code");
        let less = stripped(&whole).unwrap();
        assert_eq!(less.len(), whole.len() - 100);
        assert_eq!((less[SECTION_HEADERS], &less[less.len() - 4..]), (0, b"code".as_slice()));
    }

    #[test]
    fn what_is_no_program_is_refused_in_words() {
        let refused = |elf: &[u8]| stripped(elf).unwrap_err().to_string();
        assert_eq!(refused(b"MZ"), "it is no 64-bit little-endian ELF file");
        let whole = small(b"code");
        let said = "it is cut short: its header ends beyond the file's 50 bytes";
        assert_eq!(refused(&whole[..50]), said);
        assert!(refused(&whole[..100]).contains("its table of program headers ends beyond"));
        assert!(refused(&whole[..HEADER + PROGRAM_HEADER + 3]).contains("its last segment ends"));
        let mut none = whole;
        none[PROGRAM_HEADER_COUNT] = 0;
        assert_eq!(stripped(&none), Err(Error::Headers));
    }

    proptest! {
        #[test]
        fn damage_is_refused_or_gives_a_part(at in 0usize..120, byte: u8, length in 0usize..300) {
            let mut elf = small(b"code");
            elf[at] = byte;
            elf.truncate(length);
            if let Ok(less) = stripped(&elf) {
                prop_assert!((HEADER..=elf.len()).contains(&less.len()));
            }
        }
    }
}
