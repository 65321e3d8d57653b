//! The interrupts of the bus: what the guest wrote becomes a route, and what the function is to
//! send.

use super::PciBus;
use crate::cpu;
use crate::iommu::guest::GuestIommu;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::{Fault, Incident};
use delivery::VectorSet;
use viommu::unit::Posted;
use virtual_pc::message::Message;

const PAGE: u64 = 4096;

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
            None => written.message().map(|message| (message, None)),
        });
        let wanted = match message.transpose() {
            Ok(sent) => sent.and_then(|(m, posted)| receiver(cx.guest, &m, posted)),
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

    /// Interrupts by this vector, which is posted, came to a vCPU that isn't in the guest of its
    /// that they are for, or is: all that are sent by it are put where that guest looks.
    #[cold]
    pub fn post(&mut self, cx: &mut ExitContext, vcpu: usize, vector: u8) {
        let Some(unit) = &self.unit else { return };
        for (index, function) in self.functions.iter().enumerate() {
            let (function, shown) = (function.get(), self.config.function(index));
            let sources = function.sources();
            for source in 0..sources.len() {
                let Some(shown) =
                    shown.filter(|_| sources.route(source) == Some((vcpu, vector, true)))
                else {
                    continue;
                };
                // As it is now: a guest's CPU changes without an invalidation.
                let sent = function.written(shown, source).map(|w| unit.message(index, w));
                if let Some(Ok((message, Some(posted)))) = sent {
                    post(cx.guest, unit.iommu, message.vector, &posted);
                }
            }
        }
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
            let own = routes().filter(|(to, _, inner)| *to == vcpu && !inner);
            own.for_each(|(_, vector, _)| guests.insert(vector));
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

/// Who gets a message, by which vector, and whether for a guest of its own.
fn receiver(guest: &Guest, message: &Message, posted: Option<Posted>) -> Option<(usize, u8, bool)> {
    let Some(_) = posted else { return Some((guest.receiver(message)?, message.vector, false)) };
    // Where it last ran: the first vCPU passes on what is for one that never did.
    let last = usize::try_from(message.destination).ok();
    let vcpu = last.filter(|vcpu| *vcpu < guest.remotes.len()).unwrap_or(0);
    Some((vcpu, message.vector, true))
}

/// Puts a vector into the backing page, and has it looked at.
fn post(guest: &Guest, iommu: &GuestIommu, vector: u8, posted: &Posted) {
    if let Some(page) = guest.memory.resolve(posted.page, PAGE) {
        cpu::post_to_inner(page, vector);
    }
    if !posted.runs
        && let Some(tag) = posted.tag
    {
        iommu.log_posted(tag);
    }
}
