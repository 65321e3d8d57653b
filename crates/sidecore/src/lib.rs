//! Which virtqueue a polling core serves next, and for how long: the scheduling of ELVIS (Har'El
//! and others, "Efficient and Scalable Paravirtual I/O System", USENIX ATC 2013), with weights and
//! limits by VM.
//!
//! Rules:
//! - A queue is polled from its first kick on, or from [`Schedule::poll`] on, until it had nothing
//!   for [`Settings::idle`]; or for less, down to nothing, where that follows how soon its requests
//!   come ([`Settings::adapts`]).
//! - A turn is one or more pieces of work of one queue. It ends when the queue is empty, its VM is
//!   at a limit, or more than [`Settings::max_bytes`] were served. Small requests are one piece
//!   together ([`Schedule::batch`]): what is done after a piece costs more than to serve one.
//! - From [`Settings::min_bytes`] on it ends too if another queue is *stuck*: that one waits, its
//!   backlog doesn't grow, and the turn would be its own if its requests had come earlier; or it
//!   was kicked and hasn't been served since.
//! - The next turn has a queue whose VM has the least virtual time (bytes ÷ weight); among those of
//!   one VM, the one whose last turn is the longest ago. Where ELVIS goes round a list, order and
//!   fairness are one thing here: a VM that had less than its share comes first, and one that only
//!   looks sensitive to latency gains nothing.
//! - Every other turn is for a queue that was kicked, if there is one: the oldest kick first.
//! - A turn in which nothing could be served, since the back end is full, costs nothing. So its VM
//!   has no other before something was served of those that wait, by whatever queue.
//! - A VM that was idle or at a limit is behind by [`Settings::credit`] at most.
//!
//! Guarantees, for pieces of `P` bytes at most (what is below 512 bytes is charged as 512):
//! - VMs that always have something to do have virtual times no further apart than a turn of each,
//!   `(max_bytes + P) × 100 ÷ weight`, whatever their queues and the sizes of their requests.
//! - A queue that waits has its turn after each other VM was served `weight ÷ own weight` turns'
//!   cost and two more at most, times the queues of its own VM. How many passes that takes isn't
//!   bounded by it: a VM that comes back has its credit before the others, and may take it in as
//!   many short turns as that has requests.
//! - A VM of one queue that takes less than its share, by requests of [`Settings::min_bytes`] at
//!   most, waits for the turn under way and no other, while all others always have something to do.
//!   Who takes more than that waits in its place. At the start, when all are kicked at once, each
//!   other VM is before it twice at most; VMs that come back are behind as far as it is, and each
//!   of them may be before it. (By simulation of fourteen VMs.)
//! - After a piece, [`LOOKS`] other queues are looked at for each of its requests, and more as its
//!   bytes pay for: each is looked at within `N ÷ LOOKS` requests, to the piece's end. Between
//!   turns every polled queue is looked at that isn't known to wait: these loads don't depend on
//!   each other, so their cache misses overlap. One such scan finds several turns: each that no
//!   other queue could have instead, whatever came to it meanwhile. So who waits is seen by the
//!   next scan, and its turn is the same as if every turn had one.
//! - A queue that is stuck has the turn after its limit, the piece that is under way and the next
//!   one: each of them [`BATCH_COST`] and a request's piece at most.
//! - Within any time `t` a VM is served `limit × (t + burst)` and a piece at most, of one request.
//!   Limits are of what was asked for and moved; turns and shares, of what it cost.
//! - No queue is in no state or in two: it is polled or its kicks are on, and what comes while they
//!   are re-armed is seen ([`Schedule::sleep`]). It is in no list, so it can't be in one twice.
//! - Nothing that the guest, time or the caller does makes it panic or overflow, or loop for more
//!   than `N` steps, for `N` places of queues. Time that goes backwards counts as none.
//!
//! It knows no ring and no clock: times are TSC ticks that the caller reads. It doesn't bound how
//! long a piece takes, which is the caller's.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod balance;
mod delay;
pub mod handover;
mod patience;
#[cfg(any(test, feature = "process"))]
mod process;
mod queue;
mod schedule;
mod settings;
mod share;
mod turn;

pub use delay::Delay;
pub use schedule::Schedule;
pub use settings::Settings;
pub use share::{Debt, MAX_WEIGHT, Place, Share, cores_at_a_time};
pub use turn::{
    BATCH, BATCH_COST, BYTES_PER_LOOK, Batch, LEAST_COST, LOOKS, Look, Next, Piece, Statistics,
    Turn, Wait,
};
