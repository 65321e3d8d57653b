//! Unmappings that leave emptied tables in place, prunes, and mappings in between, against a model
//! of what is mapped and hardware that caches every table that it can reach.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Segment, TestMemory, join};
use crate::{
    Access, AmdV1, Dma, Entry, Error, Flush, Format, Memory, PageSize, Table, VtdSecondLevel,
};

const K4: u64 = 1 << 12;
const M2: u64 = 1 << 21;
const G1: u64 = 1 << 30;
const ALL: u64 = 1 << 39;
const RW: Access = Access::READ.union(Access::WRITE);

/// The first address that a table translates, its level, and how many entries it has that are
/// present.
type Known = BTreeMap<u64, (u64, u32, usize)>;

/// All tables by their frames, and all that they map.
fn tables(table: &Table<Dma>, mem: &TestMemory) -> (Known, Vec<Segment>) {
    let (mut known, mut segments) = (Known::new(), Vec::new());
    let mut rest = vec![(table.root(), table.format().levels(), 0)];
    while let Some((frame, level, base)) = rest.pop() {
        let size = K4 << (9 * (level - 1));
        let mut present = 0;
        for (index, word) in mem.frames[&frame].iter().enumerate() {
            let va = base + index as u64 * size;
            match table.format().decode(level, *word) {
                Entry::Empty => {
                    assert_eq!(*word, 0, "an empty entry is zero");
                    continue;
                }
                Entry::Leaf { pa, access } => segments.push(Segment { va, len: size, pa, access }),
                Entry::Table(next) => rest.push((next, level - 1, va)),
            }
            present += 1;
        }
        assert!(known.insert(frame, (base, level, present)).is_none(), "linked twice");
    }
    segments.sort_by_key(|segment| segment.va);
    (known, join(segments))
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Map { va: u64, pa: u64, len: u64 },
    Vacate { va: u64, len: u64 },
    Unmap { va: u64, len: u64 },
    Prune { va: u64, len: u64 },
}

/// In few large pages, so that calls meet.
fn address() -> impl Strategy<Value = u64> {
    let small = prop_oneof![3 => Just(0u64), 1 => Just(511), 2 => 0u64..4];
    (0u64..2, small.clone(), small).prop_map(|(g, m, k)| g * G1 + m * M2 + k * K4)
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (1u64..4).prop_map(|n| n * K4),
        2 => prop_oneof![Just(M2), Just(M2 + K4), Just(2 * M2 - K4)],
        1 => prop_oneof![Just(G1), Just(G1 + M2)],
    ]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (address(), 0u64..3, len()).prop_map(|(va, g, len)| Call::Map { va, pa: va + g * G1, len }),
        4 => (address(), len()).prop_map(|(va, len)| Call::Vacate { va, len }),
        1 => (address(), len()).prop_map(|(va, len)| Call::Unmap { va, len }),
        1 => (address(), len()).prop_map(|(va, len)| Call::Prune { va, len }),
        1 => Just(Call::Prune { va: 0, len: ALL }),
    ]
}

struct Bench {
    mem: TestMemory,
    table: Table<Dma>,
    /// By page.
    model: BTreeMap<u64, u64>,
}

impl Bench {
    fn new(format: Dma, largest: PageSize) -> Self {
        let mut mem = TestMemory::new();
        let table = Table::new(&mut mem, format, largest).expect("a root");
        Bench { mem, table, model: BTreeMap::new() }
    }

    fn mapped(&self, va: u64, len: u64) -> bool {
        self.model.range(va..va + len).next().is_some()
    }

    fn forget(&mut self, va: u64, len: u64) {
        self.model.retain(|page, _| !(va..va + len).contains(page));
    }

    /// Before a call, hardware has cached the way to every table. No frame may be free that it
    /// still goes to once the flush's range is invalidated.
    fn flushed(&mut self, cached: Known, flush: Flush) {
        let range = flush.range();
        let holds = |base: u64, level: u32| {
            let end = base + (K4 << (9 * level));
            range.is_none_or(|(first, len)| end <= first || first + len <= base)
        };
        let still: Vec<_> =
            cached.iter().filter(|(_, (base, level, _))| holds(*base, *level)).collect();
        flush.done(&mut self.mem);
        for (frame, _) in still {
            assert!(self.mem.frames.contains_key(frame), "{frame:#x} may still be walked");
        }
    }

    fn run(&mut self, call: Call) {
        let (before, _) = tables(&self.table, &self.mem);
        let root = self.table.root();
        let cached = before.clone().into_iter().filter(|(frame, _)| *frame != root).collect();
        match call {
            Call::Map { va, pa, len } => {
                let frames = self.mem.frames.clone();
                let done = self.table.map(&mut self.mem, va, pa, len, RW);
                if self.mapped(va, len) {
                    assert!(matches!(done, Err(Error::Overlap { .. })));
                    assert!(self.mem.frames == frames);
                    return;
                }
                if let Err(Error::Overlap { size, .. }) = done {
                    assert!(size > K4, "no table is in the way of a small page");
                    assert!(self.mem.frames == frames);
                    let flush = self.table.prune(&mut self.mem, va, len).expect("prune");
                    self.flushed(cached, flush);
                    let again = self.table.map(&mut self.mem, va, pa, len, RW);
                    assert_eq!(again, Ok(()), "nothing is in the way any more");
                } else {
                    assert_eq!(done, Ok(()));
                }
                self.model.extend((0..len / K4).map(|n| (va + n * K4, pa + n * K4)));
            }
            Call::Vacate { va, len } => {
                let flush = self.table.vacate(&mut self.mem, va, len).expect("vacate");
                if self.mapped(va, len) {
                    assert!(flush.range().is_some());
                }
                self.flushed(cached, flush);
                self.forget(va, len);
                let (after, _) = tables(&self.table, &self.mem);
                let inside =
                    |base: u64, level: u32| base >= va && base + (K4 << (9 * level)) <= va + len;
                for (frame, (base, level, _)) in &before {
                    let stays = *frame == root || !inside(*base, *level);
                    assert_eq!(after.contains_key(frame), stays, "of {base:#x}, level {level}");
                }
            }
            Call::Unmap { va, len } => {
                let flush = self.table.unmap(&mut self.mem, va, len).expect("unmap");
                self.flushed(cached, flush);
                self.forget(va, len);
            }
            Call::Prune { va, len } => {
                let flush = self.table.prune(&mut self.mem, va, len).expect("prune");
                self.flushed(cached, flush);
                for (base, level, present) in tables(&self.table, &self.mem).0.into_values() {
                    let reaches = base < va + len && va < base + (K4 << (9 * level));
                    let is_root = level == self.table.format().levels();
                    assert!(present > 0 || is_root || !reaches, "an empty one at {base:#x}");
                }
            }
        }
    }

    fn check(&self) {
        let (known, segments) = tables(&self.table, &self.mem);
        let pages =
            self.model.iter().map(|(va, pa)| Segment { va: *va, len: K4, pa: *pa, access: RW });
        assert_eq!(segments, join(pages));
        assert_eq!(known.len() as u64, self.table.frames());
        assert_eq!(known.len(), self.mem.frames.len(), "no frame leaks");
    }
}

fn formats() -> impl Strategy<Value = Dma> {
    prop::sample::select(vec![
        Dma::Vtd(VtdSecondLevel::ThreeLevels),
        Dma::Vtd(VtdSecondLevel::FourLevels),
        Dma::Amd(AmdV1::ThreeLevels),
        Dma::Amd(AmdV1::FourLevels),
    ])
}

proptest! {
    #![proptest_config(super::config(96))]

    #[test]
    fn tables_that_stay_change_nothing_and_are_given_back(
        format in formats(),
        large: bool,
        calls in prop::collection::vec(call(), if cfg!(miri) { 1..3 } else { 1..24 }),
    ) {
        let largest = if large { PageSize::Size2M } else { PageSize::Size4K };
        let mut bench = Bench::new(format, largest);
        for call in calls {
            // Without large pages this is as many entries as it has pages.
            if let Call::Map { len, .. } = call && !large && len > 2 * M2 {
                continue;
            }
            bench.run(call);
            bench.check();
        }
        bench.run(Call::Vacate { va: 0, len: ALL });
        bench.check();
        prop_assert!(bench.model.is_empty());
        bench.table.release(&mut bench.mem);
        prop_assert!(bench.mem.frames.is_empty());
    }
}

/// Words that are read and written.
struct Counted<'a>(&'a mut TestMemory, std::cell::Cell<u64>);

impl Memory for Counted<'_> {
    fn read(&self, pa: u64) -> u64 {
        self.1.set(self.1.get() + 1);
        self.0.read(pa)
    }

    fn write(&mut self, pa: u64, value: u64) {
        self.1.set(self.1.get() + 1);
        self.0.write(pa, value);
    }

    fn allocate(&mut self) -> Option<u64> {
        self.0.allocate()
    }

    fn free(&mut self, frame: u64) {
        self.0.free(frame);
    }
}

/// A pair that comes again and again costs walks of four levels, and no look through tables.
#[test]
fn a_pair_reads_few_words() {
    let mut mem = TestMemory::new();
    let format = Dma::Amd(AmdV1::FourLevels);
    let mut table = Table::new(&mut mem, format, PageSize::Size1G).unwrap();
    let mut pair = |mem: &mut TestMemory| {
        let mut counted = Counted(mem, 0.into());
        table.map(&mut counted, 5 * G1, G1, K4, RW).unwrap();
        table.vacate(&mut counted, 5 * G1, K4).unwrap().done(&mut counted);
        counted.1.get()
    };
    pair(&mut mem);
    let frames = mem.frames.len();
    let words = pair(&mut mem);
    assert!(words <= 10, "{words} words");
    assert_eq!(mem.frames.len(), frames, "nor a frame");
}

/// A prune reads each entry of what there is once, and finds what a guest has left everywhere.
#[test]
fn a_prune_is_bounded_by_the_tables() {
    let mut mem = TestMemory::new();
    let format = Dma::Vtd(VtdSecondLevel::ThreeLevels);
    let mut table = Table::new(&mut mem, format, PageSize::Size4K).unwrap();
    let places = if cfg!(miri) { 2 } else { 64 };
    // In every second one, the last page stays.
    for n in 0..places {
        table.map(&mut mem, n * M2, 0, K4, RW).unwrap();
        if n % 2 == 0 {
            table.map(&mut mem, (n + 1) * M2 - K4, 0, K4, RW).unwrap();
        }
        table.vacate(&mut mem, n * M2, K4).unwrap().done(&mut mem);
    }
    let frames = table.frames();
    let mut counted = Counted(&mut mem, 0.into());
    let flush = table.prune(&mut counted, 0, ALL).unwrap();
    let words = counted.1.get();
    assert!(words <= 512 * frames + 2 * places, "{words} words of {frames} tables");
    flush.done(&mut mem);
    assert_eq!(table.frames(), frames - places / 2);
    assert_eq!(mem.frames.len() as u64, table.frames());
}
