//! The walk of a guest's page tables: any tables, any registers, any access.
//!
//! A translation costs at most five reads and keeps the offset in the page; more rights never
//! translate to another address than fewer; reading bytes agrees with translating their addresses.
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
    cr0: u64,
    cr3: u16,
    cr4: u64,
    efer: u64,
    /// Frame, index, content.
    entries: Vec<(u8, Index, Content)>,
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
    /// A frame that is there, with these bits below and above its address.
    Frame(u8, u16, u16),
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
        let entry = |(frame, index, content): &(u8, Index, Content)| {
            let index = match index {
                Index::Any(index) => u64::from(*index),
                Index::Of(level) => first >> (12 + 9 * (level % 5)),
            };
            let content = match *content {
                Content::Any(content) => content,
                Content::Frame(frame, low, high) => {
                    let address = u64::from(frame) % FRAMES << 12;
                    address | u64::from(low & 0xFFF) | u64::from(high) << 48
                }
            };
            ((u64::from(*frame) % FRAMES) << 12 | (index & 0x1FF) << 3, content)
        };
        Memory { words: self.entries.iter().map(entry).collect(), reads: Cell::new(0) }
    }
}

fn accesses() -> impl Iterator<Item = Access> {
    (0..8).map(|bits| Access { user: bits & 1 != 0, write: bits & 2 != 0, fetch: bits & 4 != 0 })
}

fn check(memory: &Memory, regs: &Paging, va: u64) {
    let read = |access| translate(memory, regs, va, access);
    let supervisor = read(Access::default());
    for access in accesses() {
        memory.reads.set(0);
        let result = read(access);
        assert!(memory.reads.get() <= 5);
        match result {
            Ok(gpa) => {
                assert_eq!(supervisor, Ok(gpa), "a supervisor may read what anybody may use");
                assert!(gpa & 0xFFF == va & 0xFFF && gpa >> 52 == 0);
            }
            Err(WalkError::Protection { .. }) => assert!(supervisor.is_ok()),
            Err(other) => {
                one_line(&other);
                assert_eq!(supervisor, Err(other));
            }
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
    let memory = input.memory();
    let Input { cr0, cr3, cr4, efer, .. } = input;
    let cr3 = u64::from(cr3) % (FRAMES + 1) << 12 | u64::from(cr3 & 0xFE0);
    let regs = Paging { cr0, cr3, cr4, efer };
    for va in input.addresses {
        check(&memory, &regs, va);
        check_bytes(&memory, &regs, va, input.length);
    }
});
