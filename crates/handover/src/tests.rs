//! The map against a model of single pages, and each loader's structures, whole and damaged.

mod efi;
mod ending;
mod loaders;
mod map;
mod payload;

use acpi::Physical;

/// Memory in pieces, each at its address.
#[derive(Default)]
struct Pieces(Vec<(u64, Vec<u8>)>);

impl Pieces {
    fn with(mut self, at: u64, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.push((at, bytes.into()));
        self
    }
}

impl Physical for Pieces {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        self.0.iter().any(|(start, bytes)| {
            let from = pa.checked_sub(*start).and_then(|offset| usize::try_from(offset).ok());
            let found = from.and_then(|from| bytes.get(from..from.checked_add(buf.len())?));
            found.map(|found| buf.copy_from_slice(found)).is_some()
        })
    }
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
