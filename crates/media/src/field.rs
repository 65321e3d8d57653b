//! Little-endian numbers in the headers of a file.
//!
//! Guarantees: what lies outside of the bytes is no number, and never a panic.

/// The unsigned number of `N` bytes, at most eight, at `at`; none if it lies outside.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found: [u8; N] = bytes.get(at..at.checked_add(N)?)?.try_into().ok()?;
    Some(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The number of two bytes at `at`.
pub fn u16(bytes: &[u8], at: usize) -> Option<u16> {
    number::<2>(bytes, at).map(|n| n as u16)
}

/// The number of four bytes at `at`.
pub fn u32(bytes: &[u8], at: usize) -> Option<u32> {
    number::<4>(bytes, at).map(|n| n as u32)
}

/// The number of eight bytes at `at`.
pub fn u64(bytes: &[u8], at: usize) -> Option<u64> {
    number::<8>(bytes, at)
}

/// Puts bytes at `at`; none, and nothing is changed, if they don't fit there.
pub fn put(bytes: &mut [u8], at: usize, new: &[u8]) -> Option<()> {
    bytes.get_mut(at..at.checked_add(new.len())?)?.copy_from_slice(new);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_inside() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 0x88];
        assert_eq!((u16(&bytes, 0), u16(&bytes, 6)), (Some(0x201), Some(0x8807)));
        assert_eq!(
            (u32(&bytes, 4), u64(&bytes, 0)),
            (Some(0x8807_0605), Some(0x8807_0605_0403_0201))
        );
        assert_eq!((u16(&bytes, 7), u32(&bytes, 5), u64(&bytes, usize::MAX)), (None, None, None));
        let mut changed = bytes;
        assert_eq!(put(&mut changed, 6, &[9, 9]), Some(()));
        assert_eq!((put(&mut changed, 7, &[0, 0]), changed[5..].to_vec()), (None, vec![6, 9, 9]));
    }
}
