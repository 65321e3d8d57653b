//! Exact entries, edges of the address space, refusals, and what hardware sees during a change.

use super::memory::{TestMemory, dump};
use crate::{
    Access, AmdV1, Dma, Entry, Ept, Error, Format, Host, Mapping, Memory, Nested, PageSize, Table,
    VtdSecondLevel,
};

const M2: u64 = 1 << 21;
const G1: u64 = 1 << 30;
const RW: Access = Access::READ.union(Access::WRITE);
const RX: Access = Access::READ.union(Access::EXECUTE);

#[test]
fn entries_are_as_the_manuals_say() {
    assert_eq!(Host.leaf(1, 0x1234_5000, RX), 0x1234_5021);
    assert_eq!(Host.leaf(1, 0x1234_5000, RW), 0x8000_0000_1234_5063);
    assert_eq!(Host.leaf(2, M2, RW | Access::UNCACHED), 0x8000_0000_0020_00FB);
    assert_eq!(Host.leaf(3, G1, RX | Access::USER), 0x4000_00A5);
    assert_eq!(Host.table(4, 0x7000), 0x7027);
    assert_eq!(Nested.leaf(1, 0x5000, RX | Access::WRITE), 0x5067);
    assert_eq!(Nested.leaf(1, 0x5000, Access::READ), 0x8000_0000_0000_5025);
    assert_eq!(Nested.table(2, 0x7000), 0x7027);
    assert_eq!(Ept.leaf(1, 0x5000, RX | Access::WRITE), 0x5037);
    assert_eq!(Ept.leaf(1, 0x5000, Access::READ), 0x5031);
    assert_eq!(Ept.leaf(2, M2, RW | Access::UNCACHED), M2 | 0xC3);
    assert_eq!(Ept.leaf(3, G1, RX | Access::USER), G1 | 0xB5);
    assert_eq!(Ept.table(4, 0x7000), 0x7007);
    let vtd = VtdSecondLevel::ThreeLevels;
    assert_eq!(vtd.leaf(1, 0x5000, RW | Access::all()), 0x5003);
    assert_eq!(vtd.leaf(2, M2, Access::WRITE), M2 | 0x82);
    assert_eq!(vtd.table(3, 0x7000), 0x7003);
    let amd = AmdV1::FourLevels;
    assert_eq!(amd.leaf(1, 0x5000, RW | Access::all()), 0x7000_0000_0000_5001);
    assert_eq!(amd.leaf(2, M2, Access::WRITE), 0x5000_0000_0020_0001);
    assert_eq!(amd.leaf(3, G1, Access::READ), 0x3000_0000_4000_0001);
    assert_eq!(amd.table(4, 0x7000), 0x6000_0000_0000_7601);
    assert_eq!(amd.table(2, 0x7000), 0x6000_0000_0000_7201);
}

/// What this crate never writes: next levels that skip one, or lead up, or say a size (7).
#[test]
fn an_amd_entry_of_another_kind_allows_everything_or_is_absent() {
    let amd = AmdV1::FourLevels;
    let leaf = |access| Entry::Leaf { pa: 0x7000, access };
    for level in 1..=4 {
        for next in 0..8u32 {
            let entry = 0x6000_0000_0000_7001 | u64::from(next) << 9;
            let expected = match next {
                0 => leaf(RW),
                next if next + 1 == level => Entry::Table(0x7000),
                _ => leaf(Access::all()),
            };
            assert_eq!(amd.decode(level, entry), expected, "{level} {next}");
            assert_eq!(amd.decode(level, entry & !1), Entry::Empty, "{level} {next}");
        }
    }
    assert_eq!(amd.decode(1, 0x7001), leaf(Access::empty()));
}

#[test]
fn the_format_at_hand_is_the_one_behind_it() {
    fn same(one: impl Format, other: impl Format) {
        assert_eq!(one.levels(), other.levels());
        for access in (0..32).map(Access::from_bits_truncate) {
            assert_eq!(one.accepts(access), other.accepts(access));
            for level in 1..=4 {
                let (leaf, table) = (one.leaf(level, M2, access), one.table(level, 0x7000));
                assert_eq!(
                    (leaf, table),
                    (other.leaf(level, M2, access), other.table(level, 0x7000))
                );
                for word in [leaf, table, 0] {
                    assert_eq!(one.decode(level, word), other.decode(level, word));
                }
            }
        }
    }
    for format in [VtdSecondLevel::ThreeLevels, VtdSecondLevel::FourLevels] {
        same(Dma::Vtd(format), format);
    }
    for format in [AmdV1::ThreeLevels, AmdV1::FourLevels] {
        same(Dma::Amd(format), format);
    }
}

/// Walks rely on it: they end there.
#[test]
fn no_entry_at_level_1_is_a_table() {
    for flags in (0..0x1000).flat_map(|low| [low, 1 << 63 | low]) {
        let entries = [
            Host.decode(1, 0x5000 | flags),
            Nested.decode(1, 0x5000 | flags),
            Ept.decode(1, 0x5000 | flags),
            VtdSecondLevel::FourLevels.decode(1, 0x5000 | flags),
        ];
        assert!(!entries.iter().any(|e| matches!(e, Entry::Table(_))), "{flags:#x}: {entries:?}");
    }
}

/// Each access at each level that has leaves: what comes back is what the hardware allows.
#[test]
fn a_leaf_allows_what_was_asked_for_and_no_more() {
    let (vtd, pa) = (VtdSecondLevel::FourLevels, 5 * G1);
    for (access, level) in (0..32).flat_map(|bits| [1, 2, 3].map(|level| (bits, level))) {
        let access = Access::from_bits_truncate(access);
        let leaf = |access| Entry::Leaf { pa, access };
        let readable = access.contains(Access::READ);
        let accept = [Host.accepts(access), Nested.accepts(access), Ept.accepts(access)];
        assert_eq!(accept, [readable; 3]);
        if readable {
            assert_eq!(Host.decode(level, Host.leaf(level, pa, access)), leaf(access));
            let nested = Nested.leaf(level, pa, access);
            assert_eq!(nested & 4, 4, "every nested page is a user page, asked for or not");
            assert_eq!(Nested.decode(level, nested), leaf(access - Access::USER));
            let ept = Ept.leaf(level, pa, access);
            assert_eq!(Ept.decode(level, ept), leaf(access - Access::USER));
        }
        let dma = access & RW;
        assert_eq!(vtd.accepts(access), !dma.is_empty());
        let entry = if dma.is_empty() { Entry::Empty } else { leaf(dma) };
        assert_eq!(vtd.decode(level, vtd.leaf(level, pa, access)), entry);
    }
}

/// What this crate never writes, and what some are misconfigured by: a look at a table must not
/// take it for a page that was made.
#[test]
fn an_ept_entry_without_reads_is_no_page_of_ours() {
    for rights in [2, 4, 6] {
        let Entry::Leaf { access, .. } = Ept.decode(1, 0x5030 | rights) else { unreachable!() };
        assert!(!access.contains(Access::READ), "{rights}");
    }
}

#[test]
fn unused_frames_look_empty_to_hardware() {
    for level in 1..=4 {
        for word in [0, 0x1000, 0x000F_FFFF_FFFF_F000] {
            assert_eq!(Host.decode(level, word), Entry::Empty);
            assert_eq!(Nested.decode(level, word), Entry::Empty);
            assert_eq!(Ept.decode(level, word), Entry::Empty);
            assert_eq!(VtdSecondLevel::FourLevels.decode(level, word), Entry::Empty);
            assert_eq!(AmdV1::FourLevels.decode(level, word), Entry::Empty);
        }
    }
}

#[test]
fn uses_the_largest_pages_that_fit() {
    for (largest, frames, size) in
        [(PageSize::Size1G, 2, G1), (PageSize::Size2M, 3, M2), (PageSize::Size4K, 3 + 512, 0x1000)]
    {
        if cfg!(miri) && largest == PageSize::Size4K {
            continue;
        }
        let mut mem = TestMemory::new();
        let mut table = Table::new(&mut mem, Nested, largest).unwrap();
        table.map(&mut mem, 0, G1, G1, RW).unwrap();
        assert_eq!(table.frames(), frames);
        let access = RW;
        assert_eq!(table.lookup(&mem, 0x1234), Some(Mapping { pa: G1 + 0x1234, access, size }));
        assert_eq!(table.lookup(&mem, G1), None);
    }
}

#[test]
fn edges_of_the_address_space() {
    let mut mem = TestMemory::new();
    let mut host = Table::new(&mut mem, Host, PageSize::Size1G).unwrap();
    let bits = 48;
    // The last page there is, and its neighbours across the edges.
    host.map(&mut mem, 0u64.wrapping_sub(M2), 0, M2, RW).unwrap();
    assert_eq!(host.lookup(&mem, u64::MAX).map(|m| m.pa), Some(M2 - 1));
    assert_eq!(host.lookup(&mem, 0x0000_FFFF_FFFF_F000), None);
    assert_eq!(host.lookup(&mem, 0), None);
    let (va, len) = (0x7FFF_FFFF_F000, 0x2000);
    assert_eq!(host.map(&mut mem, va, 0, len, RW), Err(Error::OutOfRange { va, len, bits }));
    let (va, len) = (0x7FFF_FFFF_F000, 0xFFFF_0000_0000_2000);
    assert_eq!(host.map(&mut mem, va, 0, len, RW), Err(Error::OutOfRange { va, len, bits }));
    let flush = host.unmap(&mut mem, 0u64.wrapping_sub(0x1000), 0x1000).unwrap();
    assert_eq!(flush.range(), Some((0u64.wrapping_sub(M2), M2)));
    flush.done(&mut mem);
    assert_eq!(host.lookup(&mem, u64::MAX - 0x1000).map(|m| m.pa), Some(M2 - 0x1001));
    host.release(&mut mem);

    for format in [Dma::Vtd(VtdSecondLevel::ThreeLevels), Dma::Amd(AmdV1::ThreeLevels)] {
        let mut dma = Table::new(&mut mem, format, PageSize::Size1G).unwrap();
        dma.map(&mut mem, 511 * G1, 0, G1, RW).unwrap();
        let (va, len, bits) = (512 * G1, 0x1000, 39);
        assert_eq!(dma.map(&mut mem, va, 0, len, RW), Err(Error::OutOfRange { va, len, bits }));
        assert_eq!(dma.lookup(&mem, va), None);
        let whole = dma.unmap(&mut mem, 0, 512 * G1).unwrap();
        assert_eq!(whole.range(), Some((511 * G1, G1)));
        whole.done(&mut mem);
        dma.release(&mut mem);
        assert!(mem.frames.is_empty());
    }
}

#[test]
fn refusals() {
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, Host, PageSize::Size1G).unwrap();
    let before = mem.frames.clone();
    let misaligned = |address, len| Err(Error::Misaligned { address, len });
    assert_eq!(table.map(&mut mem, 0x800, 0, 0x1000, RW), misaligned(0x800, 0x1000));
    assert_eq!(table.map(&mut mem, 0, 0x10, 0x1000, RW), misaligned(0x10, 0x1000));
    assert_eq!(table.map(&mut mem, 0, 0, 0x1001, RW), misaligned(0, 0x1001));
    assert_eq!(table.map(&mut mem, 0, 0, 0, RW), misaligned(0, 0));
    assert_eq!(table.map(&mut mem, 0x800, 0, 0x800, RW), misaligned(0x800, 0x800));
    let (pa, len, bits) = (0x000F_FFFF_FFFF_F000, 0x2000, 52);
    assert_eq!(table.map(&mut mem, 0, pa, len, RW), Err(Error::OutOfMemory { pa, len, bits }));
    let access = Access::EXECUTE | Access::WRITE;
    assert_eq!(table.map(&mut mem, 0, 0, 0x1000, access), Err(Error::Access { access }));
    assert!(mem.frames == before);
    // The last page of all memory is one like any other.
    assert_eq!(table.map(&mut mem, 0, pa, 0x1000, RW), Ok(()));
    assert_eq!(table.lookup(&mem, 0xFFF).map(|m| m.pa), Some((1 << 52) - 1));
    let vtd = VtdSecondLevel::FourLevels;
    assert!(vtd.accepts(Access::WRITE) && !vtd.accepts(Access::EXECUTE));
    let amd = AmdV1::FourLevels;
    assert!(amd.accepts(Access::WRITE) && !amd.accepts(Access::EXECUTE));
    let text = Error::OutOfRange { va: 0x8000_0000_0000, len: 0x1000, bits: 39 }.to_string();
    assert_eq!(
        text,
        "the range at 0x800000000000 of length 0x1000 is not within the 39-bit addresses this \
         table translates"
    );
}

/// One small page anywhere in it is in the way.
#[test]
fn a_large_page_needs_all_of_its_place() {
    for size in [M2, G1] {
        for offset in [0, 0x5000, size - 0x1000] {
            let mut mem = TestMemory::new();
            let mut table = Table::new(&mut mem, Nested, PageSize::Size1G).unwrap();
            table.map(&mut mem, size + offset, 0, 0x1000, RW).unwrap();
            let before = mem.frames.clone();
            let refused = Err(Error::Overlap { va: size, size });
            assert_eq!(table.map(&mut mem, size, size, size, RW), refused, "{offset:#x}");
            assert!(mem.frames == before);
        }
    }
}

#[test]
fn a_bad_allocator_is_refused() {
    struct Bad(u64);
    impl Memory for Bad {
        fn read(&self, _: u64) -> u64 {
            0
        }
        fn write(&mut self, pa: u64, _: u64) {
            panic!("{pa:#x} is no frame");
        }
        fn allocate(&mut self) -> Option<u64> {
            Some(self.0)
        }
        fn free(&mut self, frame: u64) {
            assert_eq!(frame, self.0);
        }
    }
    for frame in [0x1008, 1 << 52] {
        let error = Table::new(&mut Bad(frame), Nested, PageSize::Size4K).unwrap_err();
        assert_eq!(error, Error::BadFrame { frame });
    }
}

#[test]
fn frames_wait_for_the_flush() {
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, Nested, PageSize::Size4K).unwrap();
    table.map(&mut mem, 0, 0, 0x3000, RW).unwrap();
    let (_, linked) = dump(&table, &mem);
    let flush = table.unmap(&mut mem, 0, M2).unwrap();
    assert_eq!(flush.range(), Some((0, 0x3000)));
    assert_eq!(table.frames(), 1);
    // Still lent, and hardware that walks them finds nothing.
    for frame in &linked {
        for &word in &mem.frames[frame] {
            assert_eq!(Nested.decode(1, word), Entry::Empty);
        }
    }
    flush.done(&mut mem);
    assert_eq!(mem.frames.len(), 1);
}

/// Applies the writes of `change` one by one: at each moment every probed address is mapped as
/// before the change or as after it, and never goes back. Returns the writes to linked tables.
fn observe(
    table: &mut Table<Nested>,
    mem: &mut TestMemory,
    probes: &[u64],
    change: impl FnOnce(&mut Table<Nested>, &mut TestMemory),
) -> usize {
    let look = |table: &Table<Nested>, mem: &TestMemory| -> Vec<_> {
        probes.iter().map(|&va| table.lookup(mem, va).map(|m| (m.pa, m.access))).collect()
    };
    let (_, linked) = dump(table, mem);
    mem.log.clear();
    let mut replay = mem.clone();
    let before = look(table, mem);
    change(table, mem);
    let after = look(table, mem);
    let mut changed = vec![false; probes.len()];
    for (pa, value) in std::mem::take(&mut mem.log) {
        replay.frames.entry(pa & !0xFFF).or_insert_with(|| vec![0; 512].into());
        replay.write(pa, value);
        if !linked.contains(&(pa & !0xFFF)) {
            continue;
        }
        for (i, seen) in look(table, &replay).into_iter().enumerate() {
            changed[i] |= seen != before[i];
            assert_eq!(seen, if changed[i] { after[i] } else { before[i] }, "{:#x}", probes[i]);
        }
    }
    replay.log.iter().filter(|(pa, _)| linked.contains(&(pa & !0xFFF))).count()
}

#[test]
fn hardware_sees_old_or_new() {
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, Nested, PageSize::Size1G).unwrap();
    let page = 5 * M2 + 0x7000;
    let edges = [0, page - 1, page, page + 0x1000, 5 * M2, 6 * M2 - 1, 6 * M2, G1 - 1, G1];
    let writes = observe(&mut table, &mut mem, &edges, |table, mem| {
        table.map(mem, 0, G1, G1 + 0x1000, RW).unwrap();
    });
    assert_eq!(writes, 1, "one entry of the root");
    let writes = observe(&mut table, &mut mem, &edges, |table, mem| {
        let (old, flush) = table.replace(mem, page, 0x9000, Access::READ).unwrap();
        assert_eq!(old, Some(Mapping { pa: G1 + page, access: RW, size: G1 }));
        assert_eq!(flush.range(), Some((0, G1)));
        flush.done(mem);
    });
    assert_eq!(writes, 1, "the split is one write");
    for va in [0, page - 1, page + 0x1000, 5 * M2, 6 * M2 - 1, 6 * M2, G1 - 1, G1] {
        assert_eq!(table.lookup(&mem, va).map(|m| (m.pa, m.access)), Some((G1 + va, RW)));
    }
    let writes = observe(&mut table, &mut mem, &edges, |table, mem| {
        let (old, flush) = table.replace(mem, page, G1 + page, RW).unwrap();
        assert_eq!(old, Some(Mapping { pa: 0x9000, access: Access::READ, size: 0x1000 }));
        assert_eq!(flush.range(), Some((page, 0x1000)));
        flush.done(mem);
    });
    assert_eq!(writes, 1, "and so is the way back");
    let writes = observe(&mut table, &mut mem, &[0, 8 * M2, 9 * M2, G1 - 1], |table, mem| {
        table.unmap(mem, 8 * M2 - 0x1000, M2 + 0x2000).unwrap().done(mem);
    });
    assert_eq!(writes, 3, "a split, a large page, a split");
    // A thousand writes, each watched: too slow for Miri.
    if !cfg!(miri) {
        observe(&mut table, &mut mem, &edges, |table, mem| {
            table.unmap(mem, 0, 2 * G1).unwrap().done(mem);
        });
        assert_eq!(table.frames(), 1);
    }
}
