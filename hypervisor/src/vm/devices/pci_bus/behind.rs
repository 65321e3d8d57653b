//! What the bus does by its unit: stores to its registers, and interrupts that are routed
//! anew.
//!
//! Guarantees: what one exit does is bounded, routes too; what is left is done at the next exit of a
//! vCPU, which is asked for, so that a time slice ends when it should. An invalidation of interrupts
//! is answered when all of them are routed anew.

use super::PciBus;
use super::unit::RemappingUnit;
use crate::iommu::guest::Answered;
use crate::sidecore::port::add;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Fault;
use viommu::unit::BASE;

/// What one exit does at most, as a schedule charges it: a million words of tables, which are walked
/// through by exits when translation begins alone, or 64 sources that are routed anew.
const MOST_AT_AN_EXIT: u64 = 64 << 20;
const SOURCE_COST: u64 = 1 << 20;

impl PciBus {
    /// The guest's store to the registers of its unit exited.
    pub(super) fn store_to_unit(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        (address, size, value): (u64, u8, u64),
    ) -> Option<Result<(), Fault>> {
        let unit = self.unit.as_ref().filter(|unit| unit.registers().contains(&address))?;
        unit.port.kick(0);
        unit.iommu.registers()?.write(address - BASE, size, value);
        Some(self.follow_unit(board, cx))
    }

    /// Does what is left for vCPUs to do of what the guest asked its unit for.
    pub fn follow_unit(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        let Some(RemappingUnit { iommu, port, open, .. }) = self.unit else { return Ok(()) };
        let mut cost = 0;
        loop {
            if iommu.reroutes() {
                for index in 0..self.functions.len() {
                    let sources = self.function(index).map_or(0, |f| f.sources().len());
                    cost += SOURCE_COST * sources as u64;
                    for source in 0..sources {
                        self.route_source(board, cx, index, source)?;
                    }
                }
                self.note_sources(board, cx)?;
                iommu.rerouted();
            }
            if open || !iommu.is_news() {
                break;
            }
            if cost >= MOST_AT_AN_EXIT {
                iommu.ask();
                break;
            }
            let mut done = Answered::default();
            iommu.run((u32::MAX, MOST_AT_AN_EXIT), false, &mut done);
            cost += done.cost;
            if let Some(counts) = port.counts(0) {
                add(&counts.completed, done.requests.into());
            }
        }
        let mut unit = self.unit.iter_mut();
        unit.try_for_each(|unit| unit.follow_translation(board, cx))
    }
}
