//! Where the guest has a function's BARs, and which parts of them it reaches without an exit.
//!
//! Guarantees: a part is in the guest's tables where its BAR is, or nowhere; at another place only
//! after it is gone from the old one.

use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Fault;
use alloc::vec::Vec;
use core::ops::Range;
use paging::Access;

/// BARs of a function.
pub const BARS: usize = 6;

/// A part of a BAR that is mapped straight through: registers of a device, or a page of the host's
/// memory that stands for them. Whole pages.
#[derive(Clone, Debug)]
pub struct Part {
    pub bar: usize,
    /// Where it is in the BAR.
    pub range: Range<u64>,
    /// The machine's address of it.
    pub hpa: u64,
    pub access: Access,
}

impl Part {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The memory BARs of a function.
pub struct Placement {
    sizes: [Option<u64>; BARS],
    /// What exits isn't in here.
    open: Vec<Part>,
    /// Where the guest has them now.
    placed: [Option<u64>; BARS],
}

impl Placement {
    /// BARs of these sizes, placed nowhere. Empty parts don't count.
    pub fn new(sizes: [Option<u64>; BARS], mut open: Vec<Part>) -> Self {
        open.retain(|part| !part.range.is_empty());
        Placement { sizes, open, placed: [None; BARS] }
    }

    /// Has the function this BAR?
    pub fn has(&self, bar: usize) -> bool {
        self.sizes.get(bar).is_some_and(Option::is_some)
    }

    /// The machine's addresses that the guest may reach, and how.
    pub fn open(&self) -> impl Iterator<Item = (Range<u64>, Access)> {
        self.open.iter().map(|part| (part.hpa..part.hpa + part.len(), part.access))
    }

    /// The BAR that holds a guest-physical address, and the offset in it.
    pub fn find(&self, gpa: u64) -> Option<(usize, u64)> {
        (0..BARS).find_map(|bar| {
            let (at, size) = (self.placed[bar]?, self.sizes[bar]?);
            let offset = gpa.checked_sub(at).filter(|offset| *offset < size)?;
            Some((bar, offset))
        })
    }

    /// Unmaps a BAR that isn't `wanted` where it is now, and maps it there if `map`.
    pub fn place(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        bar: usize,
        wanted: Option<u64>,
        map: bool,
    ) -> Result<(), Fault> {
        let Some(placed) = self.placed.get_mut(bar).filter(|placed| **placed != wanted) else {
            return Ok(());
        };
        let parts = || self.open.iter().filter(|part| part.bar == bar);
        if let Some(at) = placed.take() {
            for part in parts() {
                board.unmap_registers(cx, at + part.range.start, part.len())?;
            }
        }
        if let (true, Some(at)) = (map, wanted) {
            *placed = Some(at);
            for part in parts() {
                board.map_registers(at + part.range.start, part.hpa, part.len(), part.access)?;
            }
        }
        Ok(())
    }
}
