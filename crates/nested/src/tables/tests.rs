//! Composed tables against a reference that walks both by itself, with edits of L1's at random.

use super::model::{BEHIND, FRAMES, L1, PAGE, Pool, RULES, frame, own, reference, seen};
use super::*;
use paging::{Access as Rights, Entry, Format, Memory, Nested};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Edit { frame: u64, index: u64, entry: u64 },
    Touch { root: u64, address: u64, write: bool, fetch: bool },
    Flush { root: u64 },
}

fn entry() -> impl Strategy<Value = u64> {
    let flags = prop::bits::u64::masked(0x8000_0000_0000_0076);
    let address = prop_oneof![
        6 => (0..FRAMES).prop_map(frame),
        4 => (0_u64..0xE00).prop_map(|page| page * PAGE),
        2 => (0_u64..7).prop_map(|page| page << 21),
    ];
    let odd = prop_oneof![12 => Just(0), 1 => Just(1_u64 << 45), 3 => Just(1 << 7)];
    // Mostly all is allowed, so that something is translated.
    let base = prop_oneof![8 => Just(7_u64), 1 => Just(5), 1 => Just(3), 1 => Just(0)];
    (flags, address, odd, base)
        .prop_map(|(flags, address, odd, base)| (flags & !7) | address | odd | base)
}

/// Addresses by which the few entries that are edited are used.
fn address() -> impl Strategy<Value = u64> {
    (0_u64..2, 0_u64..2, 0_u64..3, 0_u64..3, 0_u64..PAGE)
        .prop_map(|(a, b, c, d, offset)| a << 39 | b << 30 | c << 21 | d << 12 | offset)
}

fn step() -> impl Strategy<Value = Step> {
    let root = || (0_u64..3).prop_map(frame);
    prop_oneof![
        4 => (0..FRAMES, 0_u64..3, entry())
            .prop_map(|(n, index, entry)| Step::Edit { frame: frame(n), index, entry }),
        8 => (root(), address(), any::<bool>(), any::<bool>())
            .prop_map(|(root, address, write, fetch)| Step::Touch { root, address, write, fetch }),
        1 => root().prop_map(|root| Step::Flush { root }),
    ]
}

/// All addresses that a tree translates, one for each page.
fn all_pages(pool: &Pool, frame: u64, level: u32, base: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for index in 0..512 {
        let address = base | index << (12 + 9 * (level - 1));
        match Nested.decode(level, pool.read(frame | index << 3)) {
            Entry::Empty => {}
            Entry::Table(next) => found.extend(all_pages(pool, next, level - 1, address)),
            Entry::Leaf { .. } => found.push(address),
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Whatever L1 writes: what was just filled is what both tables say; after a flush everything
    /// is as they say; and no translation ever leaves the host's pages for L1.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn trees_say_what_both_tables_say(
        steps in proptest::collection::vec(step(), 1..120),
        frames in prop_oneof![Just(4_u64), Just(9), Just(64)],
    ) {
        let (mut l1, mut pool, mut shadow) = (L1::default(), Pool::of(frames), Shadow::new());
        for step in steps {
            match step {
                Step::Edit { frame, index, entry } => {
                    l1.0.insert(frame | index << 3, entry);
                }
                Step::Touch { root, address, write, fetch } => {
                    let before = reference(&l1, root, address);
                    let access = Access { write, fetch, look: false };
                    let (tree, _) = shadow.root(&mut pool, root, 1)?;
                    // Each try sets a bit at least.
                    let tries = (0..8).map(|_| walk(&mut l1, root, address, access, RULES));
                    let walked = tries.into_iter().find(|walked| *walked != Err(Miss::Again));
                    let Some(walked) = walked else { return Err(TestCaseError::fail("no end")) };
                    let now = reference(&l1, root, address);
                    let page = walked.ok().and_then(|walked| compose(&walked, &own(walked.gpa)?));
                    if let Some(page) = page {
                        shadow.fill(&mut pool, root, address, page)?;
                        prop_assert_eq!(seen(&pool, tree, address), now);
                    } else if !write && !fetch {
                        prop_assert!(before.is_none(), "{:?} though {:?}", walked, before);
                    }
                }
                Step::Flush { root } => {
                    let look = Access { look: true, ..Access::default() };
                    shadow.look_over(&mut pool, root, 1, &mut |address| {
                        let walked = walk(&mut l1, root, address, look, RULES).ok()?;
                        compose(&walked, &own(walked.gpa)?)
                    });
                    let (tree, _) = shadow.root(&mut pool, root, 1)?;
                    for address in all_pages(&pool, tree, 4, 0) {
                        prop_assert_eq!(seen(&pool, tree, address), reference(&l1, root, address));
                    }
                }
            }
            // The audit's rule.
            for root in [0, 1, 2].map(frame) {
                let (tree, _) = shadow.root(&mut pool, root, 1)?;
                for address in all_pages(&pool, tree, 4, 0) {
                    let Some((pa, access)) = seen(&pool, tree, address) else { continue };
                    let host = own(pa - BEHIND);
                    prop_assert!(host.is_some_and(|host| host.access.contains(access - Rights::UNCACHED)));
                }
            }
        }
        shadow.clear(&mut pool);
        prop_assert_eq!(pool.free.len() as u64, frames);
    }
}

/// A pool for one tree: using another drops it, and it comes back.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn what_is_dropped_comes_back() -> Result<(), NoFrame> {
    let (mut pool, mut shadow) = (Pool::of(4), Shadow::new());
    let page = Page { pa: 0x9000, shift: 12, access: Rights::READ };
    for n in [1, 2, 1] {
        let (root, is_new) = shadow.root(&mut pool, n << 12, 1)?;
        assert!(is_new, "the other took its frames");
        shadow.fill(&mut pool, n << 12, 0x5000, page)?;
        assert_eq!(seen(&pool, root, 0x5000), Some((0x9000, Rights::READ)));
        assert_eq!(shadow.pages(), 1);
    }
    // The tree itself is too large: an address elsewhere makes it begin anew.
    assert_eq!(shadow.fill(&mut pool, 0x1000, 1 << 39, page), Ok(true));
    let (root, is_new) = shadow.root(&mut pool, 0x1000, 1)?;
    assert!(!is_new);
    assert_eq!((seen(&pool, root, 0x5000), shadow.pages()), (None, 1));
    let mut tiny = Pool::of(3);
    let mut shadow = Shadow::new();
    shadow.root(&mut tiny, 0x1000, 1)?;
    assert_eq!(shadow.fill(&mut tiny, 0x1000, 0, page), Err(NoFrame));
    shadow.clear(&mut tiny);
    assert_eq!(tiny.free.len(), 3);
    Ok(())
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn the_tree_used_longest_ago_goes_first() -> Result<(), NoFrame> {
    let (mut pool, mut shadow) = (Pool::of(64), Shadow::new());
    for key in [1, 2, 3, 4, 1, 5] {
        shadow.root(&mut pool, key << 12, 1)?;
    }
    assert_eq!(shadow.again(0x1000, 1), None, "another was used last");
    assert!(!shadow.root(&mut pool, 0x1000, 1)?.1, "it was used since");
    assert!(shadow.root(&mut pool, 0x2000, 1)?.1);
    assert_eq!(pool.free.len(), 60);
    Ok(())
}

/// What one address space's flush is for another, and for tables that aren't in use now.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_tree_is_right_until_its_address_space_is_flushed() -> Result<(), NoFrame> {
    const LAST: u32 = 63;
    let (mut pool, mut shadow) = (Pool::of(64), Shadow::new());
    assert!(shadow.is_right(0x1000, 1), "there is none");
    shadow.root(&mut pool, 0x1000, 1)?;
    shadow.root(&mut pool, 0x2000, LAST)?;
    let right = |shadow: &Shadow| {
        [(0x1000, 1), (0x1000, LAST), (0x2000, 1), (0x2000, LAST)].map(|(key, space)| {
            let is_right = shadow.is_right(key, space);
            // It was used last, until the end.
            assert_eq!(shadow.again(key, space).is_some(), is_right && key == 0x2000);
            is_right
        })
    };
    assert_eq!(right(&shadow), [true, false, false, true]);
    shadow.look_over(&mut pool, 0x1000, LAST, &mut |_| None);
    assert_eq!(right(&shadow), [true, true, false, true]);
    shadow.outdate(Some(LAST));
    assert_eq!(right(&shadow), [true, false, false, false], "that space's, in each tree");
    shadow.look_over(&mut pool, 0x2000, LAST, &mut |_| None);
    assert_eq!(right(&shadow), [true, false, false, true]);
    shadow.outdate(None);
    assert_eq!(right(&shadow), [false; 4]);
    // There is no bit for it.
    shadow.look_over(&mut pool, 0x1000, LAST + 1, &mut |_| None);
    assert!(!shadow.is_right(0x1000, LAST + 1) && !shadow.is_right(0x1000, 1));
    Ok(())
}

/// Only what changes what the CPU may have cached is to be flushed.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn changes_are_told() -> Result<(), NoFrame> {
    let (mut pool, mut shadow) = (Pool::of(64), Shadow::new());
    let large = Page { pa: 0x20_0000, shift: 21, access: Rights::READ };
    shadow.root(&mut pool, 0, 1)?;
    assert_eq!(shadow.fill(&mut pool, 0, 0x1234, large), Ok(false));
    assert_eq!(shadow.fill(&mut pool, 0, 0x1234, large), Ok(false), "the same again");
    let more = Page { access: Rights::READ | Rights::WRITE, ..large };
    assert_eq!(shadow.fill(&mut pool, 0, 0, more), Ok(true));
    // A small page takes the large one's place, and a large one is small where small ones are.
    let small = Page { pa: 0x7000, shift: 12, access: Rights::READ };
    assert_eq!(shadow.fill(&mut pool, 0, 0x3000, small), Ok(true));
    assert_eq!(shadow.pages(), 1);
    assert_eq!(shadow.fill(&mut pool, 0, 0x5000, large), Ok(false));
    let (root, _) = shadow.root(&mut pool, 0, 1)?;
    assert_eq!(seen(&pool, root, 0x5000), Some((0x20_5000, Rights::READ)));
    assert_eq!(seen(&pool, root, 0x4000), None);
    assert_eq!(shadow.pages(), 2);
    assert!(!shadow.look_over(&mut pool, 0, 1, &mut |address| Some(if address == 0x3000 {
        small
    } else {
        large
    })));
    assert!(shadow.look_over(&mut pool, 0, 1, &mut |_| None));
    assert_eq!(shadow.pages(), 0);
    Ok(())
}

proptest! {
    /// It leads where the whole page does, and not to the other address.
    #[test]
    fn a_page_apart_has_the_address_alone(
        shift in prop_oneof![Just(12u32), Just(21), Just(30)],
        frame in 0u64..1 << 10, address: u32, other: u32,
    ) {
        let (address, other) = (u64::from(address), u64::from(other));
        prop_assume!(address >> 12 != other >> 12);
        let page = Page { pa: frame << 30, shift, access: Rights::READ };
        let of = |page: Page, address| page.pa | address & ((1 << page.shift) - 1);
        let apart = page.apart_from(address, other);
        prop_assert_eq!(of(apart, address), of(page, address));
        prop_assert!(address >> apart.shift != other >> apart.shift);
        let is_free = address >> shift != other >> shift;
        prop_assert_eq!(apart.shift, if is_free { shift } else { 12 });
        prop_assert_eq!(apart.access, page.access);
    }
}
