//! The interrupts of the bus: what the guest wrote becomes a route, and what the function is to
//! send.

use super::PciBus;
use super::source::To;
use crate::cpu;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::{Fault, Incident};
use delivery::VectorSet;
use mailbox::request;
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
        let new = wanted.filter(|w| Some(*w) != now);
        if new.is_some_and(|to| cx.guest.hidden().contains(to.vector)) {
            board.drop_shadows(cx)?;
        }
        if let Some(to) = new {
            share_vectors(cx, to);
        }
        if now.is_some() && new.is_some() {
            function.hold(source);
        }
        if let Some(wanted) = wanted.zip(written)
            && let Err(incident) = function.sources_mut().follow(cx.guest, source, wanted)
        {
            board.note(incident);
        }
        // What is masked goes on to be posted, as long as its entry says so.
        if wanted.is_none() && now.is_some_and(|to| to.page.is_some()) {
            let written = function.sources().written(source);
            let sent = self.unit.as_ref().zip(written).map(|(unit, w)| unit.message(index, w));
            let page = sent.and_then(|sent| sent.ok()?.1).map(|posted| posted.page);
            if page != now.and_then(|to| to.page) {
                function.sources_mut().unbind_one(cx.guest, source);
            }
        }
        if let Err(incident) = function.program(shown, source, wanted.is_some()) {
            board.note(incident);
        }
        Ok(())
    }

    /// Interrupts by this vector, which is posted, came to a vCPU that isn't in the guest of its
    /// that they are for, or is: all that are sent by it are put where that guest looks. Those of a
    /// guest that has another CPU by now go there from here on.
    #[cold]
    pub fn post(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        vcpu: usize,
        vector: u8,
    ) -> Result<(), Fault> {
        let mut moved = false;
        for index in 0..self.functions.len() {
            for source in 0..self.function(index).map_or(0, |f| f.sources().len()) {
                let sources = self.function(index).map(|f| f.sources());
                if sources.is_some_and(|sources| sources.posts(source, vcpu, vector))
                    && self.post_one(cx, index, source)
                {
                    self.route_source(board, cx, index, source)?;
                    moved = true;
                }
            }
        }
        if moved { self.note_sources(board, cx) } else { Ok(()) }
    }

    /// One source's. True: by its entry it goes to another CPU than it does.
    fn post_one(&self, cx: &ExitContext, index: usize, source: usize) -> bool {
        let (Some(function), Some(unit)) = (self.function(index), &self.unit) else { return false };
        let Some(written) = function.sources().written(source) else { return false };
        // As it is now: a guest's CPU changes without an invalidation.
        match unit.message(index, written) {
            Ok((message, Some(posted))) => put(cx.guest, message.vector, posted.page),
            // It was on its way when that changed.
            Ok((message, None)) => {
                cx.guest.deliver(&message);
                return false;
            }
            // There is no page any more.
            Err(_) => return false,
        }
        // Whoever clears that it runs looks at the page behind that.
        let Ok((message, Some(posted))) = unit.message(index, written) else { return false };
        let last = last(cx.guest, &message);
        if posted.runs && last != cx.me {
            // Its doorbell.
            cx.guest.remotes[last].attend();
        } else if let Some(tag) = posted.tag.filter(|_| !posted.runs) {
            unit.iommu.log_posted(tag);
        }
        function.sources().route(source).is_some_and(|to| to.page.is_some() && to.vcpu != last)
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
            let to = || routes().filter(|to| to.vcpu == vcpu);
            to().filter(|to| to.page.is_none()).for_each(|to| guests.insert(to.vector));
            remote.routes.set_devices(guests);
            if let Some(posted) = remote.posted_to()
                && posted.set(to().filter_map(|to| to.page))
            {
                cx.guest.ask_and_wait(cx.me, 1 << vcpu, request::FLUSH);
            }
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
fn receiver(guest: &Guest, message: &Message, posted: Option<Posted>) -> Option<To> {
    let vcpu = match posted {
        None => guest.receiver(message)?,
        Some(_) => last(guest, message),
    };
    Some(To { vcpu, vector: message.vector, page: posted.map(|posted| posted.page) })
}

/// Where a guest of the guest's last ran: the first vCPU passes on what is for one that never did.
fn last(guest: &Guest, message: &Message) -> usize {
    let last = usize::try_from(message.destination).ok();
    last.filter(|vcpu| *vcpu < guest.remotes.len()).unwrap_or(0)
}

/// Interrupts are about to be posted there: a guest with another backing page that takes its own
/// itself is left first.
fn share_vectors(cx: &ExitContext, to: To) {
    let posted = cx.guest.remotes[to.vcpu].posted_to();
    if let Some((posted, page)) = posted.zip(to.page)
        && posted.begin(page)
    {
        cx.guest.ask_and_wait(cx.me, 1 << to.vcpu, request::FLUSH);
    }
}

/// Puts a vector into the backing page.
fn put(guest: &Guest, vector: u8, page: u64) {
    if let Some(page) = guest.memory.resolve(page, PAGE) {
        cpu::post_to_inner(page, vector);
    }
}
