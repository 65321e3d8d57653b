//! What a boot loader hands over: any bytes under each of the three ways in, and well-formed
//! structures with any memory map, damaged or not.
//!
//! Of what is accepted, each address has the worst kind that any range of the map gives it, ranges
//! are in order and merged, and the pages in use are whole and usable.
#![no_main]

use acpi::Physical;
use arbitrary::Arbitrary;
use fuzz::one_line;
use handover::{
    BootInfo, ENTERED_BY_MULTIBOOT2, ENTERED_BY_PVH, ENTERED_BY_UEFI, MemoryKind, MemoryMap, PAGE,
    payload, read,
};
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;

const AT: u64 = 0x1000;
const MAP: u64 = 0x10_0000;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// Where the structure would be, and who entered.
    Bytes(&'a [u8], u8),
    /// Ranges, behind one of the three structures, and bytes of it to change.
    Map(Vec<Range>, u8, Vec<(u16, u8)>),
    /// A program in memory.
    Program(&'a [u8]),
}

/// Start and length in units of 2^shift bytes; a kind, of EFI or E820.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Range {
    start: u16,
    length: u16,
    shift: u8,
    kind: u8,
}

impl Range {
    fn start(&self) -> u64 {
        u64::from(self.start) << (self.shift % 49)
    }

    fn length(&self) -> u64 {
        u64::from(self.length) << (self.shift % 49)
    }
}

/// Two pieces of memory, and how often they were read.
struct Memory {
    structure: Vec<u8>,
    map: Vec<u8>,
    reads: Cell<u64>,
}

impl Physical for Memory {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        [(AT, &self.structure), (MAP, &self.map)].iter().any(|(start, bytes)| {
            let from = pa.checked_sub(*start).map(|offset| offset as usize);
            let found = from.and_then(|from| bytes.get(from..from.checked_add(buf.len())?));
            found.map(|found| buf.copy_from_slice(found)).is_some()
        })
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The structure of that way in, with these ranges as its map; and what each of them means.
fn structure(ranges: &[Range], who: u32) -> (Memory, Vec<(u64, u64, MemoryKind)>) {
    let e820 = |kind: u8| match kind {
        1 => MemoryKind::Usable,
        3 | 4 => MemoryKind::Acpi,
        _ => MemoryKind::Reserved,
    };
    let efi = |kind: u8| match kind {
        1..=4 | 7 => MemoryKind::Usable,
        5 | 6 => MemoryKind::Runtime,
        9 | 10 => MemoryKind::Acpi,
        _ => MemoryKind::Reserved,
    };
    let count = ranges.len() as u64;
    let three = |r: &Range| words(&[r.start(), r.length(), u64::from(r.kind % 6)]);
    let (structure, map) = match who {
        ENTERED_BY_PVH => {
            let start = [u64::from(who) | 1 << 32, 0, 0, 0, 0, MAP, count];
            (words(&start), ranges.iter().flat_map(three).collect())
        }
        ENTERED_BY_MULTIBOOT2 => {
            let size = 16 + 24 * count;
            let mut bytes = words(&[8 + size + 8, size << 32 | 6, 24]);
            bytes.extend(ranges.iter().flat_map(three));
            bytes.extend(words(&[8 << 32]));
            (bytes, Vec::new())
        }
        _ => {
            let transfer = handover::Transfer {
                descriptor_size: 40,
                memory_map: MAP,
                memory_map_bytes: 40 * count,
                ..handover::Transfer::EMPTY
            };
            let five = |r: &Range| {
                words(&[u64::from(r.kind % 16), r.start(), 0, r.length() / PAGE, 1 << 3])
            };
            (transfer.bytes().to_vec(), ranges.iter().flat_map(five).collect())
        }
    };
    let meant = ranges.iter().map(|r| {
        let (length, kind) = match who {
            ENTERED_BY_UEFI => (r.length() / PAGE * PAGE, efi(r.kind % 16)),
            _ => (r.length(), e820(r.kind % 6)),
        };
        (r.start(), r.start().saturating_add(length), kind)
    });
    let meant = meant.filter(|(_, end, kind)| *end < u64::MAX || *kind != MemoryKind::Usable);
    (Memory { structure, map, reads: Cell::new(0) }, meant.collect())
}

fn kind_at(map: &MemoryMap, at: u64) -> Option<MemoryKind> {
    map.ranges().iter().find(|r| r.start <= at && at < r.end).map(|r| r.kind)
}

fn check(info: &BootInfo) {
    let ranges = info.memory.ranges();
    assert!(ranges.iter().all(|r| r.start < r.end));
    for pair in ranges.windows(2) {
        assert!(pair[0].end < pair[1].start || pair[0].kind != pair[1].kind);
        assert!(pair[0].end <= pair[1].start);
    }
    for (start, end) in info.memory.free_pages() {
        assert!(start >= handover::LOW_MEMORY && start < end && (start | end) % PAGE == 0);
        assert!(info.memory.covers(start, end, |kind| kind == MemoryKind::Usable));
    }
    if let Some(page) = info.memory.startup_page() {
        assert!((PAGE..handover::LOW_MEMORY).contains(&page) && page % PAGE == 0);
        assert!(info.memory.covers(page, page + PAGE, |kind| kind == MemoryKind::Usable));
    }
    assert!(info.image.is_none_or(|(start, end)| start <= end));
    if let Err(refusal) = info.check() {
        one_line(&refusal);
        assert!(ranges.is_empty(), "boot services go on, and memory is free");
    }
    if let Some(screen) = info.framebuffer {
        assert!(screen.address.checked_add(screen.bytes()).is_some());
        assert!(screen.width.checked_mul(4).is_some_and(|line| line <= screen.pitch));
    }
    let mut claimed = info.clone();
    if claimed.claim("image", 0x20_0000, 0x2F_0001).is_ok() {
        assert!(claimed.memory.free_pages().all(|(s, e)| e <= 0x20_0000 || 0x2F_1000 <= s));
    }
}

const WAYS: [u32; 3] = [ENTERED_BY_PVH, ENTERED_BY_MULTIBOOT2, ENTERED_BY_UEFI];

fuzz_target!(|input: Input| {
    let memory = match input {
        Input::Program(bytes) => {
            let found = payload::section(bytes, payload::HYPERVISOR);
            assert!(found.is_none_or(|section| section.len() <= bytes.len()));
            return;
        }
        Input::Bytes(bytes, who) => {
            let who = WAYS.get(usize::from(who)).copied().unwrap_or(who.into());
            let memory = Memory { structure: bytes.into(), map: vec![], reads: Cell::new(0) };
            match read(&memory, who, AT) {
                Ok(info) => check(&info),
                Err(refusal) => one_line(&refusal),
            }
            memory
        }
        Input::Map(mut ranges, who, damage) => {
            ranges.truncate(200);
            let who = WAYS[usize::from(who) % 3];
            let (mut memory, meant) = structure(&ranges, who);
            if let Ok(info) = read(&memory, who, AT) {
                check(&info);
                for at in
                    meant.iter().flat_map(|r| [r.0, r.1, r.0.wrapping_sub(1), r.1.wrapping_sub(1)])
                {
                    let covering = meant.iter().filter(|r| r.0 <= at && at < r.1);
                    assert_eq!(kind_at(&info.memory, at), covering.map(|r| r.2).max(), "{at:#x}");
                }
            }
            for (at, value) in damage {
                let at = usize::from(at) % memory.structure.len();
                memory.structure[at] = value;
            }
            memory.reads.set(0);
            match read(&memory, who, AT) {
                Ok(info) => check(&info),
                Err(refusal) => one_line(&refusal),
            }
            memory
        }
    };
    let bytes = (memory.structure.len() + memory.map.len()) as u64;
    assert!(memory.reads.get() < 20_000 + 8 * bytes, "{} reads", memory.reads.get());
});
