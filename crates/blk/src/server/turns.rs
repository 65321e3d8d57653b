//! Turns of a queue: most requests by their own loop (`framed`), what that leaves one by one.
//!
//! Guarantees: what the loop has read or taken and didn't serve is the next turn's, before anything
//! else is taken.

use virtqueue::{Queue, Seen};
use window::Window;

use super::Server;
use super::framed::{Done, Stop};
use crate::backend::Backend;
use crate::keeping::Keep;
use crate::outcome::{Budget, Outcome};
use crate::running::{Broken, Running};

impl<const N: usize, const RING: usize, K: Keep> Server<N, RING, K> {
    /// A turn: goes on with the open request by one piece, or takes a chain and does its first one.
    /// What it answers isn't published yet.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on until the server is started anew. Nothing is taken or answered in
    /// that time.
    pub fn serve<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        let budget = Budget { requests: 1, charge: 0 };
        let (done, ended) = self.serve_some(window, backend, budget);
        ended.map(|()| done)
    }

    /// Several turns, while there is something to do: one at least, and no other one once the
    /// `budget` is used up. Gives what they did together, with `more` and `full` as the last one
    /// says; and that the queue is broken, as [`Self::serve`] says, be it after some of them.
    #[inline(always)]
    pub fn serve_some<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
        budget: Budget,
    ) -> (Outcome, Result<(), Broken>) {
        let (done, stop) = self.serve_straight(window, backend, budget);
        match stop {
            Stop::Empty | Stop::Budget => (done, Ok(())),
            _ => {
                let (rest, ended) = self.serve_on(stop, window, backend, budget.less(&done));
                (done.and(rest), ended)
            }
        }
    }

    /// Serves what the loop for most requests can, and says why it stopped.
    #[inline(always)]
    fn serve_straight<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
        budget: Budget,
    ) -> (Outcome, Stop) {
        let (done, stop) = match self.in_tables {
            true => self.serve_framed::<true, B>(window, backend, budget),
            false => self.serve_framed::<false, B>(window, backend, budget),
        };
        let Done { bytes, charge, asked, completed } = done;
        let more = stop == Stop::Budget;
        (Outcome { bytes, charge, asked, completed, more, full: false }, stop)
    }

    /// The same from where the loop for most requests has stopped.
    #[inline(never)]
    fn serve_on<B: Backend>(
        &mut self,
        mut stop: Stop,
        window: &Window,
        backend: &mut B,
        budget: Budget,
    ) -> (Outcome, Result<(), Broken>) {
        let mut done = Outcome::default();
        loop {
            let one = match stop {
                Stop::Empty | Stop::Budget => return (done, Ok(())),
                Stop::NoPlace => Ok(Outcome { full: true, ..Outcome::default() }),
                Stop::Untaken => {
                    let seen = self.untaken.take().unwrap_or_default();
                    self.serve_other(&seen, window, backend)
                }
                Stop::Taken => self.serve_unserved(backend),
                Stop::Otherwise => self.serve_otherwise(window, backend),
            };
            match one {
                Ok(one) => done = done.and(one),
                Err(broken) => return (done, Err(broken)),
            }
            // A turn that leaves more to do has a charge.
            if !done.more || budget.is_used_up(done.asked, done.charge) {
                return (done, Ok(()));
            }
            let is_split = |running: &Running<RING, K>| matches!(running.queue, Queue::Split(_));
            if !self.running.as_ref().is_some_and(is_split) {
                stop = Stop::Otherwise;
                continue;
            }
            let left = budget.less(&done);
            let next;
            (next, stop) = self.serve_straight(window, backend, left);
            done = done.and(next);
        }
    }

    /// A turn of a queue that the loop doesn't serve: of another ring, or with something that comes
    /// first.
    fn serve_otherwise<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        let Some(running) = &mut self.running else { return Ok(Outcome::default()) };
        if running.broken.is_some() || self.open.is_some() {
            self.serve_open(backend)
        } else if running.left() > 0 {
            self.serve_left(window, backend)
        } else if self.slots.has_room() {
            self.serve_other(&Seen::default(), window, backend)
        } else {
            Ok(Outcome { full: true, ..Outcome::default() })
        }
    }

    /// A turn for a chain that isn't of three buffers, or none.
    #[inline(never)]
    fn serve_other<B: Backend>(
        &mut self,
        seen: &Seen,
        window: &Window,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        let Some(running) = &mut self.running else { return Ok(Outcome::default()) };
        // What was answered with a record is published before anything is that has none.
        if K::KEEPS && running.keep.has_batch() {
            running.publish(self.last);
        }
        if let (Queue::Split(queue), Some(in_table)) = (&running.queue, seen.in_table()) {
            self.in_tables = in_table && queue.has_tables();
        }
        match running.queue.take_other(seen, window, &mut self.chain) {
            Ok(true) => self.taken(backend),
            Ok(false) => Ok(Outcome::default()),
            Err(broken) => Err(self.broke(broken.into())),
        }
    }
}
