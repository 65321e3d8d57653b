//! The sections of a PE image in memory (Microsoft's PE format, "Section Table"): how the UEFI
//! loader finds the hypervisor and the boot image in its own file, wherever firmware put it.
//!
//! Guarantees: what is found lies in the image; a table that leads out of it has no sections.

/// The section with the hypervisor's ELF.
pub const HYPERVISOR: &str = ".hyper";
/// The section with the boot image.
pub const PLAN: &str = ".plan";

/// Where the DOS header has the offset of the PE signature.
const PE_OFFSET: usize = 0x3C;
/// From the signature on: the number of sections, the size of the optional header, and its start.
const SECTION_COUNT: usize = 6;
const OPTIONAL_SIZE: usize = 20;
const OPTIONAL: usize = 24;
const SECTION: usize = 40;
const VIRTUAL_SIZE: usize = 8;
const VIRTUAL_ADDRESS: usize = 12;

/// The bytes of the section of that name in `image`, which is as firmware loaded it; none if there
/// is no such section.
pub fn section<'a>(image: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let pe = number::<4>(image, PE_OFFSET)?;
    if image.get(pe..pe.checked_add(4)?)? != b"PE\0\0" {
        return None;
    }
    let count = number::<2>(image, pe + SECTION_COUNT)?;
    let table = pe + OPTIONAL + number::<2>(image, pe + OPTIONAL_SIZE)?;
    (0..count).find_map(|index| {
        let at = table + index * SECTION;
        let found = image.get(at..at + 8)?;
        let length = found.iter().position(|byte| *byte == 0).unwrap_or(8);
        let start = number::<4>(image, at + VIRTUAL_ADDRESS)?;
        let end = start + number::<4>(image, at + VIRTUAL_SIZE)?;
        (found.get(..length)? == name.as_bytes()).then(|| image.get(start..end)).flatten()
    })
}

/// The little-endian number of `N` bytes, at most 4, at `at`.
fn number<const N: usize>(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}
