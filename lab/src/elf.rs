//! How large a program is in memory.

use anyhow::{Context, Result};

/// Bytes that an ELF64 file's loadable segments have in the file: code and data,
/// neither debug information nor zeroes (ELF-64 Object File Format 1.5, tables 2 and 8).
pub fn loaded_bytes(elf: &[u8]) -> Result<u64> {
    let wrong = "the hypervisor's ELF has no readable program headers";
    let headers = (|| {
        let number = |at: u64, size: u64| {
            let bytes =
                elf.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(size)?).ok()?)?;
            Some(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
        };
        let (table, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        (0..count).try_fold(0u64, |sum, i| {
            let header = table.checked_add(i * size)?;
            let load = number(header, 4)? == 1;
            sum.checked_add(if load { number(header.checked_add(0x20)?, 8)? } else { 0 })
        })
    })();
    headers.filter(|_| elf.starts_with(b"\x7fELF\x02")).context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loadable_segments_are_summed() {
        let mut elf = vec![0; 64 + 3 * 56];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[0x20], elf[0x36], elf[0x38]) = (64, 56, 3);
        for (i, (kind, size)) in [(1, 100), (4, 7), (1, 50)].into_iter().enumerate() {
            elf[64 + 56 * i] = kind;
            elf[64 + 56 * i + 0x20] = size;
        }
        assert_eq!(loaded_bytes(&elf).unwrap(), 150);
        assert!(loaded_bytes(&elf[..100]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes: Vec<u8>, elf: bool) {
            if elf {
                bytes.splice(..0, *b"\x7fELF\x02");
            }
            let _ = loaded_bytes(&bytes);
        }
    }
}
