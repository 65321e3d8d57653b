//! The walk of a guest's page tables: any tables, any registers, any access.
//!
//! A translation costs at most five reads and agrees with a second reading of the manual, written
//! another way; reading bytes agrees with translating their addresses.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use paging::walk::{Access, GuestMemory, Paging, WalkError, read_virtual, translate};
use std::{cell::Cell, collections::BTreeMap};

/// Frames that the guest has.
const FRAMES: u64 = 12;

#[derive(Arbitrary, Debug)]
struct Input {
    /// The bits of the registers that matter, and all others.
    controls: u8,
    others: u64,
    cr3: u16,
    /// Frame, index, content.
    entries: Vec<(u8, Index, Content)>,
    /// What the walk of the first address finds, from the first table on.
    path: Vec<Content>,
    addresses: Vec<u64>,
    length: u8,
}

#[derive(Arbitrary, Debug)]
enum Index {
    Any(u16),
    /// The one that the first address has at a level.
    Of(u8),
}

#[derive(Arbitrary, Debug)]
enum Content {
    Any(u64),
    /// A frame that is there, with these bits below its address.
    Frame(u8, u16),
    /// And these above.
    High(u8, u16, u16),
}

impl Content {
    fn word(&self) -> u64 {
        let word = |frame, low, high| {
            (u64::from(frame) % FRAMES) << 12 | u64::from(low & 0xFFF_u16) | u64::from(high) << 48
        };
        match *self {
            Content::Any(content) => content,
            Content::Frame(frame, low) => word(frame, low, 0_u16),
            Content::High(frame, low, high) => word(frame, low, high),
        }
    }
}

struct Memory {
    words: BTreeMap<u64, u64>,
    reads: Cell<u32>,
}

impl GuestMemory for Memory {
    fn read_u64(&self, gpa: u64) -> Option<u64> {
        assert!(gpa.is_multiple_of(8));
        self.reads.set(self.reads.get() + 1);
        (gpa >> 12 < FRAMES).then(|| self.words.get(&gpa).copied().unwrap_or(gpa << 32))
    }

    fn read_u32(&self, gpa: u64) -> Option<u32> {
        assert!(gpa.is_multiple_of(4));
        self.read_u64(gpa & !7).map(|word| (word >> (8 * (gpa & 4))) as u32)
    }
}

impl Input {
    fn memory(&self) -> Memory {
        let first = self.addresses.first().copied().unwrap_or(0);
        let regs = self.regs();
        let entry = |(frame, index, content): &(u8, Index, Content)| {
            let index = match index {
                Index::Any(index) => u64::from(*index),
                Index::Of(level) => first >> (12 + 9 * (level % 5)),
            };
            ((u64::from(*frame) % FRAMES) << 12 | (index & 0x1FF) << 3, content.word())
        };
        let mut words: BTreeMap<u64, u64> = self.entries.iter().map(entry).collect();
        let (levels, root, va) = levels(&regs, first).unwrap_or_default();
        let mut table = regs.cr3 & root;
        for (level, content) in levels.iter().zip(&self.path) {
            let (at, content) = (table + level.offset(va), content.word());
            if level.bytes == 8 {
                words.insert(at, content);
            } else {
                let (word, shift) = (words.entry(at & !7).or_default(), 8 * (at & 4));
                *word = *word & !(0xFFFF_FFFF << shift) | (content & 0xFFFF_FFFF) << shift;
            }
            table = content & bits(12..=51);
        }
        Memory { words, reads: Cell::new(0) }
    }

    fn regs(&self) -> Paging {
        let cr3 = u64::from(self.cr3) % (FRAMES + 1) << 12 | u64::from(self.cr3 & 0xFE0);
        // A register with bits of `controls` where it has a meaning, and `others` elsewhere.
        let register = |meanings: &[(u32, u32)]| {
            meanings.iter().fold(self.others, |register, (control, bit)| {
                register & !(1 << bit) | u64::from(self.controls >> control & 1) << bit
            })
        };
        Paging {
            cr0: register(&[(0, 31), (1, 16)]),
            cr3,
            cr4: register(&[(2, 4), (3, 5), (4, 12), (5, 20)]),
            efer: register(&[(6, 10), (7, 11)]),
            pointers: None,
        }
    }
}

fn accesses() -> impl Iterator<Item = Access> {
    (0..8).map(|bits| Access { user: bits & 1 != 0, write: bits & 2 != 0, fetch: bits & 4 != 0 })
}

/// How one level of tables is indexed, and what it may hold (AMD64 APM volume 2, 5.2 and 5.3).
struct Level {
    shift: u32,
    bits: u32,
    bytes: u64,
    large: bool,
    /// Bits that must be zero in each entry, and in one that maps a large page.
    reserved: u64,
    reserved_large: u64,
    /// Entries that say nothing about rights, as a PAE page-directory pointer.
    silent: bool,
}

impl Level {
    /// Where in its table the entry for `va` is.
    fn offset(&self, va: u64) -> u64 {
        (va >> self.shift & ((1 << self.bits) - 1)) * self.bytes
    }
}

fn bits(range: std::ops::RangeInclusive<u32>) -> u64 {
    range.fold(0, |mask, bit| mask | 1 << bit)
}

/// The levels from the first on, the mask of CR3, and the part of `va` that is translated; none if
/// `va` isn't canonical.
fn levels(regs: &Paging, va: u64) -> Option<(Vec<Level>, u64, u64)> {
    let set = |register: u64, bit: u32| register >> bit & 1 == 1;
    let no_nx = if set(regs.efer, 11) { 0 } else { 1 << 63 };
    let level = |shift, large, reserved| {
        let reserved_large = if large { bits(13..=shift - 1) } else { 0 };
        Level { shift, bits: 9, bytes: 8, large, reserved, reserved_large, silent: false }
    };
    let low = va & 0xFFFF_FFFF;
    Some(if set(regs.efer, 10) {
        let top = if set(regs.cr4, 12) { 48 } else { 39 };
        let sign = va >> (top + 8);
        if sign != 0 && sign != u64::MAX >> (top + 8) {
            return None;
        }
        let levels = [48, 39, 30, 21, 12].into_iter().filter(|shift| *shift <= top);
        let high = |shift| if shift > 30 { 1 << 7 } else { 0 };
        let levels = levels.map(|s| level(s, s == 30 || s == 21, no_nx | high(s)));
        (levels.collect(), bits(12..=51), va)
    } else if set(regs.cr4, 5) {
        let pointers = bits(52..=63) | bits(5..=8) | bits(1..=2);
        let top = Level { bits: 2, silent: true, ..level(30, false, pointers) };
        let rest = [21, 12].map(|shift| level(shift, shift == 21, no_nx | bits(52..=62)));
        ([top].into_iter().chain(rest).collect(), bits(5..=31), low)
    } else {
        let level = |shift, large| Level {
            bits: 10,
            bytes: 4,
            reserved_large: 1 << 21,
            ..level(shift, large, 0)
        };
        (vec![level(22, set(regs.cr4, 4)), level(12, false)], bits(12..=31), low)
    })
}

/// Where `va` leads, and whether all entries on the way allow writes, users and execution.
fn reference(memory: &Memory, regs: &Paging, va: u64) -> Option<(u64, [bool; 3])> {
    if regs.cr0 >> 31 & 1 == 0 {
        return Some((va & 0xFFFF_FFFF, [true; 3]));
    }
    let (levels, root, va) = levels(regs, va)?;
    let mut table = regs.cr3 & root;
    let mut rights = [true; 3];
    for level in levels {
        let at = table + level.offset(va);
        let entry = match level.bytes {
            8 => memory.read_u64(at)?,
            _ => memory.read_u32(at)?.into(),
        };
        let large = level.large && entry & 1 << 7 != 0;
        let reserved = level.reserved | if large { level.reserved_large } else { 0 };
        if entry & 1 == 0 || entry & reserved != 0 {
            return None;
        }
        if !level.silent {
            let [write, user, execute] = rights;
            rights = [write && entry & 2 != 0, user && entry & 4 != 0, execute && entry >> 63 == 0];
        }
        table = entry & bits(12..=51);
        if large || level.shift == 12 {
            let within = (1 << level.shift) - 1;
            let high = if level.bytes == 4 && large { (entry >> 13 & 0xFF) << 32 } else { 0 };
            let base = if high != 0 || level.bytes == 4 { table & 0xFFFF_FFFF } else { table };
            return Some((high | base & !within | va & within, rights));
        }
    }
    None
}

fn allowed(regs: &Paging, access: Access, [write, user, execute]: [bool; 3]) -> bool {
    let write_protect = regs.cr0 >> 16 & 1 == 1;
    let smep = regs.cr4 >> 20 & 1 == 1;
    if access.user && !user {
        return false;
    }
    if access.write && !write && (access.user || write_protect) {
        return false;
    }
    !access.fetch || (execute && (access.user || !user || !smep))
}

fn check(memory: &Memory, regs: &Paging, va: u64) {
    let expected = reference(memory, regs, va);
    for access in accesses() {
        memory.reads.set(0);
        let result = translate(memory, regs, va, access);
        assert!(memory.reads.get() <= 5);
        match (result, expected) {
            (Ok(found), Some((gpa, rights))) => {
                assert_eq!(found, gpa);
                assert!(regs.cr0 >> 31 & 1 == 0 || allowed(regs, access, rights));
            }
            (Err(WalkError::Protection { .. }), Some((_, rights))) => {
                assert!(!allowed(regs, access, rights));
            }
            (Err(other), None) => one_line(&other),
            (result, expected) => panic!("{result:x?}, expected {expected:x?}"),
        }
    }
}

fn check_bytes(memory: &Memory, regs: &Paging, va: u64, length: u8) {
    let access = Access::default();
    let mut bytes = vec![0; usize::from(length)];
    let Ok(count) = read_virtual(memory, regs, va, access, &mut bytes) else {
        let first = translate(memory, regs, va, access);
        assert!(length > 0 && first.is_err() || first.is_ok_and(|gpa| gpa >> 12 >= FRAMES));
        return;
    };
    let byte = |offset: usize| {
        let gpa = translate(memory, regs, va.wrapping_add(offset as u64), access).ok()?;
        Some((memory.read_u64(gpa & !7)? >> (8 * (gpa & 7))) as u8)
    };
    for (offset, found) in bytes[..count].iter().enumerate() {
        assert_eq!(Some(*found), byte(offset));
    }
    assert!(count == bytes.len() || byte(count).is_none(), "it stops where it must only");
}

fuzz_target!(|input: Input| {
    let (memory, regs) = (input.memory(), input.regs());
    for va in input.addresses.into_iter().take(4) {
        check(&memory, &regs, va);
        check_bytes(&memory, &regs, va, input.length % 24);
    }
});
