//! Little-endian fields of an image, each read checked; and of generated tables.

use crate::Error;

/// `len` bytes of `image` from `offset`; `what` names them if they aren't there.
pub fn slice<'a>(
    image: &'a [u8],
    offset: u64,
    len: u64,
    what: &'static str,
) -> Result<&'a [u8], Error> {
    let end = offset.saturating_add(len);
    let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
    range.and_then(|(start, end)| image.get(start..end)).ok_or(Error::Truncated {
        what,
        needed: end,
        found: image.len() as u64,
    })
}

/// The little-endian number of `N` bytes at `offset` of a header.
fn field<const N: usize>(image: &[u8], offset: u64) -> Result<[u8; N], Error> {
    let bytes = slice(image, offset, N as u64, "a header")?;
    let mut field = [0; N];
    field.copy_from_slice(bytes);
    Ok(field)
}

pub fn u8(image: &[u8], offset: u64) -> Result<u8, Error> {
    field(image, offset).map(u8::from_le_bytes)
}

pub fn u16(image: &[u8], offset: u64) -> Result<u16, Error> {
    field(image, offset).map(u16::from_le_bytes)
}

pub fn u32(image: &[u8], offset: u64) -> Result<u32, Error> {
    field(image, offset).map(u32::from_le_bytes)
}

pub fn u64(image: &[u8], offset: u64) -> Result<u64, Error> {
    field(image, offset).map(u64::from_le_bytes)
}

/// Writes `value` at `offset` of a generated table, which is large enough.
pub fn put(table: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(place) = table.get_mut(offset..offset.saturating_add(value.len())) {
        place.copy_from_slice(value);
    }
}
