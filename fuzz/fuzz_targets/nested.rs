//! Nested page tables under any sequence of changes, some of them short of frames.
//!
//! The model is the history itself: what an address maps to was said by the last change that
//! covers it. A refused change has changed nothing, no frame is leaked or lent twice, and what must
//! be invalidated covers what was changed.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use paging::{Access, Error, Flush, Memory, Nested, PageSize, Table};
use std::collections::HashMap;

const K4: u64 = 1 << 12;
const M2: u64 = 1 << 21;
const G1: u64 = 1 << 30;

#[derive(Arbitrary, Debug)]
struct Input {
    largest: u8,
    changes: Vec<(Change, Option<u8>)>,
}

#[derive(Arbitrary, Debug)]
enum Change {
    Map {
        va: Address,
        pa: Address,
        apart: bool,
        len: Address,
        access: u8,
    },
    Unmap {
        va: Address,
        len: Address,
    },
    Replace {
        va: Address,
        pa: Address,
        access: u8,
    },
    /// Numbers that make sense by chance only.
    Wild {
        va: u64,
        pa: u64,
        len: u64,
    },
}

/// So many pages of each size, and bytes.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Address(u8, u16, u16, u8);

impl Address {
    fn value(self) -> u64 {
        let (m, k) = (u64::from(self.1) % 514, u64::from(self.2) % 514);
        // Misaligned once in a while.
        u64::from(self.0 % 4) * G1 + m * M2 + k * K4 + u64::from(self.3 / 255)
    }
}

#[derive(Default)]
struct Frames {
    words: HashMap<u64, Box<[u64; 512]>>,
    next: u64,
    /// How many more may be lent.
    budget: u64,
}

impl Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        assert!(pa.is_multiple_of(8));
        self.words[&(pa & !0xFFF)][(pa >> 3 & 0x1FF) as usize]
    }
    fn write(&mut self, pa: u64, value: u64) {
        assert!(pa.is_multiple_of(8));
        self.words.get_mut(&(pa & !0xFFF)).expect("lent")[(pa >> 3 & 0x1FF) as usize] = value;
    }
    fn allocate(&mut self) -> Option<u64> {
        self.budget = self.budget.checked_sub(1)?;
        self.next += K4;
        self.words.insert(self.next, Box::new([0; 512]));
        Some(self.next)
    }
    fn free(&mut self, frame: u64) {
        self.words.remove(&frame).expect("lent");
    }
}

/// A change that was made: `len` bytes at `va`, mapped to `target` or unmapped.
struct Made {
    va: u64,
    len: u64,
    target: Option<(u64, Access)>,
}

#[derive(Default)]
struct History(Vec<Made>);

impl History {
    fn at(&self, va: u64) -> Option<(u64, Access)> {
        let last = self.0.iter().rev().find(|made| va >= made.va && va - made.va < made.len)?;
        last.target.map(|(pa, access)| (pa + (va - last.va), access))
    }

    /// Where what is mapped can begin or end, within a range.
    fn edges(&self, va: u64, len: u64) -> impl Iterator<Item = u64> {
        let all = self.0.iter().flat_map(|made| [made.va, made.va + made.len]).chain([va]);
        all.filter(move |edge| *edge >= va && *edge - va < len)
    }

    fn maps_any(&self, va: u64, len: u64) -> bool {
        self.edges(va, len).any(|edge| self.at(edge).is_some())
    }
}

struct Bench {
    frames: Frames,
    table: Table<Nested>,
    largest: PageSize,
    history: History,
}

impl Bench {
    fn refused(&self, error: Error, frames: (usize, u64)) {
        one_line(&error);
        assert_eq!((self.frames.words.len(), self.table.frames()), frames);
    }

    fn flush(&mut self, flush: Flush, va: u64, len: u64) {
        match flush.range() {
            None => assert!(!self.history.maps_any(va, len)),
            Some((first, size)) => {
                assert!(first % K4 == 0 && size % K4 == 0);
                let covered = |edge: u64| edge >= first && edge - first < size;
                let mut changed =
                    self.history.edges(va, len).filter(|e| self.history.at(*e).is_some());
                assert!(changed.all(covered));
            }
        }
        flush.done(&mut self.frames);
    }

    fn map(&mut self, va: u64, pa: u64, len: u64, access: Access) {
        let before = (self.frames.words.len(), self.table.frames());
        match self.table.map(&mut self.frames, va, pa, len, access) {
            Ok(()) => {
                assert!(!self.history.maps_any(va, len));
                self.history.0.push(Made { va, len, target: Some((pa, access - Access::USER)) });
            }
            Err(error) => {
                let overlap = matches!(error, Error::Overlap { .. });
                assert!(!overlap || self.history.maps_any(va, len));
                self.refused(error, before);
            }
        }
    }

    fn unmap(&mut self, va: u64, len: u64) {
        let before = (self.frames.words.len(), self.table.frames());
        match self.table.unmap(&mut self.frames, va, len) {
            Ok(flush) => {
                self.flush(flush, va, len);
                self.history.0.push(Made { va, len, target: None });
            }
            Err(error) => self.refused(error, before),
        }
    }

    fn replace(&mut self, va: u64, pa: u64, access: Access) {
        let before = (self.frames.words.len(), self.table.frames());
        match self.table.replace(&mut self.frames, va, pa, access) {
            Ok((old, flush)) => {
                assert_eq!(old.map(|old| (old.pa, old.access)), self.history.at(va));
                self.flush(flush, va, K4);
                let target = Some((pa, access - Access::USER));
                self.history.0.push(Made { va, len: K4, target });
            }
            Err(error) => self.refused(error, before),
        }
    }

    fn make(&mut self, change: &Change) {
        match *change {
            Change::Map { va, pa, apart, len, access } => {
                let (va, mut len) = (va.value(), len.value());
                // Mostly where large pages fit.
                let pa = if apart { pa.value() } else { va + u64::from(pa.0) * G1 };
                // Keeps the number of pages, and so the time, small.
                let most = [M2 + 3 * K4, G1 + 3 * M2, 4 * G1];
                let fits = [M2, G1].iter().filter(|size| (va ^ pa) & (*size - 1) == 0).count();
                len = len.min(most[fits.min(self.largest as usize)]);
                self.map(va, pa, len, Access::from_bits_truncate(access));
            }
            Change::Unmap { va, len } => self.unmap(va.value(), len.value()),
            Change::Replace { va, pa, access } => {
                self.replace(va.value(), pa.value(), Access::from_bits_truncate(access));
            }
            Change::Wild { va, pa, len } => {
                if va.checked_add(len).is_none_or(|end| end > 1 << 48) || pa >> 52 != 0 {
                    self.map(va, pa, len, Access::READ);
                }
                self.replace(va, pa, Access::READ);
                assert!(self.table.lookup(&self.frames, va | 1 << 48).is_none());
            }
        }
    }

    fn check(&self) {
        for made in self.history.0.iter().rev().take(8) {
            for va in [made.va, made.va + made.len / 2, made.va + made.len - 1, made.va + made.len]
            {
                let found = self.table.lookup(&self.frames, va);
                assert_eq!(found.map(|found| (found.pa, found.access)), self.history.at(va));
            }
        }
        assert_eq!(self.table.frames(), self.frames.words.len() as u64, "no frame leaks");
    }
}

fuzz_target!(|input: Input| {
    let largest = [PageSize::Size1G, PageSize::Size2M, PageSize::Size4K];
    let largest = largest[usize::from(input.largest) % 3];
    let mut frames = Frames { budget: u64::MAX, ..Frames::default() };
    let table = Table::new(&mut frames, Nested, largest).expect("a root");
    let mut bench = Bench { frames, table, largest, history: History::default() };
    for (change, budget) in input.changes.iter().take(24) {
        bench.frames.budget = budget.map_or(u64::MAX, |few| u64::from(few % 8));
        bench.make(change);
        bench.check();
    }
    bench.frames.budget = u64::MAX;
    bench.unmap(0, 1 << 48);
    assert_eq!(bench.table.frames(), 1, "no table but the root is ever empty");
    bench.table.release(&mut bench.frames);
    assert!(bench.frames.words.is_empty(), "release frees every frame");
});
