//! The root pointer (RSDP), and the table of tables (RSDT or XSDT) it leads to (ACPI 5.2.5 to
//! 5.2.8).

use super::table::{HEADER, MAX_LENGTH, Read, Source, Table};
use crate::{Error, Physical};
use core::ops::Range;

/// Length of the pointer in ACPI 1.0, and of the part that its first checksum covers.
const RSDP_V1: u32 = RootPointer::OLD as u32;
/// Length of the pointer since ACPI 2.0.
const RSDP_V2: u32 = RootPointer::NEW as u32;
/// The most tables looked at.
const MAX_TABLES: usize = 1024;

/// The root pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootPointer {
    /// It is in memory, at this address.
    At(u64),
    /// A boot loader copied it, and its copy may be gone.
    Copy {
        /// Where that was.
        at: u64,
        /// What was there, and zeroes.
        bytes: [u8; RootPointer::NEW],
        /// How many bytes the loader copied.
        length: usize,
    },
}

impl RootPointer {
    /// Bytes of the pointer in ACPI 1.0.
    pub const OLD: usize = 20;
    /// Bytes of the pointer since ACPI 2.0.
    pub const NEW: usize = 36;
}

impl From<u64> for RootPointer {
    fn from(address: u64) -> Self {
        RootPointer::At(address)
    }
}

/// The memory that the root pointer is read from: nothing but a copy, if there is one.
struct Place<'a>(&'a dyn Physical, &'a RootPointer);

impl Physical for Place<'_> {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        let RootPointer::Copy { at, bytes, length } = self.1 else { return self.0.read(pa, buf) };
        let start = pa.checked_sub(*at).and_then(|offset| usize::try_from(offset).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(buf.len())?));
        let copied = range.and_then(|range| bytes.get(..*length)?.get(range));
        copied.map(|bytes| buf.copy_from_slice(bytes)).is_some()
    }
}

/// Looks for the root pointer where a BIOS puts it: the first KiB of the EBDA, then E0000h-FFFFFh,
/// on 16-byte boundaries (ACPI 5.2.5.1).
pub fn find_rsdp(mem: &dyn Physical) -> Result<u64, Error> {
    let mut segment = [0; 2];
    let ebda = match mem.read(0x40E, &mut segment) {
        true => u64::from(u16::from_le_bytes(segment)) << 4,
        false => 0,
    };
    let source = Source::new(mem);
    // No EBDA lies in the first KiB (interrupt vectors) or the BIOS data area above it.
    let ebda_end = if ebda < 0x500 { ebda } else { ebda + 0x400 };
    (ebda..ebda_end)
        .step_by(16)
        .chain((0xE_0000..0x10_0000).step_by(16))
        .find(|&address| check_v1(&source, address).is_ok())
        .ok_or(Error::NoRsdp)
}

/// The table of tables (RSDT or XSDT).
pub struct Root<'a> {
    source: &'a Source<'a>,
    table: Table<'a>,
    entry_size: u32,
    /// Bytes of the root pointer.
    pointer: u32,
}

impl Root<'_> {
    /// Calls `f` with signature and address of each table that is listed.
    #[cold]
    pub fn for_each_table(&self, f: &mut dyn FnMut([u8; 4], u64) -> Read<()>) -> Read<()> {
        let name = if self.entry_size == 8 { "XSDT" } else { "RSDT" };
        let mut offset = HEADER;
        let mut count = 0;
        while offset < self.table.length() {
            if count == MAX_TABLES {
                let (table, what, most) = (name, "tables", MAX_TABLES);
                return Err(self.source.stop(Error::TooMany { table, what, most }));
            }
            count += 1;
            let address = match self.entry_size {
                8 => self.table.u64(offset)?,
                _ => u64::from(self.table.u32(offset)?),
            };
            offset = offset.saturating_add(self.entry_size);
            if address == 0 {
                continue; // Some firmware leaves holes.
            }
            let mut signature = [0; 4];
            self.source.read("table listed in the root table", address, 0, &mut signature)?;
            f(signature, address)?;
        }
        Ok(())
    }
}

/// Where the firmware's tables are, for whoever gives memory away before [`probe`](super::probe)
/// has read them: firmware may have left them where its memory map says that memory is free. `keep`
/// is called with the root pointer, unless that is a copy, with the table of tables, and with each
/// that is listed there: 1026 ranges at most, each of up to 1 MiB, in any order, which may overlap.
/// They hold whatever [`probe`](super::probe) reads from the same pointer. An error is one that it
/// has, too.
pub fn places(
    mem: &dyn Physical,
    rsdp: impl Into<RootPointer>,
    mut keep: impl FnMut(Range<u64>),
) -> Result<(), Error> {
    places_from(mem, rsdp.into(), &mut keep)
}

fn places_from(
    mem: &dyn Physical,
    rsdp: RootPointer,
    keep: &mut dyn FnMut(Range<u64>),
) -> Result<(), Error> {
    let source = &Source::new(mem);
    let from = |address: u64, length: u32| address..address.saturating_add(length.into());
    let root = root_table(source, &rsdp)?;
    if let RootPointer::At(address) = rsdp {
        keep(from(address, root.pointer));
    }
    keep(from(root.table.address(), root.table.length()));
    let read = root.for_each_table(&mut |_, address| {
        // One whose length isn't believed is looked at no further than its header.
        let mut length = [0; 4];
        let readable = source.read("header", address, 4, &mut length).is_ok();
        let length = if readable { u32::from_le_bytes(length) } else { HEADER };
        keep(from(address, if length > MAX_LENGTH { HEADER } else { length.max(HEADER) }));
        Ok(())
    });
    source.outcome(read)
}

/// The table of tables, whose sum and whose pointer's are right.
pub fn root_table<'a>(source: &'a Source<'a>, rsdp: &RootPointer) -> Result<Root<'a>, Error> {
    let (RootPointer::At(at) | RootPointer::Copy { at, .. }) = *rsdp;
    let place = Place(source.memory(), rsdp);
    let place = Source::new(&place);
    let found = place.outcome(read_pointer(&place, at))?;
    let table = match found.entry_size {
        8 => Table::open(source, "XSDT", *b"XSDT", found.root),
        _ => Table::open(source, "RSDT", *b"RSDT", found.root),
    };
    let table = source.outcome(table)?;
    Ok(Root { source, table, entry_size: found.entry_size, pointer: found.length })
}

/// What a root pointer says.
struct Pointer {
    /// Its own.
    length: u32,
    /// Where the table of tables is.
    root: u64,
    /// Bytes of an entry there: 8 in an XSDT, 4 in an RSDT.
    entry_size: u32,
}

fn read_pointer(place: &Source, at: u64) -> Read<Pointer> {
    check_v1(place, at)?;
    let mut v1 = [0; RSDP_V1 as usize];
    place.read("RSDP", at, 0, &mut v1)?;
    let rsdt = u32::from_le_bytes([v1[16], v1[17], v1[18], v1[19]]);
    let old = Pointer { length: RSDP_V1, root: u64::from(rsdt), entry_size: 4 };
    let revision = v1[15];
    if revision < 2 {
        return Ok(old);
    }
    let mut v2 = [0; 12];
    place.read("RSDP", at, u64::from(RSDP_V1), &mut v2)?;
    let [l0, l1, l2, l3, xsdt @ ..] = v2;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    if !(RSDP_V2..=MAX_LENGTH).contains(&length) {
        let (found, least, most) = (length, RSDP_V2, MAX_LENGTH);
        return Err(place.stop(Error::Length { table: "RSDP", address: at, found, least, most }));
    }
    check_sum(place, at, length)?;
    Ok(match u64::from_le_bytes(xsdt) {
        0 => Pointer { length, ..old },
        root => Pointer { length, root, entry_size: 8 },
    })
}

fn check_v1(place: &Source, address: u64) -> Read<()> {
    let mut signature = [0; 8];
    place.read("RSDP", address, 0, &mut signature)?;
    if signature != *b"RSD PTR " {
        let [a, b, c, d, ..] = signature;
        let found = [a, b, c, d];
        return Err(place.stop(Error::Signature { table: "RSDP", address, found }));
    }
    check_sum(place, address, RSDP_V1)
}

fn check_sum(place: &Source, address: u64, length: u32) -> Read<()> {
    match place.sum("RSDP", address, length)? {
        0 => Ok(()),
        sum => Err(place.stop(Error::Checksum { table: "RSDP", address, length, sum })),
    }
}
