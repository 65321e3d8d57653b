//! What a schedule and its caller say to each other: turns, pieces of work, waits.

/// Other queues that are looked at after each piece of work, for each of its requests; and one more
/// for each [`BYTES_PER_LOOK`] of it. A look costs some 4 cycles, a request 120 at least, and to
/// copy so many bytes 600.
pub const LOOKS: u64 = 2;
/// See [`LOOKS`].
pub const BYTES_PER_LOOK: u64 = 4096;
/// What a request or a piece costs at least, in bytes: one that moves none isn't free.
pub const LEAST_COST: u64 = 512;

/// Requests that are one piece together, if their VM has no limits: then the price of what is done
/// after a piece is shared by them.
pub const BATCH: u32 = 8;
/// No other request is begun for such a piece once it cost this much. To copy so many bytes takes
/// half of [`Settings::queue_stuck`](crate::Settings::queue_stuck).
pub const BATCH_COST: u64 = 32 << 10;

/// What may be served as one piece: no other request is begun once either is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Requests, 1 at least.
    pub requests: u32,
    /// What they cost, in bytes, 1 at least.
    pub cost: u64,
}

impl Batch {
    /// One request.
    pub const ONE: Batch = Batch { requests: 1, cost: 1 };

    /// The next one of a turn that had so much, of so much at `most`: it ends where the turn does.
    #[inline]
    pub(crate) fn after(had: u64, most: u64) -> Batch {
        let left = most.saturating_sub(had);
        Batch { requests: BATCH, cost: if left < BATCH_COST { left + 1 } else { BATCH_COST } }
    }
}

/// What the schedule sees of the queues.
pub trait Look {
    /// Chains that wait in this queue, by one load of its ring and without a change of it; one that
    /// was taken and isn't served whole counts. A queue that is broken shows 1, so that it gets its
    /// turn and is found out. Asked for places that joined alone.
    fn waiting(&mut self, queue: usize) -> u16;

    /// How much waits in this queue, of which `waiting` says the number as above, and `before` what
    /// this said last, if nothing of it was served since. Whose number tells no more than whether
    /// something waits looks further: whether it is the same as before is what counts.
    #[inline]
    fn backlog(&mut self, _queue: usize, waiting: u16, _before: u16) -> u16 {
        waiting
    }

    /// Whether anything waits in the queue whose turn it is. Who knows that from its last look at
    /// the ring needs no other one.
    #[inline]
    fn has_more(&mut self, queue: usize) -> bool {
        self.waiting(queue) > 0
    }
}

/// What the core is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Serve a piece of this queue, then call [`crate::Schedule::served`]; or
    /// [`crate::Schedule::rest`].
    Serve(usize),
    /// This queue had nothing for long: re-arm its kicks, then call [`crate::Schedule::sleep`].
    Sleep(usize),
    /// No queue has anything that may be served.
    Nothing,
}

/// Does the turn go on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Serve another piece of the same queue: it has one.
    Continue,
    /// Ask [`crate::Schedule::next`].
    Switch,
}

/// A piece of work that was served, of one queue: a part of a request, or some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What it cost, in bytes: those that were touched, and what else takes as long.
    pub cost: u64,
    /// Bytes of the guest's that were moved; limits are of these.
    pub bytes: u64,
    /// Requests whose last piece it was.
    pub requests: u32,
}

/// How long a queue waited for its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Passes, the one of its turn included. 1: it was the next.
    pub passes: u64,
    /// The cost of what others were served meanwhile, in bytes.
    pub cost: u64,
}

/// Counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls of [`crate::Schedule::next`].
    pub passes: u64,
    /// Those that found a queue to serve.
    pub found: u64,
}

/// Ticks from `then` to `now`; none if time went backwards.
pub(crate) const fn elapsed(then: u64, now: u64) -> u64 {
    let ticks = now.wrapping_sub(then);
    if ticks > i64::MAX as u64 { 0 } else { ticks }
}

/// Has this time come, or was it half of all times ago at most?
pub(crate) const fn is_due(at: u64, now: u64) -> bool {
    now.wrapping_sub(at) <= i64::MAX as u64
}
