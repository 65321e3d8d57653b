//! The root pointer (RSDP), and the table of tables (RSDT or XSDT) it leads to (ACPI 5.2.5 to
//! 5.2.8).

use super::table::{HEADER, MAX_LENGTH, Table, read, sum};
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
struct Place<'a, M>(&'a M, &'a RootPointer);

impl<M: Physical> Physical for Place<'_, M> {
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
    let mem = &mem;
    let mut segment = [0; 2];
    let ebda = match mem.read(0x40E, &mut segment) {
        true => u64::from(u16::from_le_bytes(segment)) << 4,
        false => 0,
    };
    // No EBDA lies in the first KiB (interrupt vectors) or the BIOS data area above it.
    let ebda_end = if ebda < 0x500 { ebda } else { ebda + 0x400 };
    (ebda..ebda_end)
        .step_by(16)
        .chain((0xE_0000..0x10_0000).step_by(16))
        .find(|&address| check_v1(mem, address).is_ok())
        .ok_or(Error::NoRsdp)
}

/// The table of tables (RSDT or XSDT).
pub struct Root<'a, M> {
    mem: &'a M,
    table: Table<'a, M>,
    entry_size: u32,
    /// Bytes of the root pointer.
    pointer: u32,
}

impl<M: Physical> Root<'_, M> {
    /// Calls `f` with signature and address of each table that is listed.
    #[cold]
    pub fn for_each_table(
        &self,
        mut f: impl FnMut([u8; 4], u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let name = if self.entry_size == 8 { "XSDT" } else { "RSDT" };
        let mut offset = HEADER;
        let mut count = 0;
        while offset < self.table.length() {
            if count == MAX_TABLES {
                return Err(Error::TooMany { table: name, what: "tables", most: MAX_TABLES });
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
            read(self.mem, "table listed in the root table", address, 0, &mut signature)?;
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
    let mem = &mem;
    let root = root_table(mem, &rsdp)?;
    let from = |address: u64, length: u32| address..address.saturating_add(length.into());
    if let RootPointer::At(address) = rsdp {
        keep(from(address, root.pointer));
    }
    keep(from(root.table.address(), root.table.length()));
    root.for_each_table(|_, address| {
        // One whose length isn't believed is looked at no further than its header.
        let mut length = [0; 4];
        let readable = read(mem, "header", address, 4, &mut length).is_ok();
        let length = if readable { u32::from_le_bytes(length) } else { HEADER };
        keep(from(address, if length > MAX_LENGTH { HEADER } else { length.max(HEADER) }));
        Ok(())
    })
}

/// The table of tables, whose sum and whose pointer's are right.
pub fn root_table<'a, M: Physical>(mem: &'a M, rsdp: &RootPointer) -> Result<Root<'a, M>, Error> {
    let place = &Place(mem, rsdp);
    let (RootPointer::At(rsdp) | RootPointer::Copy { at: rsdp, .. }) = *rsdp;
    check_v1(place, rsdp)?;
    let mut v1 = [0; RSDP_V1 as usize];
    read(place, "RSDP", rsdp, 0, &mut v1)?;
    let revision = v1[15];
    let mut pointer = RSDP_V1;
    if revision >= 2 {
        let mut v2 = [0; 12];
        read(place, "RSDP", rsdp, u64::from(RSDP_V1), &mut v2)?;
        let [l0, l1, l2, l3, xsdt @ ..] = v2;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if !(RSDP_V2..=MAX_LENGTH).contains(&length) {
            let (found, least, most) = (length, RSDP_V2, MAX_LENGTH);
            return Err(Error::Length { table: "RSDP", address: rsdp, found, least, most });
        }
        check_sum(place, rsdp, length)?;
        pointer = length;
        let xsdt = u64::from_le_bytes(xsdt);
        if xsdt != 0 {
            let table = Table::open(mem, "XSDT", *b"XSDT", xsdt)?;
            return Ok(Root { mem, table, entry_size: 8, pointer });
        }
    }
    let rsdt = u32::from_le_bytes([v1[16], v1[17], v1[18], v1[19]]);
    let table = Table::open(mem, "RSDT", *b"RSDT", u64::from(rsdt))?;
    Ok(Root { mem, table, entry_size: 4, pointer })
}

fn check_v1(mem: &impl Physical, address: u64) -> Result<(), Error> {
    let mut signature = [0; 8];
    read(mem, "RSDP", address, 0, &mut signature)?;
    if signature != *b"RSD PTR " {
        let [a, b, c, d, ..] = signature;
        return Err(Error::Signature { table: "RSDP", address, found: [a, b, c, d] });
    }
    check_sum(mem, address, RSDP_V1)
}

fn check_sum(mem: &impl Physical, address: u64, length: u32) -> Result<(), Error> {
    match sum(mem, "RSDP", address, length)? {
        0 => Ok(()),
        sum => Err(Error::Checksum { table: "RSDP", address, length, sum }),
    }
}
