//! Requests that have a place: those that are asked for piece by piece, or wait for the back end.
//!
//! Guarantees: one is answered once, when all that was asked for has ended, with the first failure
//! there was. With records, what was answered before is published before that is recorded.

use super::Server;
use crate::LEAST_CHARGE;
use crate::backend::{Backend, Failure, Submitted, Token};
use crate::framing::{answer, status_byte, used};
use crate::keeping::Keep;
use crate::outcome::Outcome;
use crate::pieces::Work;
use crate::slots::Job;

/// The request that has pieces left. Its chain is the server's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    place: u16,
    work: Work,
    /// A piece of it was asked for, so it was counted.
    begun: bool,
}

/// What became of a piece.
pub(super) struct Asked {
    pub submitted: Submitted,
    pub bytes: u64,
    pub rest: Option<Work>,
}

impl<const N: usize, const RING: usize, K: Keep> Server<N, RING, K> {
    /// Asks for the first piece of a request. It needs a place only if that wasn't all.
    pub(super) fn begin<B: Backend>(
        &mut self,
        token: Token,
        work: Work,
        reads: u32,
        backend: &mut B,
    ) -> Outcome {
        let asked = self.ask(token, &work, backend);
        match asked.submitted {
            Submitted::Done(result) if asked.rest.is_none() || result.is_err() => {
                let (status, written) = answer(result, reads);
                self.answer_chain(status, written, asked.bytes)
            }
            _ => self.keep(work, reads, asked),
        }
    }

    /// Gives the chain that was just taken a place.
    pub(super) fn keep(&mut self, work: Work, reads: u32, asked: Asked) -> Outcome {
        let head = self.chain.head();
        let room = self.chain.writable_len().saturating_sub(1);
        let job = status_byte(&self.chain).map(|status| Job::new(head, status, reads, room));
        match job.and_then(|job| self.slots.insert(job)) {
            Some(place) => {
                self.running.iter_mut().for_each(|running| running.keep(head));
                self.settle(Open { place, work, begun: false }, asked)
            }
            // It has a status byte, and there was a place when it was taken.
            None => Outcome::default(),
        }
    }

    /// Asks for the open request's next piece.
    pub(super) fn go_on<B: Backend>(&mut self, open: Open, backend: &mut B) -> Outcome {
        let token = self.slots.token(self.number, open.place);
        let failed = self.slots.job(open.place).is_none_or(|job| job.result.is_err());
        let asked = if failed {
            // The rest isn't asked for: the request fails anyway.
            Asked { submitted: Submitted::Done(Ok(())), bytes: 0, rest: None }
        } else {
            self.ask(token, &open.work, backend)
        };
        self.settle(open, asked)
    }

    /// Asks the back end for a piece.
    fn ask<B: Backend>(&mut self, token: Token, work: &Work, backend: &mut B) -> Asked {
        let durable = self.running.as_ref().is_none_or(|running| running.rules.durable);
        let Some(next) = work.next(&self.chain, &mut self.piece, durable) else {
            return Asked { submitted: Submitted::Done(Err(Failure::Io)), bytes: 0, rest: None };
        };
        let submitted = backend.submit(token, next.operation);
        if submitted != Submitted::Full {
            self.statistics.asked(work, next.bytes);
        }
        Asked { submitted, bytes: next.bytes, rest: next.rest }
    }

    /// Takes note of what became of a piece of a request that has a place.
    fn settle(&mut self, open: Open, asked: Asked) -> Outcome {
        let Asked { submitted, bytes, rest } = asked;
        let place = open.place;
        self.open = None;
        let Some(job) = self.slots.job(place) else { return Outcome::default() };
        match submitted {
            Submitted::Full => {
                self.open = Some(open);
                return Outcome { full: true, ..Outcome::default() };
            }
            Submitted::Accepted => {
                job.outstanding += 1;
                self.outstanding += 1;
            }
            Submitted::Done(result) => job.note(result),
        }
        let rest = rest.filter(|_| job.result.is_ok());
        self.open = rest.map(|work| Open { place, work, begun: true });
        job.open = self.open.is_some();
        let asked = u32::from(!open.begun);
        let completed = self.close(place).into();
        let charge = bytes.max(LEAST_CHARGE);
        Outcome { bytes, charge, asked, completed, more: true, full: false }
    }

    /// Answers the request at a place if it is over. True if it was answered.
    pub(super) fn close(&mut self, place: u16) -> bool {
        if !self.slots.job(place).is_some_and(|job| job.is_over()) {
            return false;
        }
        let Some(job) = self.slots.remove(place) else { return false };
        let (status, written) = answer(job.result, job.reads);
        let last = self.last;
        if K::KEEPS
            && let Some(running) = &mut self.running
            && !running.keep.has_batch()
        {
            running.publish(last);
        }
        let answered = self.answer(job.head, &job.status, status, used(written, job.room));
        if answered && let Some(running) = &mut self.running {
            running.keep.complete(job.head);
        }
        answered
    }
}
