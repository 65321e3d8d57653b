//! BARs: mapped where the guest has them, and answered by their function where they aren't mapped.

use super::PciBus;
use super::placement::BARS;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{Fault, Incident};

impl PciBus {
    /// Maps every BAR where the guest has it now; first all that moved are unmapped.
    pub(super) fn place_bars(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
    ) -> Result<(), Fault> {
        for map in [false, true] {
            for (index, function) in self.functions.iter_mut().enumerate() {
                let function = function.get_mut();
                for bar in 0..BARS {
                    if !function.placement().has(bar) {
                        continue;
                    }
                    let wanted = self.config.placement(index, bar).unwrap_or_else(|_| {
                        board.note(Incident::Bar(function.bdf()));
                        None
                    });
                    function.placement_mut().place(board, cx, bar, wanted, map)?;
                }
            }
        }
        Ok(())
    }

    /// The function and the place in its BAR that a guest-physical address is.
    fn find(&self, gpa: u64) -> Option<(usize, usize, u64)> {
        self.functions().enumerate().find_map(|(index, function)| {
            let (bar, offset) = function.placement().find(gpa)?;
            Some((index, bar, offset))
        })
    }

    /// Does the guest have a BAR there?
    pub fn has_bar_at(&self, gpa: u64) -> bool {
        self.find(gpa).is_some()
    }

    /// A load from a BAR page that isn't mapped straight through; `None`: no BAR there.
    pub(super) fn bar_load(&mut self, cx: &mut ExitContext, gpa: u64, size: u8) -> Option<u64> {
        let (index, bar, offset) = self.find(gpa)?;
        Some(self.functions.get_mut(index)?.get_mut().load(cx, bar, offset, size))
    }

    /// A store to such a page; `None`: no BAR there.
    pub(super) fn bar_store(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        gpa: u64,
        size: u8,
        value: u64,
    ) -> Option<Result<(), Fault>> {
        let (index, bar, offset) = self.find(gpa)?;
        Some(self.store_in(board, cx, (index, bar, offset), size, value))
    }

    /// A store to this place in a BAR of this function.
    pub(super) fn store_in(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        (index, bar, offset): (usize, usize, u64),
        size: u8,
        value: u64,
    ) -> Result<(), Fault> {
        let Some(function) = self.functions.get_mut(index) else { return Ok(()) };
        match function.get_mut().store(cx, bar, offset, size, value) {
            Some(source) => {
                self.route_source(board, cx, index, source)?;
                self.note_sources(board, cx)
            }
            None => Ok(()),
        }
    }
}
