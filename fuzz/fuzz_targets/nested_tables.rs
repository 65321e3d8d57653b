//! A guest's nested tables, edited at random and used by turns in two address spaces, with flushes
//! of one and of all.
//!
//! What the composed tables translate is held against a reference that walks both by itself: it
//! must be what they said at some time since the address space was flushed last, and so what a CPU
//! may still know.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use nested_guests::tables::{Access, L1Memory, Miss, Rules, Shadow, compose, walk};
use paging::{Access as Rights, Entry, Format, Mapping, Memory, Nested};
use std::collections::HashMap;

const RULES: Rules = Rules { no_execute: true, physical_bits: 40 };
const PAGE: u64 = 0x1000;
/// The guest's table frames; the first ones are roots.
const FRAMES: u64 = 6;
const ROOTS: u64 = 3;
const SPACES: u32 = 2;
const FIRST_FRAME: u64 = 0x10_0000;
/// Where the host has the guest's memory.
const BEHIND: u64 = 0x4_0000_0000;
const MOST_STEPS: usize = 64;
/// Each step looks at all addresses by all tables in all spaces.
const INDEXES: u64 = 2;

#[derive(Arbitrary, Debug)]
struct Input {
    frames: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Edit { frame: u8, index: u8, entry: Word },
    Run { root: u8, space: bool, flush: Option<bool> },
    Touch { address: u8, write: bool, fetch: bool },
}

/// An entry of a table.
#[derive(Arbitrary, Debug)]
enum Word {
    Table(u8, u8),
    Small(u16, u8),
    Large(u8, u8),
    Any(u64),
}

impl Word {
    fn bits(&self) -> u64 {
        let flags = |flags: u8| u64::from(flags) & 0x76 | 1;
        match *self {
            Word::Table(n, bits) => frame(n) | flags(bits) | 4,
            Word::Small(page, bits) => u64::from(page) % 0xE00 * PAGE | flags(bits) | 4,
            Word::Large(page, bits) => u64::from(page) % 7 << 21 | flags(bits) | 0x84,
            Word::Any(word) => word,
        }
    }
}

#[derive(Default)]
struct L1(HashMap<u64, u64>);

impl L1Memory for L1 {
    fn read(&self, gpa: u64) -> Option<u64> {
        let is_table = (FIRST_FRAME..FIRST_FRAME + FRAMES * PAGE).contains(&gpa);
        is_table.then(|| self.0.get(&gpa).copied().unwrap_or(0))
    }

    fn exchange(&mut self, gpa: u64, old: u64, new: u64) -> bool {
        // Tables that loop have a word at two levels.
        let is_old = self.read(gpa) == Some(old);
        if is_old {
            self.0.insert(gpa, new);
        }
        is_old
    }
}

/// The host's frames for composed tables.
struct Pool {
    words: HashMap<u64, u64>,
    free: Vec<u64>,
}

impl Memory for Pool {
    fn read(&self, pa: u64) -> u64 {
        assert!(!self.free.contains(&(pa & !0xFFF)), "a freed frame was read");
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn write(&mut self, pa: u64, value: u64) {
        assert!(!self.free.contains(&(pa & !0xFFF)), "a freed frame was written");
        self.words.insert(pa, value);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        self.words.retain(|at, _| at & !0xFFF != frame);
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        assert!(!self.free.contains(&frame), "freed twice");
        self.free.push(frame);
    }
}

type Translation = Option<(u64, Rights)>;

/// The host's page for an address of the guest's: 2 MiB pages, one of them read-only, small ones,
/// one of those without fetches, registers, nothing elsewhere.
fn own(gpa: u64) -> Option<Mapping> {
    let all = Rights::READ | Rights::WRITE | Rights::EXECUTE;
    let (access, size) = match gpa >> 12 {
        0x200..0x400 => (all - Rights::WRITE, 1 << 21),
        0..0x800 => (all, 1 << 21),
        0x900 => (all - Rights::EXECUTE, PAGE),
        0x800..0xC00 => (all, PAGE),
        0xD00 => (Rights::READ | Rights::WRITE | Rights::UNCACHED, PAGE),
        _ => return None,
    };
    Some(Mapping { pa: BEHIND + gpa, access, size })
}

fn frame(n: u8) -> u64 {
    FIRST_FRAME + u64::from(n) % FRAMES * PAGE
}

fn root(n: u8) -> u64 {
    FIRST_FRAME + u64::from(n) % ROOTS * PAGE
}

/// One of the few addresses that the edited entries translate.
fn address(n: u8) -> u64 {
    let n = u64::from(n);
    [39, 30, 21, 12].iter().enumerate().map(|(i, shift)| (n >> i) % INDEXES << shift).sum()
}

fn addresses() -> impl Iterator<Item = u64> {
    (0..INDEXES.pow(4) as u8).map(address)
}

/// Each entry by the manual's words, without what the walk shares.
fn reference(l1: &L1, root: u64, address: u64) -> Translation {
    let (mut table, mut rights) = (root, Rights::READ | Rights::WRITE | Rights::EXECUTE);
    for (level, shift) in [(4, 39), (3, 30), (2, 21), (1, 12)] {
        let entry = l1.read(table + (address >> shift) % 512 * 8)?;
        let has = |bit: u32| entry >> bit & 1 == 1;
        if !has(0) || entry >> 40 & 0xFFF != 0 || level == 4 && has(7) || !has(2) {
            return None;
        }
        if !has(1) {
            rights -= Rights::WRITE;
        }
        if has(63) {
            rights -= Rights::EXECUTE;
        }
        if level == 1 || has(7) {
            let size = 1_u64 << shift;
            let low = (entry & 0xF_FFFF_FFFF_F000) % size;
            if level != 1 && low & !0x1000 != 0 {
                return None;
            }
            if !has(6) {
                rights -= Rights::WRITE;
            }
            let gpa = (entry & 0xF_FFFF_FFFF_F000) - low + address % size;
            let host = own(gpa)?;
            let mut both = rights & host.access;
            if has(4) || host.access.contains(Rights::UNCACHED) {
                both |= Rights::UNCACHED;
            }
            return Some((host.pa, both));
        }
        table = entry & 0xF_FFFF_FFFF_F000;
    }
    None
}

/// What the CPU makes of an address by composed tables.
fn seen(pool: &Pool, root: u64, address: u64) -> Translation {
    let mut table = root;
    for level in (1..=4).rev() {
        let shift = 12 + 9 * (level - 1);
        match Nested.decode(level, pool.read(table | (address >> shift & 0x1FF) << 3)) {
            Entry::Empty => return None,
            Entry::Table(next) => table = next,
            Entry::Leaf { pa, access } => return Some((pa | address & ((1 << shift) - 1), access)),
        }
    }
    None
}

/// What was said of each address by each tables, since each space was flushed.
#[derive(Default)]
struct Said(HashMap<(u64, u32, u64), Vec<Translation>>);

impl Said {
    fn note(&mut self, l1: &L1) {
        for root in (0..ROOTS as u8).map(root) {
            for address in addresses() {
                let now = reference(l1, root, address);
                for space in 1..=SPACES {
                    let before = self.0.entry((root, space, address)).or_default();
                    if !before.contains(&now) {
                        before.push(now);
                    }
                }
            }
        }
    }

    fn forget(&mut self, flushed: Option<u32>) {
        self.0.retain(|(_, space, _), _| flushed.is_some_and(|flushed| flushed != *space));
    }
}

fuzz_target!(|input: Input| {
    let frames = 4 + u64::from(input.frames) % 60;
    let mut pool = Pool { words: HashMap::new(), free: (1..=frames).map(|n| n * PAGE).collect() };
    let (mut l1, mut shadow, mut said) = (L1::default(), Shadow::new(), Said::default());
    let (mut runs, mut space) = (root(0), 1);
    said.note(&l1);
    for step in input.steps.iter().take(MOST_STEPS) {
        match step {
            Step::Edit { frame: n, index, entry } => {
                l1.0.insert(frame(*n) | u64::from(*index) % INDEXES << 3, entry.bits());
            }
            Step::Run { root: n, space: other, flush } => {
                (runs, space) = (root(*n), 1 + u32::from(*other));
                if let Some(all) = flush {
                    let flushed = Some(space).filter(|_| !all);
                    shadow.outdate(flushed);
                    said.forget(flushed);
                }
            }
            Step::Touch { address: n, write, fetch } => {
                let access = Access { write: *write, fetch: *fetch, look: false };
                // Each try sets a bit at least.
                let tries = (0..8).map(|_| walk(&mut l1, runs, address(*n), access, RULES));
                let walked = tries.into_iter().find(|walked| *walked != Err(Miss::Again));
                let walked = walked.expect("it ends");
                said.note(&l1);
                let page = walked.ok().and_then(|walked| compose(&walked, &own(walked.gpa)?));
                if shadow.root(&mut pool, runs, space).is_ok()
                    && let Some(page) = page
                {
                    shadow
                        .fill(&mut pool, runs, address(*n), page)
                        .expect("four frames are enough");
                    let (tree, _) = shadow.root(&mut pool, runs, space).expect("it is there");
                    assert_eq!(seen(&pool, tree, address(*n)), reference(&l1, runs, address(*n)));
                }
            }
        }
        said.note(&l1);
        // As VMRUN does.
        if !shadow.is_right(runs, space) {
            let look = Access { look: true, ..Access::default() };
            shadow.look_over(&mut pool, runs, space, &mut |address| {
                let walked = walk(&mut l1, runs, address, look, RULES).ok()?;
                compose(&walked, &own(walked.gpa)?)
            });
        }
        let Ok((tree, _)) = shadow.root(&mut pool, runs, space) else { continue };
        for address in addresses() {
            let found = seen(&pool, tree, address);
            let may = &said.0[&(runs, space, address)];
            assert!(found.is_none() || may.contains(&found), "{found:?} at {address:#x}: {may:?}");
        }
    }
    shadow.clear(&mut pool);
    assert_eq!(pool.free.len() as u64, frames);
});
