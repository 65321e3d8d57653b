//! Random sequences of calls against a model, each call also with too few frames.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Segment, TestMemory, dump, join};
use crate::{
    Access, AmdV1, Entry, Ept, Error, Flush, Format, Host, Mapping, Nested, PageSize, SecondLevel,
    Table, VtdSecondLevel,
};

const K4: u64 = 1 << 12;
const M2: u64 = 1 << 21;
const G1: u64 = 1 << 30;

/// What is mapped where: disjoint ranges by their first address.
#[derive(Default)]
struct Model(BTreeMap<u64, Segment>);

impl Model {
    fn overlaps(&self, va: u64, len: u64) -> bool {
        self.0.values().any(|s| s.va < va + len && va < s.va + s.len)
    }

    fn at(&self, va: u64) -> Option<Segment> {
        self.0.range(..=va).next_back().map(|(_, s)| *s).filter(|s| va < s.va + s.len)
    }

    fn map(&mut self, va: u64, pa: u64, len: u64, access: Access) {
        self.0.insert(va, Segment { va, len, pa, access });
    }

    fn unmap(&mut self, va: u64, len: u64) {
        for old in std::mem::take(&mut self.0).into_values() {
            let end = old.va + old.len;
            if old.va < va {
                self.map(old.va, old.pa, old.len.min(va - old.va), old.access);
            }
            if end > va + len {
                let start = old.va.max(va + len);
                self.map(start, old.pa + (start - old.va), end - start, old.access);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Map { va: u64, pa: u64, len: u64, access: Access },
    Unmap { va: u64, len: u64 },
    Replace { va: u64, pa: u64, access: Access },
}

/// Addresses around the edges of pages of all sizes.
fn address() -> impl Strategy<Value = u64> {
    let small = prop_oneof![4 => Just(0u64), 1 => Just(1), 1 => Just(511), 1 => 0u64..512];
    (0u64..3, small.clone(), small).prop_map(|(g, m, k)| g * G1 + m * M2 + k * K4)
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (1u64..4).prop_map(|n| n * K4),
        1 => (1u64..1030).prop_map(|n| n * K4),
        2 => prop_oneof![Just(M2), Just(M2 + K4), Just(2 * M2 - K4)],
        2 => prop_oneof![Just(G1), Just(G1 + M2 + K4), Just(2 * G1), Just(G1 - K4)],
    ]
}

fn access() -> impl Strategy<Value = Access> {
    any::<u8>().prop_map(|bits| Access::from_bits_truncate(bits) | Access::READ)
}

fn call() -> impl Strategy<Value = Call> {
    // The same offset as the address, so that large pages fit, or another.
    let shifted = prop_oneof![4 => Just(0u64), 1 => Just(M2), 1 => Just(K4)];
    prop_oneof![
        3 => (address(), 0u64..8, shifted, len(), access())
            .prop_map(|(va, g, by, len, access)| Call::Map { va, pa: va + g * G1 + by, len, access }),
        2 => (address(), len()).prop_map(|(va, len)| Call::Unmap { va, len }),
        2 => (address(), address(), access())
            .prop_map(|(va, pa, access)| Call::Replace { va, pa, access }),
    ]
}

struct Bench<F: Format> {
    mem: TestMemory,
    table: Table<F>,
    model: Model,
    largest: PageSize,
    base: u64,
}

impl<F: Format> Bench<F> {
    fn new(format: F, largest: PageSize, base: u64) -> Self {
        let mut mem = TestMemory::new();
        let table = Table::new(&mut mem, format, largest).expect("a root");
        Self { mem, table, model: Model::default(), largest, base }
    }

    /// What the format keeps of `access`.
    fn kept(&self, access: Access) -> Access {
        match self.table.format().decode(1, self.table.format().leaf(1, 0, access)) {
            Entry::Leaf { access, .. } => access,
            other => panic!("a leaf decodes as {other:?}"),
        }
    }

    /// Makes a call with no frame, with one too few, and with just enough.
    fn tight<T>(
        &mut self,
        call: impl Fn(&mut Table<F>, &mut TestMemory) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut available = 0;
        loop {
            let (before, frames) = (self.mem.frames.clone(), self.table.frames());
            self.mem.budget = available;
            let result = call(&mut self.table, &mut self.mem);
            if result.is_ok() {
                assert_eq!(self.mem.budget, 0, "all frames reserved are used");
                return result;
            }
            assert!(self.mem.frames == before, "a failed call changes nothing");
            assert_eq!(self.table.frames(), frames);
            match result {
                Err(Error::NoFrame { needed }) if available + 1 < needed => available = needed - 1,
                Err(Error::NoFrame { needed }) if available < needed => available = needed,
                other => return other,
            }
        }
    }

    fn flush(&mut self, flush: Flush, va: u64, len: u64, changed: bool) {
        match flush.range() {
            Some((first, size)) => {
                assert!(changed && first < va + len && va < first + size);
                assert!(first & (K4 - 1) == 0 && size & (K4 - 1) == 0);
            }
            None => assert!(!changed),
        }
        flush.done(&mut self.mem);
    }

    fn run(&mut self, call: Call) {
        match call {
            Call::Map { va, pa, len, access } => {
                let va = self.base + va;
                // Keeps the number of pages, and so the test's time, small.
                let few = self.largest == PageSize::Size4K || (va ^ pa) & (M2 - 1) != 0;
                let most = if cfg!(miri) { 4 * K4 } else { 3 * M2 / 2 };
                let len = if few { len.min(most) } else { len };
                let result = self.tight(|table, mem| table.map(mem, va, pa, len, access));
                if self.model.overlaps(va, len) {
                    assert!(matches!(result, Err(Error::Overlap { .. })));
                } else {
                    assert_eq!(result, Ok(()));
                    self.model.map(va, pa, len, self.kept(access));
                }
            }
            Call::Unmap { va, len } => {
                let va = self.base + va;
                let changed = self.model.overlaps(va, len);
                let flush = self.tight(|table, mem| table.unmap(mem, va, len)).expect("unmap");
                self.flush(flush, va, len, changed);
                self.model.unmap(va, len);
            }
            Call::Replace { va, pa, access } => {
                let va = self.base + va;
                let (old, flush) =
                    self.tight(|table, mem| table.replace(mem, va, pa, access)).expect("replace");
                let expected = self.model.at(va).map(|s| (s.pa + (va - s.va), s.access));
                assert_eq!(old.map(|old| (old.pa, old.access)), expected);
                if let (Some(old), Some(range)) = (old, flush.range()) {
                    assert_eq!(range, (va & !(old.size - 1), old.size));
                }
                self.flush(flush, va, K4, old.is_some());
                self.model.unmap(va, K4);
                self.model.map(va, pa, K4, self.kept(access));
            }
        }
        self.check();
    }

    fn check(&self) {
        let (segments, frames) = dump(&self.table, &self.mem);
        assert_eq!(segments, join(self.model.0.values().copied()));
        assert_eq!(frames.len() as u64, self.table.frames());
        assert_eq!(frames.len(), self.mem.frames.len(), "no frame leaks");
        for segment in &segments {
            let last = segment.len - 1;
            for offset in [0, last] {
                let Mapping { pa, access, size } =
                    self.table.lookup(&self.mem, segment.va + offset).expect("mapped");
                assert_eq!((pa, access), (segment.pa + offset, segment.access));
                assert!(size <= segment.len && size <= 0x1000 << (9 * self.largest as u32));
            }
            let after = segment.va + segment.len;
            let expected = self.model.at(after).map(|s| s.pa + (after - s.va));
            assert_eq!(self.table.lookup(&self.mem, after).map(|m| m.pa), expected);
        }
    }

    fn finish(mut self) {
        self.table.release(&mut self.mem);
        assert!(self.mem.frames.is_empty(), "release frees every frame");
    }
}

fn largest() -> impl Strategy<Value = PageSize> {
    prop_oneof![
        1 => Just(PageSize::Size4K),
        1 => Just(PageSize::Size2M),
        2 => Just(PageSize::Size1G),
    ]
}

/// Every other sequence starts with the largest pages there are, for the others to break up.
fn calls() -> impl Strategy<Value = Vec<Call>> {
    let large = (any::<bool>(), access()).prop_map(|(two, access)| Call::Map {
        va: 0,
        pa: G1,
        len: if two { 2 * G1 } else { G1 + 2 * M2 + K4 },
        access,
    });
    let count = if cfg!(miri) { 1..3 } else { 1..12 };
    (prop::option::of(large), prop::collection::vec(call(), count))
        .prop_map(|(first, calls)| first.into_iter().chain(calls).collect())
}

fn sequence<F: Format>(format: F, largest: PageSize, base: u64, calls: &[Call]) {
    let mut bench = Bench::new(format, largest, base);
    for &call in calls {
        bench.run(call);
    }
    bench.finish();
}

proptest! {
    #![proptest_config(super::config(48))]

    #[test]
    fn host(calls in calls(), largest in largest(), high: bool) {
        let base = if high { 0xFFFF_8000_0000_0000 + 510 * G1 } else { 510 * G1 };
        sequence(Host, largest, base, &calls);
    }

    #[test]
    fn nested(calls in calls(), largest in largest(), top: bool) {
        // The second base has bit 47 set, which is no sign here.
        let base = if top { 0x8000_0000_0000 } else { 0 };
        sequence(Nested, largest, base, &calls);
    }

    #[test]
    fn ept(calls in calls(), largest in largest(), top: bool) {
        let base = if top { 0x8000_0000_0000 } else { 0 };
        sequence(Ept, largest, base, &calls);
    }

    #[test]
    fn second_level(calls in calls(), largest in largest(), ept: bool) {
        let format = if ept { SecondLevel::Ept } else { SecondLevel::Nested };
        sequence(format, largest, 0, &calls);
    }

    #[test]
    fn vtd(calls in calls(), largest in largest(), four: bool) {
        let format = if four { VtdSecondLevel::FourLevels } else { VtdSecondLevel::ThreeLevels };
        sequence(format, largest, 505 * G1, &calls);
    }

    #[test]
    fn amd(calls in calls(), largest in largest(), four: bool) {
        let format = if four { AmdV1::FourLevels } else { AmdV1::ThreeLevels };
        sequence(format, largest, 505 * G1, &calls);
    }
}
