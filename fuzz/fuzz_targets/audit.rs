//! The look at page tables from outside: any words in any of a table's frames. It reads frames of
//! the table and no others, ends in as many calls as there are entries, and finds nothing exactly
//! if a walk of everything finds nothing.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use paging::audit::{Cursor, Region};
use paging::{Access, Entry, Format, Memory, Nested, PageSize, Table};

const FRAMES: u64 = 6;

#[derive(Arbitrary, Debug)]
struct Input {
    words: Vec<(u8, u16, Word)>,
    regions: Vec<(Option<u32>, u32, u16, u8)>,
    step: u8,
}

#[derive(Arbitrary, Debug)]
enum Word {
    Any(u64),
    Table(u8),
    /// Where, as a number of pages, with what access, at which level.
    Leaf(u32, u8, u8),
}

struct Frames(Vec<[u64; 512]>);

impl Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        assert!(pa.is_multiple_of(8) && pa >> 12 < FRAMES, "a read of {pa:#x}");
        self.0[(pa >> 12) as usize][(pa >> 3 & 511) as usize]
    }

    fn write(&mut self, pa: u64, value: u64) {
        self.0[(pa >> 12) as usize][(pa >> 3 & 511) as usize] = value;
    }

    fn allocate(&mut self) -> Option<u64> {
        Some(0)
    }

    fn free(&mut self, _: u64) {}
}

fn is_table(frame: u64) -> bool {
    frame >> 12 < FRAMES
}

/// Whether all below the table at `frame` is as it should be. `budget` bounds the entries visited:
/// tables that lead to themselves multiply.
fn sound(
    mem: &Frames,
    frame: u64,
    level: u32,
    va: u64,
    regions: &[Region],
    budget: &mut u32,
) -> Option<bool> {
    if !is_table(frame) || regions.iter().any(|r| (r.pa..r.pa + r.len).contains(&frame)) {
        return Some(false);
    }
    for index in 0..512 {
        *budget = budget.checked_sub(1)?;
        let (size, va) = (0x1000 << (9 * (level - 1)), va + (index << (12 + 9 * (level - 1))));
        let good = match Nested.decode(level, mem.read(frame | index << 3)) {
            Entry::Empty => true,
            Entry::Table(next) => sound(mem, next, level - 1, va, regions, budget)?,
            Entry::Leaf { pa, access } => regions.iter().any(|r| {
                r.pa <= pa
                    && pa + size <= r.pa + r.len
                    && r.va.is_none_or(|at| at + (pa - r.pa) == va)
                    && access - Access::UNCACHED == access & r.access - Access::UNCACHED
                    && access & Access::UNCACHED == r.access & Access::UNCACHED
            }),
        };
        if !good {
            return Some(false);
        }
    }
    Some(true)
}

fuzz_target!(|input: Input| {
    let mut mem = Frames(vec![[0; 512]; FRAMES as usize]);
    let table = Table::new(&mut mem, Nested, PageSize::Size1G).unwrap();
    for (frame, index, word) in &input.words {
        let word = match *word {
            Word::Any(word) => word,
            Word::Table(frame) => Nested.table(2, u64::from(frame) % (FRAMES + 1) << 12),
            Word::Leaf(page, access, level) => {
                let level = 1 + u32::from(level) % 3;
                let pa = u64::from(page) << 12 >> (12 + 9 * (level - 1)) << (12 + 9 * (level - 1));
                Nested.leaf(level, pa, Access::from_bits_truncate(access))
            }
        };
        mem.write((u64::from(*frame) % FRAMES) << 12 | u64::from(index & 511) << 3, word);
    }
    let regions: Vec<_> = input
        .regions
        .iter()
        .take(8)
        .map(|(va, page, pages, access)| Region {
            va: va.map(|page| u64::from(page) << 12),
            pa: u64::from(*page) << 12,
            len: u64::from(*pages) << 12,
            access: Access::from_bits_truncate(*access),
        })
        .collect();

    const BUDGET: u32 = 64 << 10;
    let Some(expected) = sound(&mem, 0, 4, 0, &regions, &mut BUDGET.clone()) else { return };
    let (mut cursor, mut found, mut calls) = (Cursor::default(), 0, 0);
    let step = 1 + u32::from(input.step);
    loop {
        calls += 1;
        assert!(calls <= 20 * BUDGET, "it doesn't end");
        match table.outline().audit(
            |pa| mem.read(pa),
            &mut cursor,
            step,
            &regions,
            is_table,
            || Some(()),
        ) {
            Ok(true) => break,
            Ok(false) => {}
            Err(finding) => {
                found += 1;
                one_line(&finding);
                // One is enough to know; what a thousand cost is another matter.
                if found > 4 || cursor == Cursor::default() {
                    break;
                }
            }
        }
    }
    assert_eq!(found == 0, expected);
});
