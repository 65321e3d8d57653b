//! The interrupts of the bus: what the guest wrote becomes a route, and what the function is to
//! send.

use super::PciBus;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{Fault, Incident};
use delivery::VectorSet;

impl PciBus {
    /// Brings one interrupt source in line with what the guest wrote. To be followed by
    /// [`PciBus::note_sources`].
    pub(super) fn route_source(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        index: usize,
        source: usize,
    ) -> Result<(), Fault> {
        let (Some(function), Some(shown)) =
            (self.functions.get_mut(index), self.config.function(index))
        else {
            return Ok(());
        };
        let function = function.get_mut();
        let written = function.written(shown, source);
        let message = written.map(|written| match &self.unit {
            Some(unit) => unit.message(index, written),
            None => written.message(),
        });
        let wanted = match message.transpose() {
            Ok(message) => message.and_then(|m| Some((cx.guest.receiver(&m)?, m.vector))),
            Err(_) => {
                board.note(Incident::Message(function.bdf()));
                None
            }
        };
        let now = function.sources().route(source);
        // Such a vector gets a stand-in, which no shadow hides yet: another vCPU would take it.
        if wanted.is_some_and(|w| Some(w) != now && cx.guest.hidden().contains(w.1)) {
            board.drop_shadows(cx)?;
        }
        if now.is_some() && wanted.is_some_and(|w| Some(w) != now) {
            function.hold(source);
        }
        if let Some(wanted) = wanted
            && let Err(incident) = function.sources_mut().follow(cx.guest, source, wanted)
        {
            board.note(incident);
        }
        if let Err(incident) = function.program(shown, source, wanted.is_some()) {
            board.note(incident);
        }
        Ok(())
    }

    /// How many interrupts of functions there can be.
    pub fn sources(&self) -> usize {
        self.functions().map(|function| function.sources().len()).sum()
    }

    /// What depends on the set of routes.
    pub(super) fn note_sources(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
    ) -> Result<(), Fault> {
        let routes = || self.functions().flat_map(|function| function.sources().routes());
        for (vcpu, remote) in cx.guest.remotes.iter().enumerate() {
            let mut guests = VectorSet::EMPTY;
            routes().filter(|route| route.0 == vcpu).for_each(|route| guests.insert(route.1));
            remote.routes.set_devices(guests);
        }
        let any = routes().next().is_some();
        cx.guest.set_routed(any);
        if board.hidden() != VectorSet::EMPTY && board.hidden() != cx.guest.hidden() {
            board.drop_shadows(cx)?;
        }
        Ok(())
    }
}
