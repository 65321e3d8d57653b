//! Sections appended to a UEFI program, which finds them in its own image once it runs.
//!
//! Guarantees: the program's own sections stay where they are, in the file and in memory; a
//! section that was appended reads back byte for byte; alignments, the size of the image and
//! the number of sections are right again, so that a loader and a signing tool take the file
//! as one that the linker made. A program that is signed is refused: its signature would break.
//!
//! Field names and offsets are those of Microsoft's "PE Format": "Optional Header" and
//! "Section Table"; UEFI 2.10 section 2.1.1 is what firmware asks of it.

use crate::field;

/// `e_lfanew` in the MS-DOS header: where the signature "PE\0\0" is.
const NEW_HEADER: usize = 0x3C;
const SIGNATURE: &[u8; 4] = b"PE\0\0";
const X86_64: u16 = 0x8664;
const PE32_PLUS: u16 = 0x20B;
/// The size of the COFF header, and of a section header.
const COFF_HEADER: usize = 20;
const SECTION_HEADER: usize = 40;
/// More sections than this no loader of Windows takes, and no UEFI program has.
const MAX_SECTIONS: usize = 96;
/// What is read of the optional header, up to the data directories.
const OPTIONAL_HEADER: u16 = 112;
/// Which data directory names the signatures, by their place in the file.
const CERTIFICATES: usize = 4;
/// IMAGE_SCN_CNT_INITIALIZED_DATA and IMAGE_SCN_MEM_READ.
const READ_ONLY_DATA: u32 = 0x4000_0040;

/// Bytes for a program.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// What it finds them by: 1 to 8 bytes.
    pub name: &'a str,
    /// Not empty; the loaded section has exactly so many.
    pub bytes: &'a [u8],
}

/// Why sections can't be appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another format.
    #[error("it is no PE32+ program for x86-64: {0}")]
    Format(&'static str),
    /// A part lies outside of the file.
    #[error("it is cut short: its {what} ends beyond the file's {found} bytes")]
    Cut {
        /// What does.
        what: &'static str,
        /// Bytes there are.
        found: usize,
    },
    /// A header that contradicts the format or another header.
    #[error("its {what} is {found:#x}; {needed}")]
    Header {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What would be right.
        needed: &'static str,
    },
    /// The section headers are followed by something.
    #[error("its headers have room for {room} more sections, and {needed} are to be added")]
    Room {
        /// How many fit.
        room: usize,
        /// How many there are.
        needed: usize,
    },
    /// A signature covers all sections.
    #[error("it is signed already; sections must be added before that")]
    Signed,
    /// A name that isn't one, or a section without bytes.
    #[error("`{0}` can't be a section's name, which has 1 to 8 bytes")]
    Name(String),
    /// Nobody could tell which is meant.
    #[error("it would have two sections `{0}`")]
    Twice(String),
    /// The format can't say that a section is there and empty.
    #[error("the section `{0}` would be empty")]
    Empty(String),
    /// The format's numbers have 32 bits.
    #[error("it would have {0} bytes with its sections, and a PE file has less than 4 GiB")]
    Large(u64),
}

/// The program with these sections after its own.
pub fn with_sections(program: &[u8], sections: &[Section]) -> Result<Vec<u8>, Error> {
    let headers = Headers::read(program)?;
    let room = headers.room(program);
    if sections.len() > room {
        return Err(Error::Room { room, needed: sections.len() });
    }
    let mut out = program.to_vec();
    let (mut address, mut data, mut names) = (headers.end, 0, headers.names.clone());
    for (i, Section { name, bytes }) in sections.iter().enumerate() {
        let name = name_of(name, &mut names)?;
        if bytes.is_empty() {
            return Err(Error::Empty(shown(&name)));
        }
        let at = align(out.len() as u64, headers.file_alignment);
        let stored = align(bytes.len() as u64, headers.file_alignment);
        let end = align(address + bytes.len() as u64, headers.section_alignment);
        let large = || Error::Large((at + stored).max(end));
        let [virtual_size, virtual_address, raw_size, raw_data] =
            [bytes.len() as u64, address, stored, at].map(u32::try_from);
        let fits = u32::try_from(at + stored).is_ok() && u32::try_from(end).is_ok();
        let (Ok(virtual_size), Ok(virtual_address), Ok(raw_size), Ok(raw_data), true) =
            (virtual_size, virtual_address, raw_size, raw_data, fits)
        else {
            return Err(large());
        };
        let words = [virtual_size, virtual_address, raw_size, raw_data, 0, 0, 0, READ_ONLY_DATA];
        let header: Vec<u8> =
            name.into_iter().chain(words.into_iter().flat_map(u32::to_le_bytes)).collect();
        headers.put(&mut out, headers.table + (headers.count + i) * SECTION_HEADER, &header)?;
        out.resize(at as usize, 0);
        out.extend_from_slice(bytes);
        out.resize((at + stored) as usize, 0);
        (address, data) = (end, data + stored);
    }
    let count = (headers.count + sections.len()) as u16;
    headers.put(&mut out, headers.coff + 2, &count.to_le_bytes())?;
    // Nobody relies on this sum: one that doesn't fit says nothing less than one that does.
    let initialized = u64::from(headers.initialized) + data;
    let initialized = u32::try_from(initialized).unwrap_or(u32::MAX);
    for (offset, word) in [(8, initialized), (56, address as u32), (64, 0)] {
        headers.put(&mut out, headers.optional + offset, &word.to_le_bytes())?;
    }
    Ok(out)
}

/// The name as a section header has it, which is one of `taken` from now on.
fn name_of(name: &str, taken: &mut Vec<[u8; 8]>) -> Result<[u8; 8], Error> {
    let mut bytes = [0; 8];
    let good = !name.is_empty() && !name.contains('\0');
    if !good || field::put(&mut bytes, 0, name.as_bytes()).is_none() {
        return Err(Error::Name(name.escape_default().to_string()));
    }
    if taken.contains(&bytes) {
        return Err(Error::Twice(shown(&bytes)));
    }
    taken.push(bytes);
    Ok(bytes)
}

fn shown(name: &[u8; 8]) -> String {
    name.escape_ascii().to_string().replace("\\x00", "")
}

/// Up to a multiple of a power of two.
fn align(n: u64, to: u32) -> u64 {
    n.next_multiple_of(u64::from(to))
}

/// What the headers of a program say, once it fits together.
#[derive(Debug)]
struct Headers {
    /// Offsets of the COFF header, the optional header and the section headers.
    coff: usize,
    optional: usize,
    table: usize,
    /// How many sections there are, and their names.
    count: usize,
    names: Vec<[u8; 8]>,
    section_alignment: u32,
    file_alignment: u32,
    /// SizeOfInitializedData.
    initialized: u32,
    /// Where the headers end in the file at the latest.
    size_of_headers: usize,
    /// The first byte of a section in the file, if one has any there.
    first_data: usize,
    /// The address after the last section, aligned.
    end: u64,
    /// Bytes of the file.
    found: usize,
}

impl Headers {
    fn read(program: &[u8]) -> Result<Headers, Error> {
        let found = program.len();
        let cut = move |what| Error::Cut { what, found };
        let (word, long) = (field::u16, field::u32);
        if !program.starts_with(b"MZ") {
            return Err(Error::Format("it doesn't start with \"MZ\""));
        }
        let signature = long(program, NEW_HEADER).ok_or(cut("MS-DOS header"))? as usize;
        let coff = signature.checked_add(SIGNATURE.len()).ok_or(cut("MS-DOS header"))?;
        let at = program.get(signature..coff).ok_or(cut("PE signature"))?;
        if at != SIGNATURE {
            return Err(Error::Format("its MS-DOS header leads to no PE signature"));
        }
        let optional = coff + COFF_HEADER;
        let header = program.get(coff..optional).ok_or(cut("COFF header"))?;
        if word(header, 0) != Some(X86_64) {
            return Err(Error::Format("its COFF header names another machine"));
        }
        let count = usize::from(word(header, 2).ok_or(cut("COFF header"))?);
        let size = word(header, 16).ok_or(cut("COFF header"))?;
        if size < OPTIONAL_HEADER {
            let (found, needed) = (u64::from(size), "PE32+ has 0x70 and more");
            return Err(Error::Header { what: "size of the optional header", found, needed });
        }
        let table = optional + usize::from(size);
        let header = program.get(optional..table).ok_or(cut("optional header"))?;
        if word(header, 0) != Some(PE32_PLUS) {
            return Err(Error::Format("its optional header isn't that of PE32+"));
        }
        let field = |at| long(header, at).ok_or(cut("optional header"));
        let (section_alignment, file_alignment) = (field(32)?, field(36)?);
        let (size_of_image, size_of_headers) = (field(56)?, field(60)? as usize);
        // A header may leave out directories that nothing is in.
        let directory = OPTIONAL_HEADER as usize + 8 * CERTIFICATES;
        let named = field(108)? as usize > CERTIFICATES;
        if named && long(header, directory + 4).ok_or(cut("table of data directories"))? != 0 {
            return Err(Error::Signed);
        }
        check(
            "file alignment",
            file_alignment,
            "a power of two from 0x200 to 0x10000 is needed",
            file_alignment.is_power_of_two() && (0x200..=0x1_0000).contains(&file_alignment),
        )?;
        let needed = "a power of two is needed, no less than the file alignment";
        check("section alignment", section_alignment, needed, {
            section_alignment.is_power_of_two() && section_alignment >= file_alignment
        })?;
        let needed = "a UEFI program has 1 to 0x60";
        check("number of sections", count as u32, needed, (1..=MAX_SECTIONS).contains(&count))?;
        let table_end = table + count * SECTION_HEADER;
        if size_of_headers > found {
            return Err(cut("headers"));
        }
        let needed = "the section headers lie beyond that";
        check("size of headers", size_of_headers as u32, needed, table_end <= size_of_headers)?;
        let mut headers = Headers {
            coff,
            optional,
            table,
            count,
            names: Vec::new(),
            section_alignment,
            file_alignment,
            initialized: field(8)?,
            size_of_headers,
            first_data: found,
            end: align(size_of_headers as u64, section_alignment),
            found,
        };
        for i in 0..count {
            headers.add(program, table + i * SECTION_HEADER)?;
        }
        let needed = "the last section ends beyond that";
        check("size of image", size_of_image, needed, headers.end <= size_of_image.into())?;
        headers.end = align(size_of_image.into(), section_alignment);
        Ok(headers)
    }

    /// Notes a section, by its header's offset.
    fn add(&mut self, program: &[u8], at: usize) -> Result<(), Error> {
        let cut = |what| Error::Cut { what, found: self.found };
        let header = program.get(at..at + SECTION_HEADER).ok_or(cut("section headers"))?;
        let field = |at| field::u32(header, at).ok_or(cut("section headers"));
        let (size, address, stored, data) = (field(8)?, field(12)?, field(16)?, field(20)?);
        if stored > 0 {
            let end = data as usize + stored as usize;
            if end > self.found {
                return Err(cut("last section"));
            }
            check("section's place in the file", data, "the headers are there", {
                data as usize >= self.size_of_headers
            })?;
            self.first_data = self.first_data.min(data as usize);
        }
        let needed = "sections follow each other in memory, aligned";
        let aligned = address.is_multiple_of(self.section_alignment);
        check("section's address", address, needed, aligned && u64::from(address) >= self.end)?;
        self.end = align(u64::from(address) + u64::from(size.max(1)), self.section_alignment);
        self.names.extend(header.first_chunk::<8>());
        Ok(())
    }

    /// How many more section headers there is room for.
    fn room(&self, program: &[u8]) -> usize {
        let start = self.table + self.count * SECTION_HEADER;
        let end = self.size_of_headers.min(self.first_data);
        let free = program.get(start..end).unwrap_or_default();
        // What isn't zero belongs to somebody.
        let zeroes = free.iter().take_while(|byte| **byte == 0).count();
        (zeroes / SECTION_HEADER).min(MAX_SECTIONS - self.count)
    }

    /// Puts a part of the headers in its place, which was found before.
    fn put(&self, program: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Error> {
        field::put(program, at, bytes).ok_or(Error::Cut { what: "headers", found: self.found })
    }
}

/// Whether a field of the headers is `good`; if not, what would be.
fn check(what: &'static str, found: u32, needed: &'static str, good: bool) -> Result<(), Error> {
    let found = u64::from(found);
    if good { Ok(()) } else { Err(Error::Header { what, found, needed }) }
}

#[cfg(test)]
#[path = "pe_tests.rs"]
mod tests;
