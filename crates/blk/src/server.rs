//! One queue of a disk: a turn takes a chain or goes on with the one that isn't all asked for yet.
//!
//! A request has three stages. It is *open* while pieces of it are to be asked for: one request of
//! a queue at most, the last one taken. Then it only waits for the back end. When nothing is
//! outstanding it is over: its status byte is stored, and its chain goes into the used ring. The
//! caller publishes ([`Queue::publish`] by [`Server::queue`]) when its turns end, once for all.

use virtqueue::{Chain, DEFAULT_SIZE, Edge, Head, Queue, Seen};
use window::{Span, Window};

use crate::backend::{Backend, Completion, Submitted, Token};
use crate::config::{Config, Features};
use crate::framing::{Simple, answer, header, simple, status_byte, used};
use crate::keeping::Keep;
use crate::outcome::{Outcome, Statistics};
use crate::pieces::Piece;
use crate::request::{Header, Rules, Status};
use crate::running::{Broken, Running};
use crate::slots::{Job, Slots};
use crate::taken::Taken;
use crate::{DESCRIPTOR_CHARGE, LEAST_CHARGE, MARK_CHARGE};

mod framed;
mod places;
mod turns;

use framed::Unserved;
use places::{Asked, Open};

/// Serves one queue of at most `RING` elements, with at most `N` requests in flight. `K` keeps
/// records of them.
#[derive(Debug)]
pub struct Server<const N: usize, const RING: usize = DEFAULT_SIZE, K = ()> {
    config: Config,
    /// In its tokens: which server of the back end it is.
    number: u16,
    running: Option<Running<RING, K>>,
    slots: Slots<N>,
    open: Option<Open>,
    /// Of the open request, or one before.
    chain: Chain,
    /// The driver puts chains into tables of their own: so it did last, and may.
    in_tables: bool,
    /// What was read last of a chain that wasn't taken then.
    untaken: Option<Seen>,
    /// A request that was taken just now.
    unserved: Option<Unserved>,
    /// With records: the last chain that was taken.
    last: Head,
    piece: Piece,
    outstanding: u64,
    /// The charge for a chain itself that was taken and hasn't been, as the back end was full.
    owed: u64,
    statistics: Statistics,
}

impl<const N: usize, const RING: usize, K: Keep> Server<N, RING, K> {
    /// A server without a queue. `number` tells the servers of one back end apart.
    pub fn new(config: Config, number: u16) -> Self {
        let chain = Chain::new();
        Self {
            config,
            number,
            running: None,
            slots: Slots::new(),
            open: None,
            in_tables: false,
            untaken: None,
            unserved: None,
            last: chain.head(),
            chain,
            piece: Piece::new(),
            outstanding: 0,
            owed: 0,
            statistics: Statistics::default(),
        }
    }

    /// Serves this queue from now on, for a driver that accepted these features.
    pub fn start(&mut self, queue: Queue<RING>, accepted: Features)
    where
        K: Default,
    {
        self.start_with(queue, accepted, K::default());
    }

    /// The same, with records: requests that they say were left are done before others.
    pub fn start_with(&mut self, queue: Queue<RING>, accepted: Features, keep: K) {
        self.stop();
        let rules = Rules::new(&self.config, accepted);
        self.in_tables = matches!(&queue, Queue::Split(queue) if queue.has_tables());
        self.running = Some(Running { queue, keep, rules, broken: None });
    }

    /// Serves no queue any more: for a reset of the device or of the queue. Requests in flight are
    /// forgotten. The driver may see the reset done when [`Self::outstanding`] is 0: until then the
    /// back end may still access the guest's memory.
    pub fn stop(&mut self) -> Option<Queue<RING>> {
        // Of no request there is nothing to forget: a reset of what doesn't run costs nothing.
        if self.slots.used() > 0 {
            self.slots.clear();
        }
        (self.open, self.owed) = (None, 0);
        self.running.take().map(|running| running.queue)
    }

    /// The queue that is served: to publish, to ask whether the driver wants a call, for kicks.
    pub fn queue(&mut self) -> Option<&mut Queue<RING>> {
        self.running.as_mut().map(|running| &mut running.queue)
    }

    /// Shows the driver what was answered. With records it is this that publishes, and not
    /// [`Self::queue`].
    #[inline]
    pub fn publish(&mut self) {
        let last = self.last;
        self.running.iter_mut().for_each(|running| running.publish(last));
    }

    /// As [`Self::publish`], then, if it `asks`, [`Queue::wants_call`].
    #[inline(always)]
    pub fn publish_and_ask(&mut self, asks: bool) -> bool {
        let Some(running) = &mut self.running else { return false };
        if K::KEEPS {
            running.publish(self.last);
            return asks && running.queue.wants_call();
        }
        running.queue.publish_and_ask(asks)
    }

    /// Has a request pieces that weren't asked for yet? A turn asks for the next one, and takes
    /// nothing.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Requests that an earlier server left, which weren't taken up yet. A turn takes up the next
    /// one before it takes any other.
    pub fn left(&self) -> u16 {
        self.running.as_ref().map_or(0, Running::left)
    }

    /// What waits for a turn, by one load of the ring and without a change of it: chains, and the
    /// request that has pieces left. A ring that is broken shows 1, as its turn finds that out.
    #[inline]
    pub fn waiting(&self) -> u16 {
        let Some(running) = &self.running else { return 0 };
        let chains = running.queue.available().unwrap_or(1);
        if self.open.is_none() && !running.has_left() {
            return chains;
        }
        chains.saturating_add(self.open.is_some().into()).saturating_add(running.left())
    }

    /// Where its ring ends, if that is all that a turn could find more in: until a turn, or a stop,
    /// nothing waits as long as it ends there.
    #[inline]
    pub fn edge(&self) -> Option<Edge> {
        let running = self.running.as_ref()?;
        if self.open.is_some() || running.has_left() { None } else { running.queue.edge() }
    }

    /// How much waits, of which `waiting` says the number as above: as [`Queue::backlog`], with
    /// `before` what this said last.
    #[inline]
    pub fn backlog(&self, waiting: u16, before: u16) -> u16 {
        self.running.as_ref().map_or(waiting, |running| running.queue.backlog(waiting, before))
    }

    /// Whether it is known without a load that chains wait. `false` says nothing.
    #[inline]
    pub fn has_offered(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.queue.is_offered())
    }

    /// Requests that are taken and not answered.
    pub fn in_flight(&self) -> u16 {
        self.slots.used()
    }

    /// Operations that the back end has accepted and not completed, those of forgotten requests
    /// too.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// What was done so far. A reset doesn't clear it.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What came of the chain that was just taken, with the charge for its descriptors, and for the
    /// pages that it has marked as changed. It is owed if the back end was full.
    #[inline(always)]
    fn with_chain(&mut self, outcome: Outcome) -> Outcome {
        let chain = &self.chain;
        let pages = self.running.as_ref().map_or(0, |running| running.queue.log_pages(chain));
        let owed = chain.descriptors() * DESCRIPTOR_CHARGE + pages * MARK_CHARGE;
        if outcome.charge == 0 {
            self.owed = owed;
            return outcome;
        }
        Outcome { charge: outcome.charge.max(owed), ..outcome }
    }

    /// A turn that takes up what an earlier server left.
    #[cold]
    #[inline(never)]
    fn serve_left<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        if !self.slots.has_room() {
            return Ok(Outcome { full: true, ..Outcome::default() });
        }
        // It is recorded, as is all that is completed while some are left: one batch may have both.
        let Some(running) = &mut self.running else { return Ok(Outcome::default()) };
        let Some(head) = running.next_left() else { return Ok(Outcome::default()) };
        if let Err(broken) = running.queue.take_again(window, head, &mut self.chain) {
            return Err(self.broke(broken.into()));
        }
        let outcome = self.taken(backend)?;
        if outcome.completed > 0 {
            self.running.iter_mut().for_each(|running| running.keep.complete(head));
        }
        Ok(outcome)
    }

    /// A turn of a queue that is broken, or has a request with pieces left.
    #[cold]
    #[inline(never)]
    fn serve_open<B: Backend>(&mut self, backend: &mut B) -> Result<Outcome, Broken> {
        if let Some(broken) = self.running.as_ref().and_then(|running| running.broken) {
            return Err(broken);
        }
        let Some(open) = self.open else { return Ok(Outcome::default()) };
        let outcome = self.go_on(open, backend);
        if outcome.charge == 0 {
            return Ok(outcome);
        }
        let owed = core::mem::take(&mut self.owed);
        Ok(Outcome { charge: outcome.charge.max(owed), ..outcome })
    }

    /// Takes note of an operation's end. True if a request is answered by it. Who polls a back end
    /// of several servers gives each completion to the one that [`Token::server`] tells.
    pub fn finish(&mut self, completion: Completion) -> bool {
        let Completion { token, result } = completion;
        if token.server != self.number {
            self.statistics.stale += 1;
            return false;
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        let Some(place) = self.slots.find(token) else {
            self.statistics.stale += 1;
            return false;
        };
        if let Some(job) = self.slots.job(place) {
            job.outstanding = job.outstanding.saturating_sub(1);
            job.note(result);
        }
        self.close(place)
    }

    /// Takes up to `limit` completions of a back end that serves no other queue.
    /// Returns how many requests were answered.
    pub fn collect<B: Backend>(&mut self, backend: &mut B, limit: u32) -> u32 {
        let completions = (0..limit).map_while(|_| backend.poll());
        completions.fold(0, |answered, completion| answered + u32::from(self.finish(completion)))
    }

    #[cold]
    fn broke(&mut self, broken: Broken) -> Broken {
        self.running.iter_mut().for_each(|running| running.broken = Some(broken));
        broken
    }

    /// Serves the chain that was just taken.
    #[inline(never)]
    fn taken<B: Backend>(&mut self, backend: &mut B) -> Result<Outcome, Broken> {
        let Server { running, chain, slots, outstanding, statistics, number, .. } = self;
        let (Some(running), Some(token)) = (running, slots.next_token(*number)) else {
            // There is a queue, and there was a place when it was taken.
            return Ok(Outcome::default());
        };
        self.last = chain.head();
        // A chain is shorter than 2^32 bytes, so the used length has room for the status byte, too.
        if chain.writable_len() == 0 {
            return Err(self.broke(Broken::NoStatus));
        }
        let Some(header) = header(chain) else {
            let outcome = self.answer_chain(Status::IoError, 0, 0);
            return Ok(self.with_chain(outcome));
        };
        let Some(Simple { head, operation, bytes, reads, status, room }) =
            simple(chain, header, &running.rules)
        else {
            let outcome = self.taken_otherwise(header, token, Some(backend));
            return Ok(self.with_chain(outcome));
        };
        let submitted = backend.submit(token, operation);
        if submitted == Submitted::Full {
            let outcome = self.taken_otherwise(header, token, None::<&mut B>);
            return Ok(self.with_chain(outcome));
        }
        statistics.moved(operation, bytes);
        let mut completed = 1;
        if let Submitted::Done(result) = submitted {
            let (code, written) = answer(result, reads);
            running.answer(head, &status, code, used(written, room), statistics);
        } else {
            let _ = slots.insert(Job::under_way(head, status, reads, room));
            running.keep(head);
            *outstanding += 1;
            completed = 0;
        }
        let bytes = u64::from(bytes);
        let charge = bytes.max(LEAST_CHARGE);
        let outcome = Outcome { bytes, charge, asked: 1, completed, more: true, full: false };
        Ok(self.with_chain(outcome))
    }

    /// Serves the chain that was just taken and has this header, whatever it asks for. Without a
    /// back end: it is full, and asked later.
    #[cold]
    #[inline(never)]
    fn taken_otherwise<B: Backend>(
        &mut self,
        header: Header,
        token: Token,
        backend: Option<&mut B>,
    ) -> Outcome {
        let Some(running) = &self.running else { return Outcome::default() };
        match (Taken::of(&self.chain, header, &running.rules, &self.config), backend) {
            (Taken::Work(work, reads), Some(backend)) => self.begin(token, work, reads, backend),
            (Taken::Work(work, reads), None) => {
                let asked = Asked { submitted: Submitted::Full, bytes: 0, rest: None };
                self.keep(work, reads, asked)
            }
            (Taken::Answer(status, written), _) => self.answer_chain(status, written, 0),
        }
    }

    /// Answers the chain that was just taken.
    #[inline(never)]
    fn answer_chain(&mut self, status: Status, written: u32, bytes: u64) -> Outcome {
        let head = self.chain.head();
        let byte = status_byte(&self.chain);
        let len = used(written, self.chain.writable_len().saturating_sub(1));
        let completed = byte.is_some_and(|byte| self.answer(head, &byte, status, len)).into();
        let charge = bytes.max(LEAST_CHARGE);
        Outcome { bytes, charge, asked: 1, completed, more: true, full: false }
    }

    /// Answers a chain, if the queue isn't broken.
    #[inline]
    fn answer(&mut self, head: Head, byte: &Span, status: Status, len: u32) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| running.broken.is_none()) else {
            return false;
        };
        running.answer(head, byte, status, len, &mut self.statistics);
        true
    }
}
