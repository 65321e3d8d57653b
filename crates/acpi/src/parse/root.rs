//! The root pointer (RSDP), and the table of tables (RSDT or XSDT) it leads to (ACPI 5.2.5 to
//! 5.2.8).

use super::table::{HEADER, MAX_LENGTH, Table, read, sum};
use crate::{Error, Physical};

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
pub fn find_rsdp(mem: &impl Physical) -> Result<u64, Error> {
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

/// Calls `f` with signature and address of each table the root pointer leads to.
pub fn for_each_table(
    mem: &impl Physical,
    rsdp: &RootPointer,
    mut f: impl FnMut([u8; 4], u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (root, entry_size) = root_table(mem, rsdp)?;
    let name = if entry_size == 8 { "XSDT" } else { "RSDT" };
    let mut offset = HEADER;
    let mut count = 0;
    while offset < root.length() {
        if count == MAX_TABLES {
            return Err(Error::TooMany { table: name, what: "tables", most: MAX_TABLES });
        }
        count += 1;
        let address = match entry_size {
            8 => root.u64(offset)?,
            _ => u64::from(root.u32(offset)?),
        };
        offset = offset.saturating_add(entry_size);
        if address == 0 {
            continue; // Some firmware leaves holes.
        }
        let mut signature = [0; 4];
        read(mem, "table listed in the root table", address, 0, &mut signature)?;
        f(signature, address)?;
    }
    Ok(())
}

/// The table of tables and the size of its entries.
fn root_table<'a, M: Physical>(
    mem: &'a M,
    rsdp: &RootPointer,
) -> Result<(Table<'a, M>, u32), Error> {
    let place = &Place(mem, rsdp);
    let (RootPointer::At(rsdp) | RootPointer::Copy { at: rsdp, .. }) = *rsdp;
    check_v1(place, rsdp)?;
    let mut v1 = [0; RSDP_V1 as usize];
    read(place, "RSDP", rsdp, 0, &mut v1)?;
    let revision = v1[15];
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
        let xsdt = u64::from_le_bytes(xsdt);
        if xsdt != 0 {
            return Ok((Table::open(mem, "XSDT", *b"XSDT", xsdt)?, 8));
        }
    }
    let rsdt = u32::from_le_bytes([v1[16], v1[17], v1[18], v1[19]]);
    Ok((Table::open(mem, "RSDT", *b"RSDT", u64::from(rsdt))?, 4))
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
