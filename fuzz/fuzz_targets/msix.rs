//! The MSI-X table against an array of words, and accesses to a BAR around it against the layout.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::msix::{
    Control, Entry, Region, Table, intercepted_pages, pending_bytes, table_bytes,
};
use virtual_pc::pci::MsixLayout;

#[derive(Arbitrary, Debug)]
struct Input {
    entries: u8,
    table: (u8, u32),
    pending: (u8, u32),
    accesses: Vec<Access>,
}

#[derive(Arbitrary, Debug)]
enum Access {
    Read { offset: u16, size: u8 },
    Write { offset: u16, size: u8, value: u64 },
    Far { offset: u64, size: u8 },
    Message { index: u16, enabled: bool, masked: bool },
    Bar { bar: u8, offset: u64, near: bool, size: u8 },
    Reset,
}

/// What each word of an entry keeps of a write.
const KEPT: [u32; 4] = [!3, !0, !0, 1];

fn words(entries: usize) -> Vec<u32> {
    [0, 0, 0, 1].repeat(entries)
}

/// The words that an access reaches, if it counts.
fn reached(offset: u64, size: u8, words: &[u32]) -> std::ops::Range<usize> {
    let counts = matches!(size, 4 | 8) && offset.is_multiple_of(size.into());
    let start = (offset / 4).min(words.len() as u64) as usize;
    if counts { start..(start + usize::from(size) / 4).min(words.len()) } else { 0..0 }
}

fn expected(offset: u64, size: u8, words: &[u32]) -> u64 {
    let places = reached(offset, size, words);
    words[places].iter().rev().fold(0, |value, word| value << 32 | u64::from(*word))
}

fn overlap(offset: u64, size: u8, base: u32, length: u64) -> bool {
    let (start, end) = (u128::from(offset), u128::from(offset) + u128::from(size));
    start < u128::from(base) + u128::from(length) && u128::from(base) < end
}

fn check_region(layout: &MsixLayout, bar: u8, offset: u64, size: u8) {
    let entries = layout.entries.into();
    let table =
        bar == layout.table_bar && overlap(offset, size, layout.table_offset, table_bytes(entries));
    let pending =
        bar == layout.pba_bar && overlap(offset, size, layout.pba_offset, pending_bytes(entries));
    match layout.region(bar, offset, size) {
        Region::Table(at) => {
            assert!(table);
            let inside = offset.checked_sub(layout.table_offset.into());
            assert_eq!(inside.unwrap_or(u64::MAX), at);
        }
        Region::PendingBits => assert!(pending && !table),
        Region::Device => assert!(!pending && !table),
    }
    if table {
        let pages = intercepted_pages(layout.table_offset.into(), table_bytes(entries));
        assert!(pages.start % 4096 == 0 && pages.end % 4096 == 0);
        assert!(offset < pages.end && offset + u64::from(size) > pages.start);
    }
}

fuzz_target!(|input: Input| {
    let entries = usize::from(input.entries) % 64 + 1;
    let layout = MsixLayout {
        entries: entries as u16,
        table_bar: input.table.0 % 6,
        table_offset: input.table.1 & !7,
        pba_bar: input.pending.0 % 6,
        pba_offset: input.pending.1 & !7,
    };
    let mut table = Table::new(vec![Entry::RESET; entries]);
    let mut model = words(entries);
    for access in input.accesses {
        match access {
            Access::Read { offset, size } => {
                assert_eq!(table.read(offset.into(), size), expected(offset.into(), size, &model));
            }
            Access::Far { offset, size } => {
                assert_eq!(table.read(offset, size), expected(offset, size, &model));
            }
            Access::Write { offset, size, value } => {
                let before = model.clone();
                for (i, place) in reached(offset.into(), size, &model).enumerate() {
                    model[place] = (value >> (32 * i)) as u32 & KEPT[place % 4];
                }
                let changed = model.iter().zip(&before).position(|(new, old)| new != old);
                assert_eq!(table.write(offset.into(), size, value), changed.map(|word| word / 4));
            }
            Access::Message { index, enabled, masked } => {
                let index = usize::from(index);
                let message = table
                    .written(index, Control { enabled, masked })
                    .map(|w| w.message())
                    .transpose();
                let unmasked = model.get(4 * index + 3) == Some(&0);
                let sends = enabled && !masked && unmasked;
                assert!(sends || message == Ok(None));
                if let Ok(Some(message)) = message {
                    let words = &model[4 * index..][..4];
                    assert!(words[1] == 0 && words[0] >> 20 == 0xFEE);
                    assert!(message.vector >= 16 && message.vector == words[2] as u8);
                    assert_eq!(message.destination, words[0] >> 12 & 0xFF);
                } else {
                    assert!(!sends || message.is_err());
                }
            }
            Access::Bar { bar, offset, near, size } => {
                let base = u64::from(layout.table_offset).saturating_sub(64);
                let offset = if near { base + offset % 2048 } else { offset };
                check_region(&layout, bar % 6, offset, 1 << (size % 4));
            }
            Access::Reset => {
                table.reset();
                model = words(entries);
            }
        }
    }
    let all: Vec<u64> = (0..4 * entries as u64).map(|word| table.read(4 * word, 4)).collect();
    assert_eq!(all, model.iter().map(|word| u64::from(*word)).collect::<Vec<_>>());
});
