//! A guest's nested tables, edited at random and used by turns in two address spaces, with flushes
//! of one and of all.
//!
//! What the composed tables translate is held against a reference that walks both by itself: it
//! must be what they said at some time since the address space was flushed last, and so what a CPU
//! may still know.
#![no_main]

#[path = "../../crates/nested/src/tables/model.rs"]
mod model;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use model::{L1, PAGE, Pool, RULES, Translation, frame, own, reference, seen};
use nested_guests::tables::{Access, L1Memory, Miss, Rules, Shadow, compose, walk};
use std::collections::HashMap;

/// The first ones of the guest's table frames.
const ROOTS: u64 = 3;
const SPACES: u32 = 2;
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
            Word::Table(n, bits) => frame(n.into()) | flags(bits) | 4,
            Word::Small(page, bits) => u64::from(page) % 0xE00 * PAGE | flags(bits) | 4,
            Word::Large(page, bits) => u64::from(page) % 7 << 21 | flags(bits) | 0x84,
            Word::Any(word) => word,
        }
    }
}

fn root(n: u8) -> u64 {
    frame(u64::from(n) % ROOTS)
}

/// One of the few addresses that the edited entries translate.
fn address(n: u8) -> u64 {
    let n = u64::from(n);
    [39, 30, 21, 12].iter().enumerate().map(|(i, shift)| (n >> i) % INDEXES << shift).sum()
}

fn addresses() -> impl Iterator<Item = u64> {
    (0..INDEXES.pow(4) as u8).map(address)
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
    let mut pool = Pool::of(frames);
    let (mut l1, mut shadow, mut said) = (L1::default(), Shadow::new(), Said::default());
    let (mut runs, mut space) = (root(0), 1);
    said.note(&l1);
    for step in input.steps.iter().take(MOST_STEPS) {
        match step {
            Step::Edit { frame: n, index, entry } => {
                l1.0.insert(frame(u64::from(*n)) | u64::from(*index) % INDEXES << 3, entry.bits());
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
        let again = shadow.again(runs, space);
        assert!(again.is_none() || shadow.is_right(runs, space));
        if !shadow.is_right(runs, space) {
            let look = Access { look: true, ..Access::default() };
            shadow.look_over(&mut pool, runs, space, &mut |address| {
                let walked = walk(&mut l1, runs, address, look, RULES).ok()?;
                compose(&walked, &own(walked.gpa)?)
            });
        }
        let Ok((tree, is_new)) = shadow.root(&mut pool, runs, space) else { continue };
        assert!(again.is_none() || (again, is_new) == (Some(tree), false));
        assert_eq!(shadow.again(runs, space), Some(tree));
        for address in addresses() {
            let found = seen(&pool, tree, address);
            let may = &said.0[&(runs, space, address)];
            assert!(found.is_none() || may.contains(&found), "{found:?} at {address:#x}: {may:?}");
        }
    }
    shadow.clear(&mut pool);
    assert_eq!(pool.free.len() as u64, frames);
});
