//! What a server tells of its turns: what one did, and what all of them did.
//!
//! Nothing here decides anything. Counts of bytes are of what the back end was asked for, whatever
//! came of it.

use crate::backend::Operation;
use crate::pieces::Work;
use crate::request::Status;

/// What a turn may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests that it may begin.
    pub requests: u32,
    /// It begins no other one once it has charged this much.
    pub charge: u64,
}

impl Budget {
    #[inline(always)]
    pub(crate) fn is_used_up(&self, asked: u32, charge: u64) -> bool {
        asked >= self.requests || charge >= self.charge
    }

    /// What is left of it after that.
    pub(crate) fn less(&self, done: &Outcome) -> Budget {
        Budget {
            requests: self.requests.saturating_sub(done.asked),
            charge: self.charge.saturating_sub(done.charge),
        }
    }
}

/// What a turn did, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of data that the back end was asked to move, or to touch.
    pub bytes: u64,
    /// Bytes to charge the queue with: [`LEAST_CHARGE`] at least if there was anything to do, and
    /// [`DESCRIPTOR_CHARGE`] at least for each descriptor that was read, with [`MARK_CHARGE`] for
    /// each page that is marked as changed.
    ///
    /// [`LEAST_CHARGE`]: crate::LEAST_CHARGE
    /// [`DESCRIPTOR_CHARGE`]: crate::DESCRIPTOR_CHARGE
    /// [`MARK_CHARGE`]: crate::MARK_CHARGE
    pub charge: u64,
    /// Requests that were begun. One may be answered much later, which isn't in any turn,
    /// or never, if the driver resets: so limits of requests are of these.
    pub asked: u32,
    /// Requests that were answered. [`Server::in_flight`] doesn't count them any more.
    ///
    /// [`Server::in_flight`]: crate::Server::in_flight
    pub completed: u32,
    /// Another turn may find work. Else the ring was empty, or [`Self::full`] says why not.
    pub more: bool,
    /// The back end has no room, or too many requests are in flight: a completion must come first.
    pub full: bool,
}

impl Outcome {
    /// With what the next turn did.
    #[inline(always)]
    pub(crate) fn and(self, next: Outcome) -> Outcome {
        Outcome {
            bytes: self.bytes + next.bytes,
            charge: self.charge + next.charge,
            asked: self.asked + next.asked,
            completed: self.completed + next.completed,
            ..next
        }
    }
}

/// What a server did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests answered.
    pub requests: u64,
    /// Of them, those answered with an I/O error.
    pub failed: u64,
    /// Flushes that the back end was asked for.
    pub flushes: u64,
    /// Bytes that the back end was asked to read.
    pub read: u64,
    /// Bytes that the back end was asked to write.
    pub written: u64,
    /// Bytes that the back end was asked to discard or zero.
    pub touched: u64,
    /// Completions of operations that nobody waited for any more.
    pub stale: u64,
}

impl Statistics {
    /// The back end was asked for a piece of such work.
    pub(crate) fn asked(&mut self, work: &Work, bytes: u64) {
        match work {
            Work::Read { .. } => self.read += bytes,
            Work::Write { .. } => self.written += bytes,
            Work::Flush => self.flushes += 1,
            Work::Range { .. } => self.touched += bytes,
        }
    }

    /// A request was answered with this.
    #[inline(always)]
    pub(crate) fn answered(&mut self, status: Status) {
        self.requests += 1;
        self.failed += u64::from(status == Status::IoError);
    }

    /// The same of a simple read or write.
    #[inline(always)]
    pub(crate) fn moved(&mut self, operation: Operation<'_>, bytes: u32) {
        let is_read = matches!(operation, Operation::Read { .. });
        *(if is_read { &mut self.read } else { &mut self.written }) += u64::from(bytes);
    }
}
