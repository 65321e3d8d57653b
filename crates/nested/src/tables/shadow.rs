//! The compressed tables of one virtual CPU of L1's.
//!
//! One tree for each of L1's nested tables that it used lately, and for each tree L2's address
//! spaces (ASIDs of L1's) for which it is right. Each CPU of L1's has its own, as it has its own
//! TLB: what one flushes is no other's. What L1 flushes is looked over when it is next run by.

use super::Page;
use paging::{Entry, Format, Memory, Nested};
use thiserror::Error;

/// Trees at a time: a CPU of L1's rarely runs more guests in turns.
const TREES: usize = 4;
const ENTRIES: u64 = 512;
const LEVELS: u32 = 4;
/// Pages that are looked over at a flush; a tree with more is dropped instead.
const LOOKED_OVER: u32 = 1 << 14;

/// No frame is left, and nothing but the tree itself could give one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the pool of nested tables has no frame for a single translation")]
pub struct NoFrame;

#[derive(Clone, Copy, Debug)]
struct Tree {
    /// L1's nested CR3.
    key: u64,
    root: u64,
    /// Address spaces of L1's for which it has nothing older than their last flush, a bit each.
    spaces: u64,
    /// Pages in it.
    pages: u32,
    /// When it was last used, in uses of any.
    used: u64,
}

/// The trees. All frames are the pool's.
#[derive(Debug, Default)]
pub struct Shadow {
    trees: [Option<Tree>; TREES],
    uses: u64,
    /// Where the tree is that was used last, if it is there still. Nothing else is noted where
    /// that one is used again.
    last: usize,
}

impl Shadow {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// The root for L1's tables at `key`, if they were used last, and their tree is right for
    /// `space`: as VMRUN most often finds it.
    #[inline(always)]
    pub fn again(&self, key: u64, space: u32) -> Option<u64> {
        let tree = self.trees.get(self.last)?.as_ref()?;
        (tree.key == key && tree.spaces & bit(space) != 0).then_some(tree.root)
    }

    /// The root for L1's tables at `key`: a tree that was there, or an empty one, which is right
    /// for `space`. The second: it is another frame than before for these tables, or a new one, so
    /// that the address space is flushed.
    ///
    /// # Errors
    ///
    /// If not even a root can be had.
    pub fn root(
        &mut self,
        mem: &mut dyn Memory,
        key: u64,
        space: u32,
    ) -> Result<(u64, bool), NoFrame> {
        self.uses += 1;
        let used = self.uses;
        if let Some(at) = self.place(key)
            && let Some(tree) = &mut self.trees[at]
        {
            self.last = at;
            tree.used = used;
            return Ok((tree.root, false));
        }
        if self.trees.iter().all(Option::is_some) {
            self.drop_oldest(mem, None);
        }
        let root = self.frame(mem, None).ok_or(NoFrame)?;
        self.last = self.trees.iter().position(Option::is_none).ok_or(NoFrame)?;
        self.trees[self.last] = Some(Tree { key, root, spaces: bit(space), pages: 0, used });
        Ok((root, true))
    }

    /// Translates L2's `address` by this page from now on. True: something else was there, or trees
    /// were dropped, so that the address space is to be flushed.
    ///
    /// # Errors
    ///
    /// If the pool is too small for one translation. The tree is empty then.
    pub fn fill(
        &mut self,
        mem: &mut dyn Memory,
        key: u64,
        address: u64,
        page: Page,
    ) -> Result<bool, NoFrame> {
        let Some(at) = self.place(key) else { return Err(NoFrame) };
        let trees = self.count();
        if let Some(changed) = self.put(mem, at, address, page) {
            return Ok(changed || self.count() != trees);
        }
        // Even the others' frames weren't enough: what this tree has comes back on demand.
        self.empty(mem, at);
        self.put(mem, at, address, page).map(|_| true).ok_or(NoFrame)
    }

    /// L1 asked for a flush of this address space, or of all: no tree is right for it any more.
    pub fn outdate(&mut self, space: Option<u32>) {
        let gone = space.map_or(u64::MAX, bit);
        self.trees.iter_mut().flatten().for_each(|tree| tree.spaces &= !gone);
    }

    /// Is what is kept of L1's tables at `key`, if anything, right for this address space?
    #[inline]
    pub fn is_right(&self, key: u64, space: u32) -> bool {
        let tree = self.place(key).and_then(|at| self.trees[at]);
        tree.is_none_or(|tree| tree.spaces & bit(space) != 0)
    }

    /// Makes it right: what L1's tables say now is kept, the rest is dropped. `now`: the page for
    /// an address of L2's that may be read, none if there is none. True: something changed.
    pub fn look_over(
        &mut self,
        mem: &mut dyn Memory,
        key: u64,
        space: u32,
        now: &mut dyn FnMut(u64) -> Option<Page>,
    ) -> bool {
        let Some(at) = self.place(key) else { return false };
        let Some(tree) = &mut self.trees[at] else { return false };
        tree.spaces |= bit(space);
        let tree = *tree;
        if tree.pages > LOOKED_OVER {
            self.empty(mem, at);
            return true;
        }
        let mut dropped = 0;
        look_over(mem, (tree.root, LEVELS, 0), &mut dropped, now);
        if let Some(tree) = &mut self.trees[at] {
            tree.pages = tree.pages.saturating_sub(dropped);
        }
        dropped > 0
    }

    /// Gives up everything: the host's own tables changed, or L1 is over.
    pub fn clear(&mut self, mem: &mut dyn Memory) {
        for tree in self.trees.iter_mut().filter_map(Option::take) {
            free(mem, tree.root, LEVELS);
        }
    }

    /// Pages that are translated.
    pub fn pages(&self) -> u32 {
        self.trees.iter().flatten().map(|tree| tree.pages).sum()
    }

    fn count(&self) -> usize {
        self.trees.iter().flatten().count()
    }

    #[inline]
    fn place(&self, key: u64) -> Option<usize> {
        if self.trees[self.last].is_some_and(|tree| tree.key == key) {
            return Some(self.last);
        }
        self.trees.iter().position(|tree| tree.is_some_and(|tree| tree.key == key))
    }

    /// Frees what was used longest ago, but for this one. False: there is no other.
    fn drop_oldest(&mut self, mem: &mut dyn Memory, but: Option<usize>) -> bool {
        let others = self.trees.iter().enumerate().filter(|(at, _)| Some(*at) != but);
        let oldest = others.filter_map(|(at, tree)| Some((tree.as_ref()?.used, at))).min();
        let Some(tree) = oldest.and_then(|(_, at)| self.trees[at].take()) else { return false };
        free(mem, tree.root, LEVELS);
        true
    }

    /// A frame, if need be from another tree than `own`.
    fn frame(&mut self, mem: &mut dyn Memory, own: Option<usize>) -> Option<u64> {
        loop {
            // Each turn but the last drops one of the few trees.
            match mem.allocate() {
                Some(frame) => return Some(frame),
                None if self.drop_oldest(mem, own) => {}
                None => return None,
            }
        }
    }

    fn empty(&mut self, mem: &mut dyn Memory, at: usize) {
        let Some(tree) = &mut self.trees[at] else { return };
        for index in 0..ENTRIES {
            let word = tree.root | index << 3;
            if let Entry::Table(next) = Nested.decode(LEVELS, mem.read(word)) {
                free(mem, next, LEVELS - 1);
            }
            mem.write(word, 0);
        }
        tree.pages = 0;
    }

    /// Puts a page in. None: no frame.
    fn put(&mut self, mem: &mut dyn Memory, at: usize, address: u64, page: Page) -> Option<bool> {
        let mut table = self.trees[at]?.root;
        let mut changed = false;
        for level in (1..=LEVELS).rev() {
            let word = table | (address >> shift(level) & (ENTRIES - 1)) << 3;
            let old = mem.read(word);
            let found = Nested.decode(level, old);
            let fits = page.shift >= shift(level);
            match found {
                // Smaller pages that are there already: this one is as small.
                Entry::Table(next) => {
                    table = next;
                    continue;
                }
                Entry::Empty | Entry::Leaf { .. } if fits => {
                    let new = leaf(level, address, page);
                    mem.write(word, new);
                    if found == Entry::Empty {
                        self.trees[at].as_mut()?.pages += 1;
                    }
                    return Some(changed || found != Entry::Empty && old != new);
                }
                Entry::Empty | Entry::Leaf { .. } => {
                    let next = self.frame(mem, Some(at))?;
                    if found != Entry::Empty {
                        self.trees[at].as_mut()?.pages -= 1;
                        changed = true;
                    }
                    mem.write(word, Nested.table(level, next));
                    table = next;
                }
            }
        }
        // Level 1 takes every page.
        None
    }
}

/// Of an address space. Beyond the last one: never right.
const fn bit(space: u32) -> u64 {
    if space < u64::BITS { 1 << space } else { 0 }
}

const fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

/// The entry by which a page of this level, which is as large as `page` or smaller, translates
/// `address`.
fn leaf(level: u32, address: u64, page: Page) -> u64 {
    let within = address & ((1 << page.shift) - 1) & !((1 << shift(level)) - 1);
    Nested.leaf(level, page.pa | within, page.access)
}

/// Drops the pages that aren't what `now` says, below the table (frame, level, first address).
fn look_over(
    mem: &mut dyn Memory,
    (frame, level, base): (u64, u32, u64),
    dropped: &mut u32,
    now: &mut dyn FnMut(u64) -> Option<Page>,
) {
    for index in 0..ENTRIES {
        let word = frame | index << 3;
        let address = base | index << shift(level);
        let entry = mem.read(word);
        match Nested.decode(level, entry) {
            Entry::Empty => {}
            Entry::Table(next) => look_over(mem, (next, level - 1, address), dropped, now),
            Entry::Leaf { .. } => {
                let kept = now(address).filter(|page| page.shift >= shift(level));
                if kept.map(|page| leaf(level, address, page)) != Some(entry) {
                    mem.write(word, 0);
                    *dropped += 1;
                }
            }
        }
    }
}

/// Frees a table with all below it.
fn free(mem: &mut dyn Memory, frame: u64, level: u32) {
    if level > 1 {
        for index in 0..ENTRIES {
            if let Entry::Table(next) = Nested.decode(level, mem.read(frame | index << 3)) {
                free(mem, next, level - 1);
            }
        }
    }
    mem.free(frame);
}
