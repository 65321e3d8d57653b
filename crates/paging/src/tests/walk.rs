//! The walk: against tables [`Table`] built, against tables laid out by hand, and on garbage.

use std::cell::Cell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::memory::TestMemory;
use crate::walk::{Access, GuestMemory, Paging, WalkError, read_virtual, translate};
use crate::{Access as Rights, Host, PageSize, Table};

const PG: u64 = 1 << 31;
const WP: u64 = 1 << 16;
const PSE: u64 = 1 << 4;
const PAE: u64 = 1 << 5;
const LA57: u64 = 1 << 12;
const SMEP: u64 = 1 << 20;
const LMA: u64 = 1 << 10;
const NXE: u64 = 1 << 11;
const READ: Access = Access { user: false, write: false, fetch: false };
const USER: Access = Access { user: true, ..READ };
const WRITE: Access = Access { write: true, ..READ };
const FETCH: Access = Access { fetch: true, ..READ };

impl GuestMemory for TestMemory {
    fn read_u64(&self, gpa: u64) -> Option<u64> {
        assert_eq!(gpa & 7, 0);
        let frame = self.frames.get(&(gpa & !0xFFF))?;
        Some(frame[(gpa >> 3 & 0x1FF) as usize])
    }

    fn read_u32(&self, gpa: u64) -> Option<u32> {
        Some((self.read_u64(gpa & !7)? >> (8 * (gpa & 4))) as u32)
    }
}

/// Single words.
struct Words(HashMap<u64, u64>);

impl GuestMemory for Words {
    fn read_u64(&self, gpa: u64) -> Option<u64> {
        self.0.get(&gpa).copied()
    }

    fn read_u32(&self, gpa: u64) -> Option<u32> {
        self.0.get(&gpa).map(|&word| word as u32)
    }
}

fn long(cr3: u64) -> Paging {
    Paging { cr0: PG | WP, cr3, cr4: PAE, efer: LMA | NXE, pointers: None }
}

#[test]
fn no_paging() {
    let mem = Words(HashMap::new());
    assert_eq!(translate(&mem, &Paging::default(), 0x1_2345_6789, WRITE), Ok(0x2345_6789));
}

#[test]
fn legacy() {
    let regs = Paging { cr0: PG, cr3: 0x1000, cr4: 0, ..Paging::default() };
    let large = 0xE0 << 13 | 0x0080_0000 | 0x87; // 4 MiB at 0xE0_0080_0000 (PSE-36)
    let mem = Words(HashMap::from([
        (0x1000, 0x2003),
        (0x1004, large),
        (0x1008, large | 1 << 21),
        (0x1FFC, 0),
        (0x2FFC, 0x9005),
        (0x0080_0000 | 0xE0 << 13, 0xA007),
    ]));
    let pse = Paging { cr4: PSE, ..regs };
    assert_eq!(translate(&mem, &regs, 0x003F_F123, READ), Ok(0x9123));
    assert_eq!(translate(&mem, &regs, 0xFFFF_0000_003F_F123, READ), Ok(0x9123));
    assert_eq!(translate(&mem, &regs, 0x003F_F123, WRITE), Ok(0x9123), "WP is 0");
    let va = 0x003F_F123;
    let wp = Paging { cr0: PG | WP, ..regs };
    assert_eq!(translate(&mem, &wp, va, WRITE), Err(WalkError::Protection { va }));
    assert_eq!(translate(&mem, &regs, va, USER), Err(WalkError::Protection { va }));
    assert_eq!(translate(&mem, &pse, 0x0040_1234, USER), Ok(0xE0_0080_1234));
    assert_eq!(translate(&mem, &pse, va, READ), Ok(0x9123), "without PS it is a table");
    let smep = Paging { cr4: PSE | SMEP, ..regs };
    assert_eq!(
        translate(&mem, &smep, 0x0040_1234, FETCH),
        Err(WalkError::Protection { va: 0x0040_1234 })
    );
    assert_eq!(translate(&mem, &regs, 0x0040_0234, READ), Ok(0xA234), "PS is ignored without PSE");
    assert_eq!(
        translate(&mem, &pse, 0x0080_0000, READ),
        Err(WalkError::Reserved { va: 0x0080_0000, level: 2, entry: large | 1 << 21 })
    );
    assert_eq!(
        translate(&mem, &regs, 0xFFC0_0000, READ),
        Err(WalkError::NotPresent { va: 0xFFC0_0000, level: 2 })
    );
    assert_eq!(
        translate(&mem, &regs, 0x0040_1000, READ),
        Err(WalkError::NoMemory { va: 0x0040_1000, gpa: 0x0080_0004 | 0xE0 << 13 })
    );
}

#[test]
fn pae() {
    let regs = Paging { cr0: PG, cr3: 0x1020, cr4: PAE, efer: NXE, pointers: None };
    let mem = Words(HashMap::from([
        (0x1020, 0x2001),
        (0x1028, 0x2003),
        (0x1030, 0),
        (0x1038, 0x2001),
        (0x2000, 0x12_0020_00E7),
        (0x2008, 0x8000_0000_0000_3007),
        (0x2010, 1 << 52 | 0x87),
        (0x3008, 0x4_5678_9007),
    ]));
    assert_eq!(translate(&mem, &regs, 0x1F_FFFF, USER), Ok(0x12_003F_FFFF));
    assert_eq!(translate(&mem, &regs, 0xC020_1ABC, WRITE), Ok(0x4_5678_9ABC));
    let va = 0x0020_1ABC;
    assert_eq!(translate(&mem, &regs, va, FETCH), Err(WalkError::Protection { va }));
    let entry = 0x8000_0000_0000_3007;
    let no_nx = Paging { efer: 0, ..regs };
    assert_eq!(translate(&mem, &no_nx, va, READ), Err(WalkError::Reserved { va, level: 2, entry }));
    let (va, entry) = (0x0040_0000, 1 << 52 | 0x87);
    assert_eq!(translate(&mem, &regs, va, READ), Err(WalkError::Reserved { va, level: 2, entry }));
    let (va, entry) = (0x4000_0000, 0x2003);
    assert_eq!(translate(&mem, &regs, va, READ), Err(WalkError::Reserved { va, level: 3, entry }));
    // Those that the CPU has kept count, whatever stands in memory since.
    let kept = Paging { pointers: Some([0x2001, 0x2001, 0x2003, 0]), ..regs };
    assert_eq!(translate(&mem, &kept, 0x4000_0ABC, READ), Ok(0x12_0020_0ABC));
    let va = 0x8000_0000;
    assert_eq!(translate(&mem, &kept, va, READ), Err(WalkError::Reserved { va, level: 3, entry }));
    let va = 0xC020_1ABC;
    assert_eq!(translate(&mem, &kept, va, READ), Err(WalkError::NotPresent { va, level: 3 }));
    let va = 0x8000_0000;
    assert_eq!(translate(&mem, &regs, va, READ), Err(WalkError::NotPresent { va, level: 3 }));
}

/// The bit that is PAT in a large page is the address's lowest bit in a small one, and what lies
/// between it and the page's address is reserved.
#[test]
fn a_large_page_has_its_pat_bit_where_others_are_reserved() {
    const LARGE: u64 = 0x4000_0083;
    let walk = |level: u32, bit: u32| {
        let entry = LARGE | 1 << bit;
        let mem = match level {
            3 => Words(HashMap::from([(0x1000, 0x2007), (0x2000, entry)])),
            _ => Words(HashMap::from([(0x1000, 0x2007), (0x2000, 0x3007), (0x3000, entry)])),
        };
        let reserved = Err(WalkError::Reserved { va: 0x123, level, entry });
        (translate(&mem, &long(0x1000), 0x123, READ), reserved)
    };
    for (level, size) in [(2, 21), (3, 30)] {
        assert_eq!(walk(level, 12).0, Ok(0x4000_0123), "level {level}");
        for bit in 13..size {
            let (found, reserved) = walk(level, bit);
            assert_eq!(found, reserved, "level {level}, bit {bit}");
        }
    }
}

#[test]
fn five_levels_and_canonical_addresses() {
    let mem = Words(HashMap::from([
        (0x1000 + 8 * 0x101, 0x2007),
        (0x2000, 0x3007),
        (0x3000, 0x4000_0087),
        (0x3008, 0x4000_2087),
        (0x2008, 0x87),
    ]));
    let four = long(0x1000);
    let five = Paging { cr4: PAE | LA57, ..four };
    let va = 0xFF01_0000_0000_0000;
    assert_eq!(translate(&mem, &five, va + 0x1234, USER), Ok(0x4000_1234));
    assert_eq!(translate(&mem, &four, va, USER), Err(WalkError::NotCanonical { va, bits: 48 }));
    let low = 0x0101_0000_0000_0000;
    assert_eq!(
        translate(&mem, &five, low, USER),
        Err(WalkError::NotCanonical { va: low, bits: 57 })
    );
    let (second, entry) = (va + (1 << 30), 0x4000_2087);
    assert_eq!(
        translate(&mem, &five, second, READ),
        Err(WalkError::Reserved { va: second, level: 3, entry })
    );
    let (second, entry) = (va + (1 << 39), 0x87);
    assert_eq!(
        translate(&mem, &five, second, READ),
        Err(WalkError::Reserved { va: second, level: 4, entry })
    );
}

#[test]
fn reads_across_pages() {
    use crate::Memory;
    let mut mem = TestMemory::new();
    let mut table = Table::new(&mut mem, Host, PageSize::Size4K).unwrap();
    let (a, b) = (mem.allocate().unwrap(), mem.allocate().unwrap());
    // Swapped, so that the crossing must be translated.
    let access = Rights::READ | Rights::EXECUTE;
    table.map(&mut mem, 0x1000, b, 0x1000, access).unwrap();
    table.map(&mut mem, 0x2000, a, 0x1000, access).unwrap();
    table.map(&mut mem, 0x3000, 0xDEAD_0000, 0x1000, access).unwrap();
    mem.write(b + 0xFF8, 0x8877_6655_4433_2211);
    mem.write(a, 0x00FF_EEDD_CCBB_AA99);
    let regs = long(table.root());
    let mut buf = [0; 15];
    assert_eq!(read_virtual(&mem, &regs, 0x1FFB, FETCH, &mut buf), Ok(15));
    let expected = [0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF];
    assert_eq!(buf, *[&expected[..], &[0; 3]].concat());
    assert_eq!(read_virtual(&mem, &regs, 0x2FF8, FETCH, &mut buf), Ok(8), "then no memory");
    assert_eq!(
        read_virtual(&mem, &regs, 0x3004, FETCH, &mut buf),
        Err(WalkError::NoMemory { va: 0x3004, gpa: 0xDEAD_0004 })
    );
    assert_eq!(
        read_virtual(&mem, &regs, 0x4000, FETCH, &mut buf),
        Err(WalkError::NotPresent { va: 0x4000, level: 1 })
    );
    table.unmap(&mut mem, 0x2000, 0x1000).unwrap().done(&mut mem);
    assert_eq!(read_virtual(&mem, &regs, 0x1FFB, FETCH, &mut buf), Ok(5), "then no translation");
    assert_eq!(read_virtual(&mem, &regs, 0x4000, FETCH, &mut []), Ok(0));
}

/// A memory without end that repeats a few words, with a hole wherever the address hits one.
struct Garbage {
    words: Vec<u64>,
    hole: u64,
    reads: Cell<u32>,
}

impl GuestMemory for Garbage {
    fn read_u64(&self, gpa: u64) -> Option<u64> {
        assert_eq!(gpa & 7, 0);
        self.reads.set(self.reads.get() + 1);
        let index = (gpa >> 3 ^ gpa >> 12) % self.words.len() as u64;
        (index != self.hole).then(|| self.words[index as usize])
    }

    fn read_u32(&self, gpa: u64) -> Option<u32> {
        assert_eq!(gpa & 3, 0);
        Some((self.read_u64(gpa & !7)? >> (8 * (gpa & 4))) as u32)
    }
}

fn access() -> impl Strategy<Value = Access> {
    any::<(bool, bool, bool)>().prop_map(|(user, write, fetch)| Access { user, write, fetch })
}

proptest! {
    #![proptest_config(super::config(256))]

    #[test]
    fn agrees_with_the_table(
        maps in prop::collection::vec((0u64..600, 0u64..4096, 1u64..700, any::<u8>()), 1..6),
        probes in prop::collection::vec((0u64..1300, 0u64..4096, access()), 32),
        wp: bool,
        smep: bool,
        far: bool,
    ) {
        let base = if far { 0xFFFF_FFFF_C000_0000 } else { 0x3FE0_0000 };
        let mut mem = TestMemory::new();
        let mut table = Table::new(&mut mem, Host, PageSize::Size2M).unwrap();
        for (page, pa, len, rights) in maps {
            let rights = Rights::from_bits_truncate(rights) | Rights::READ;
            let (page, pa) = if len > 520 { (0, pa & !0x1FF) } else { (page, pa) };
            // One that overlaps is refused, which is as good here.
            let _ = table.map(&mut mem, base + (page << 12), pa << 12, len << 12, rights);
        }
        let regs = Paging {
            cr0: if wp { PG | WP } else { PG },
            cr4: if smep { PAE | SMEP } else { PAE },
            // PCID, and the bit that says not to flush.
            ..long(table.root() | 0x123)
        };
        for (page, offset, access) in probes {
            let va = base + (page << 12) + offset;
            let result = translate(&mem, &regs, va, access);
            let Some(mapping) = table.lookup(&mem, va) else {
                let absent = matches!(result, Err(WalkError::NotPresent { .. }));
                prop_assert!(absent, "{result:?}");
                continue;
            };
            let has = |right| mapping.access.contains(right);
            let refused = access.user && !has(Rights::USER)
                || access.write && !has(Rights::WRITE) && (wp || access.user)
                || access.fetch && !has(Rights::EXECUTE)
                || access.fetch && smep && !access.user && has(Rights::USER);
            let expected = if refused { Err(WalkError::Protection { va }) } else { Ok(mapping.pa) };
            prop_assert_eq!(result, expected);
        }
    }

    #[test]
    fn garbage_has_a_result(
        words in prop::collection::vec(any::<(u64, u64, u64)>(), 1..64),
        hole in 0u64..128,
        (cr0, cr3, cr4, efer) in any::<(u64, u64, u64, u64)>(),
        vas in any::<[(u64, u8); 8]>(),
        access in access(),
    ) {
        // Mostly present and with few high bits, so that walks get deep.
        let words = words.iter().map(|(word, mask, low)| word & (mask >> 12) | low & 7 | 1).collect();
        let mem = Garbage { words, hole, reads: Cell::new(0) };
        let regs = Paging { cr0, cr3, cr4, efer, pointers: None };
        for (va, shift) in vas {
            for va in [va, (va as i64 >> (shift % 64)) as u64] {
                mem.reads.set(0);
                let result = translate(&mem, &regs, va, access);
                prop_assert!(mem.reads.get() <= 5);
                if let Ok(gpa) = result {
                    prop_assert!(gpa >> 52 == 0 && gpa & 0xFFF == va & 0xFFF);
                }
                let mut buf = [0; 24];
                mem.reads.set(0);
                if let Ok(read) = read_virtual(&mem, &regs, va, access, &mut buf) {
                    prop_assert!(result.is_ok() && read >= 1 && read <= buf.len());
                }
                prop_assert!(mem.reads.get() <= 2 * 5 + 24);
            }
        }
    }
}
