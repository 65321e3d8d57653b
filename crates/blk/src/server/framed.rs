//! Requests whose chains are of three buffers, header, data and status, and which are one piece:
//! nearly all. They are served by a loop of their own, which needs all registers.
//!
//! Guarantees: a request that it can't serve is handed to the general way as it is, with what was
//! read of it; nothing is read twice.

use virtqueue::{Framed, Queue};
use window::Window;

use super::Server;
use crate::backend::{Backend, Submitted};
use crate::framing::{Simple, answer, header_of_framed, simple_of_framed, used};
use crate::keeping::Keep;
use crate::outcome::{Budget, Outcome};
use crate::request::{HEADER_BYTES, Header};
use crate::running::{Broken, Running, publish};
use crate::slots::Job;
use crate::{DESCRIPTOR_CHARGE, LEAST_CHARGE};

/// Why the loop ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The ring is empty.
    Empty,
    /// The budget is used up.
    Budget,
    /// Too many requests are in flight.
    NoPlace,
    /// A chain wasn't taken: [`Server::untaken`] is what was read of it.
    Untaken,
    /// One was taken, and wasn't served: [`Server::unserved`].
    Taken,
    /// It isn't the loop's to serve.
    Otherwise,
}

/// What the loop did, as an [`Outcome`] says it.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub bytes: u64,
    pub charge: u64,
    pub asked: u32,
    pub completed: u32,
}

/// A request that isn't a simple one, or for which the back end has no room.
#[derive(Debug)]
pub(super) struct Unserved {
    framed: Framed,
    /// If that could be read.
    header: Option<Header>,
    is_full: bool,
}

impl<const N: usize, const RING: usize, K: Keep> Server<N, RING, K> {
    /// Serves requests up to the first one that is otherwise, or doesn't lie in a `TABLE` of its
    /// own, or does.
    #[inline(never)]
    pub(super) fn serve_framed<const TABLE: bool, B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
        budget: Budget,
    ) -> (Done, Stop) {
        const HEADER: u32 = HEADER_BYTES as u32;
        // Its descriptors are never what it costs most by.
        const { assert!(LEAST_CHARGE >= 3 * DESCRIPTOR_CHARGE) };
        let Server { running, slots, open, outstanding, statistics, last, number, untaken, .. } =
            self;
        let running = running
            .as_mut()
            .filter(|running| running.broken.is_none() && open.is_none() && !running.has_left());
        let Some(Running { queue: Queue::Split(queue), keep, rules, .. }) = running else {
            return (Done::default(), Stop::Otherwise);
        };
        let Done { mut bytes, mut charge, mut asked, mut completed } = Done::default();
        let stop = loop {
            let Some(token) = slots.next_token(*number) else { break Stop::NoPlace };
            if K::KEEPS && keep.has_batch() {
                publish(queue, keep, *last);
            }
            let Some(framed) = queue.take_framed::<HEADER, 1, TABLE>(window, untaken) else {
                break if untaken.is_none() { Stop::Empty } else { Stop::Untaken };
            };
            if K::KEEPS {
                *last = framed.head;
            }
            let header = header_of_framed(&framed);
            let simple = header.and_then(|header| simple_of_framed(&framed, header, rules));
            let Some(Simple { operation, bytes: moved, reads, status, room, .. }) = simple else {
                queue.hold_framed(&framed);
                self.unserved = Some(Unserved { framed, header, is_full: false });
                break Stop::Taken;
            };
            match backend.submit(token, operation) {
                Submitted::Full => {
                    queue.hold_framed(&framed);
                    self.unserved = Some(Unserved { framed, header, is_full: true });
                    break Stop::Taken;
                }
                Submitted::Done(result) => {
                    let (code, written) = answer(result, reads);
                    let _ = status.store_u8(0, code as u8);
                    queue.use_framed(&framed, used(written, room));
                    statistics.answered(code);
                    completed += 1;
                }
                Submitted::Accepted => {
                    let head = framed.head;
                    queue.hold_framed(&framed);
                    let _ = slots.insert(Job::under_way(head, status, reads, room));
                    if K::KEEPS {
                        publish(queue, keep, head);
                        keep.take(head);
                    }
                    *outstanding += 1;
                }
            }
            statistics.moved(operation, moved);
            bytes += u64::from(moved);
            charge += u64::from(moved).max(LEAST_CHARGE);
            asked += 1;
            if budget.is_used_up(asked, charge) {
                break Stop::Budget;
            }
        };
        (Done { bytes, charge, asked, completed }, stop)
    }

    /// A turn for a request that the loop took and didn't serve.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_unserved<B: Backend>(
        &mut self,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        let Some(unserved) = self.unserved.take() else { return Ok(Outcome::default()) };
        let Unserved { framed, header, is_full } = unserved;
        framed.put(&mut self.chain);
        match (header, self.slots.next_token(self.number)) {
            (Some(header), Some(token)) => {
                let backend = (!is_full).then_some(backend);
                Ok(self.taken_otherwise(header, token, backend))
            }
            _ => self.taken(backend),
        }
    }
}
