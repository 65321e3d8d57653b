//! The look from outside: what calls made is never found wrong, and each thing that must not be is.

use super::memory::TestMemory;
use crate::audit::{Cursor, Finding, Region};
use crate::table::entry_address;
use crate::{
    Access, AmdV1, Entry, Format, Host, Mapping, Memory, Nested, PageSize, Table, VtdSecondLevel,
};
use proptest::prelude::*;
use std::cell::Cell;

const M2: u64 = 1 << 21;
const G1: u64 = 1 << 30;
const RW: Access = Access::READ.union(Access::WRITE);
const RAM: Region = Region { va: Some(0), pa: 8 * G1, len: G1 + 3 * M2, access: RW };
const BAR: Region =
    Region { va: None, pa: 0xE000_0000, len: 0x4000, access: RW.union(Access::UNCACHED) };

/// A guest's table: memory, a BAR, and a page of its own.
fn guest<F: Format>(format: F) -> (TestMemory, Table<F>) {
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, format, PageSize::Size1G).unwrap();
    table.map(&mut mem, 0, RAM.pa, RAM.len, RAM.access).unwrap();
    table.map(&mut mem, 0xC000_0000, BAR.pa, BAR.len, BAR.access).unwrap();
    (mem, table)
}

/// A whole pass, so many entries at a time: the findings, and how often it was called.
fn pass<F: Format + Copy>(
    mem: &TestMemory,
    table: &Table<F>,
    step: u32,
    regions: &[Region],
) -> (Vec<Finding>, usize) {
    let (mut cursor, mut found) = (Cursor::default(), Vec::new());
    for calls in 1.. {
        let is_table = |f| mem.frames.contains_key(&f);
        let read = |pa| mem.read(pa);
        match table.outline().audit(read, &mut cursor, step, regions, is_table, || Some(())) {
            Ok(true) => return (found, calls),
            Ok(false) => {}
            Err(finding) => found.push(finding),
        }
        if cursor == Cursor::default() {
            return (found, calls);
        }
    }
    unreachable!()
}

/// The address of the entry for `va` at `level`, or above it if the tables end there.
fn slot<F: Format>(mem: &TestMemory, table: &Table<F>, va: u64, level: u32) -> u64 {
    let (mut frame, mut at) = (table.root(), table.format().levels());
    loop {
        let address = entry_address(frame, at, va);
        match table.format().decode(at, mem.read(address)) {
            Entry::Table(next) if at > level => (frame, at) = (next, at - 1),
            _ => return address,
        }
    }
}

#[test]
fn what_was_asked_for_is_as_it_should_be() {
    let (mem, table) = guest(Nested);
    let (found, calls) = pass(&mem, &table, 7, &[RAM, BAR]);
    assert_eq!(found, []);
    // Of each table on the way to something, every entry once.
    let entries = 511 + 510 + 512 + 511 + 512;
    assert_eq!(calls, usize::div_ceil(entries, 7));
    let device = Region { access: RW, ..BAR };
    let (mem, table) = guest(VtdSecondLevel::ThreeLevels);
    assert_eq!(pass(&mem, &table, 100, &[RAM, device]).0, []);
    let (mem, table) = guest(AmdV1::ThreeLevels);
    assert_eq!(pass(&mem, &table, 100, &[RAM, device]).0, []);
}

#[test]
fn each_leaf_that_must_not_be_is_named() {
    let (mut mem, table) = guest(Nested);
    let leaf = |pa, access| Nested.leaf(1, pa, access);
    let at = slot(&mem, &table, 0xC000_2000, 1);
    for (entry, pa, access) in [
        // Another's memory, what lies just beyond the BAR, more access, and cached.
        (leaf(7 * G1, BAR.access), 7 * G1, BAR.access),
        (leaf(BAR.pa + BAR.len, BAR.access), BAR.pa + BAR.len, BAR.access),
        (leaf(BAR.pa, Access::all()), BAR.pa, Access::all() - Access::USER),
        (leaf(BAR.pa, RW), BAR.pa, RW),
        // Its own memory, elsewhere than it should be.
        (leaf(RAM.pa, RW), RAM.pa, RW),
    ] {
        mem.write(at, entry);
        let finding = Finding::Leaf { va: 0xC000_2000, pa, size: 0x1000, access };
        assert_eq!(pass(&mem, &table, 64, &[RAM, BAR]).0, [finding]);
        assert!(finding.to_string().contains("0xc0002000 leads to"));
    }
}

#[test]
fn a_large_page_must_be_allowed_whole() {
    let (mut mem, table) = guest(Nested);
    let at = slot(&mem, &table, G1 + 3 * M2, 2);
    mem.write(at, Nested.leaf(2, RAM.pa + G1 + 3 * M2, RW));
    assert!(matches!(pass(&mem, &table, 64, &[RAM, BAR]).0[..], [Finding::Leaf { size: M2, .. }]));
    let more = Region { len: RAM.len + M2 - 0x1000, ..RAM };
    assert_eq!(pass(&mem, &table, 64, &[more, BAR]).0.len(), 1);
    let enough = Region { len: RAM.len + M2, ..RAM };
    assert_eq!(pass(&mem, &table, 64, &[enough, BAR]).0, []);
}

#[test]
fn a_table_in_reach_is_found_and_one_that_is_none_is_not_read() {
    let (mut mem, table) = guest(Nested);
    // The frames of the test begin at zero: memory that reaches down to them.
    let all = Region { va: None, pa: 0, len: 0x1000, access: Access::READ };
    let root = table.root();
    assert_eq!(root, 0);
    let found = pass(&mem, &table, 64, &[RAM, BAR, all]).0;
    assert_eq!(found, [Finding::Reachable { va: 0, level: 4, frame: root }]);
    let at = slot(&mem, &table, 0xC000_0000, 2);
    mem.write(at, Nested.table(2, 8 * G1 + 0x5000));
    let found = pass(&mem, &table, 64, &[RAM, BAR]).0;
    assert_eq!(found, [Finding::Stray { va: 0xC000_0000, level: 1, frame: 8 * G1 + 0x5000 }]);
}

#[test]
fn what_only_looked_wrong_while_it_changed_is_no_finding() {
    let (mem, table) = guest(Nested);
    let at = slot(&mem, &table, 0xC000_2000, 1);
    let wrong = Nested.leaf(1, 7 * G1, BAR.access);
    // What is read first isn't what is there any more.
    let first = Cell::new(Some(wrong));
    let read = |pa| (pa == at).then(|| first.take()).flatten().unwrap_or_else(|| mem.read(pa));
    let is_table = |f| mem.frames.contains_key(&f);
    let look = |cursor: &mut Cursor, hold: &dyn Fn() -> Option<()>| {
        table.outline().audit(read, cursor, 1 << 20, &[RAM, BAR], is_table, hold)
    };
    let mut cursor = Cursor::default();
    assert_eq!(look(&mut cursor, &|| None), Ok(false), "somebody holds it");
    let there = cursor;
    assert_ne!(there, Cursor::default());
    first.set(Some(wrong));
    assert_eq!(look(&mut cursor, &|| None), Ok(false));
    assert_eq!(cursor, there, "it isn't passed over");
    first.set(Some(wrong));
    assert_eq!(look(&mut cursor, &|| Some(())), Ok(true));
    assert_eq!(first.get(), None, "it was looked at");
}

/// Whether a frame may hold a table is asked once for its neighbours' sake, not for each entry.
#[test]
fn a_frame_is_judged_once_for_all_its_entries() {
    let (mem, table) = guest(Nested);
    let asked = Cell::new(0);
    let is_table = |frame| {
        asked.set(asked.get() + 1);
        mem.frames.contains_key(&frame)
    };
    let mut cursor = Cursor::default();
    let hold = || Some(());
    let ended =
        table.outline().audit(|pa| mem.read(pa), &mut cursor, 1 << 20, &[RAM, BAR], is_table, hold);
    assert_eq!(ended, Ok(true));
    assert_eq!(asked.get(), table.frames());
}

#[test]
fn regions_that_share_memory_overlap() {
    let at = |pa, len| Region { va: None, pa, len, access: RW };
    for (a, b, shared) in [
        (at(0, 0x1000), at(0x1000, 0x1000), false),
        (at(0, 0x1001), at(0x1000, 0x1000), true),
        (at(0, 0x9000), at(0x1000, 0x1000), true),
        (at(0x1000, 0), at(0, 0x9000), false),
        (at(u64::MAX - 1, 2), at(u64::MAX, 1), true),
    ] {
        assert_eq!((a.overlaps(&b), b.overlaps(&a)), (shared, shared), "{a:?} {b:?}");
    }
}

#[test]
fn both_halves_of_signed_addresses_are_seen() {
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, Host, PageSize::Size4K).unwrap();
    table.map(&mut mem, !0xFFF, G1, 0x1000, RW).unwrap();
    let finding = Finding::Leaf { va: !0xFFF, pa: G1, size: 0x1000, access: RW };
    assert_eq!(pass(&mem, &table, 1000, &[]).0, [finding]);
    assert_eq!(
        pass(&mem, &table, 1000, &[Region { va: Some(!0xFFF), pa: G1, len: 0x1000, access: RW }]).0,
        []
    );
}

proptest! {
    #![proptest_config(super::config(64))]

    /// Whatever is changed in whatever entry: a pass reads no stray frame, ends, and finds it
    /// unless what the entry says is allowed.
    #[test]
    fn any_change_of_an_entry_is_judged(
        va in prop::sample::select(vec![0, 0x1234_5000, G1, G1 + M2, 0xC000_0000, 0xC000_3000, 1 << 40]),
        level in 1u32..5,
        word in prop_oneof![any::<u64>(), (0u64..6, 0u64..0x1000).prop_map(|(n, low)| n << 12 | low)],
        step in 1u32..600,
    ) {
        let (mut mem, table) = guest(Nested);
        let at = slot(&mem, &table, va, level);
        mem.write(at, word);
        let (found, _) = pass(&mem, &table, step, &[RAM, BAR]);
        if let Some(mapping) = lookup(&mem, &table, va) {
            let allowed = [RAM, BAR].iter().any(|r| {
                let offset = mapping.pa.wrapping_sub(r.pa);
                offset < r.len && r.va.is_none_or(|at| at + offset == va) && r.access.contains(mapping.access)
            });
            prop_assert!(allowed || !found.is_empty());
        }
    }
}

fn size(level: u32) -> u64 {
    0x1000 << (9 * (level - 1))
}

/// What the address leads to, through frames of the table alone.
fn lookup(mem: &TestMemory, table: &Table<Nested>, va: u64) -> Option<Mapping> {
    let mut frame = table.root();
    for level in (1..=4).rev() {
        let words = mem.frames.get(&frame)?;
        match Nested.decode(level, words[(va >> (12 + 9 * (level - 1)) & 0x1FF) as usize]) {
            Entry::Table(next) => frame = next,
            Entry::Leaf { pa, access } => {
                let size = size(level);
                return Some(Mapping { pa: pa | va & (size - 1), access, size });
            }
            Entry::Empty => return None,
        }
    }
    None
}
