//! One queue of a disk: a turn takes a chain or goes on with the one that isn't all asked for yet.
//!
//! A request has three times: it is *open* while pieces of it are to be asked for (one request of a
//! queue at most, the last one taken), then only waits for the back end, and is over when nothing is
//! outstanding. Then its status byte is stored, and its chain goes into the used ring. The caller
//! publishes ([`Queue::publish`] by [`Server::queue`]) when its turn ends, once for all.

use thiserror::Error;
use virtqueue::{Chain, DEFAULT_SIZE, Queue};
use window::{Span, Window};

use crate::LEAST_CHARGE;
use crate::backend::{Backend, Completion, Failure, Submitted};
use crate::config::{Config, Features, SERIAL_BYTES};
use crate::pieces::{Cursor, Piece, Work};
use crate::request::{HEADER_BYTES, Header, RANGE_BYTES, Request, Rules, Status};
use crate::slots::{Job, Slots};

/// Why a queue can't be served any more. The driver must reset the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The ring is.
    #[error(transparent)]
    Ring(#[from] virtqueue::Broken),
    /// A chain has no writable byte, so that it can't be answered.
    #[error("a request has no room for its status byte")]
    NoStatus,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of data that the back end was asked to move, or to touch.
    pub bytes: u64,
    /// Bytes to charge the queue with: [`LEAST_CHARGE`] at least if there was anything to do.
    pub charge: u64,
    /// Requests that were answered: 0 or 1. [`Server::in_flight`] doesn't count them any more.
    pub completed: u32,
    /// Another turn may find work. Else the ring was empty, or [`Self::full`] says why not.
    pub more: bool,
    /// The back end has no room, or too many requests are in flight: a completion must come first.
    pub full: bool,
}

/// What a server did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests answered.
    pub requests: u64,
    /// Of them, those not answered with OK.
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
    fn asked(&mut self, work: &Work, bytes: u64) {
        match work {
            Work::Read { .. } => self.read += bytes,
            Work::Write { .. } => self.written += bytes,
            Work::Flush => self.flushes += 1,
            Work::Range { .. } => self.touched += bytes,
        }
    }
}

/// The request that has pieces left. Its chain is the server's.
#[derive(Clone, Copy, Debug)]
struct Open {
    place: u16,
    work: Work,
}

/// What became of a chain that was taken.
enum Taken {
    /// There is work for the back end.
    Opened(Open),
    /// It is answered, and this many bytes were written besides the status.
    Answered(Status, u32),
}

/// The queue that is served, and what was negotiated for it.
#[derive(Debug)]
struct Running<const RING: usize> {
    queue: Queue<RING>,
    rules: Rules,
    broken: Option<Broken>,
}

/// Serves one queue of at most `RING` elements, with at most `N` requests in flight.
#[derive(Debug)]
pub struct Server<const N: usize, const RING: usize = DEFAULT_SIZE> {
    config: Config,
    /// In its tokens: which server of the back end it is.
    number: u16,
    running: Option<Running<RING>>,
    slots: Slots<N>,
    open: Option<Open>,
    /// Of the open request, or the one before.
    chain: Chain,
    piece: Piece,
    outstanding: u64,
    statistics: Statistics,
}

impl<const N: usize, const RING: usize> Server<N, RING> {
    /// A server without a queue. `number` tells the servers of one back end apart.
    pub fn new(config: Config, number: u16) -> Self {
        Self {
            config,
            number,
            running: None,
            slots: Slots::new(),
            open: None,
            chain: Chain::new(),
            piece: Piece::new(),
            outstanding: 0,
            statistics: Statistics::default(),
        }
    }

    /// Serves this queue from now on, for a driver that accepted these features.
    pub fn start(&mut self, queue: Queue<RING>, accepted: Features) {
        self.stop();
        let rules = Rules::new(&self.config, accepted);
        self.running = Some(Running { queue, rules, broken: None });
    }

    /// Serves no queue any more: for a reset of the device or of the queue. Requests in flight are
    /// forgotten. The driver may see the reset done when [`Self::outstanding`] is 0: until then the
    /// back end may still access the guest's memory.
    pub fn stop(&mut self) -> Option<Queue<RING>> {
        self.slots.clear();
        self.open = None;
        self.running.take().map(|running| running.queue)
    }

    /// The queue that is served: to publish, to ask whether the driver wants a call, for kicks.
    pub fn queue(&mut self) -> Option<&mut Queue<RING>> {
        self.running.as_mut().map(|running| &mut running.queue)
    }

    /// What waits for a turn, by one load of the ring and without a change of it: chains, and the
    /// request that has pieces left. A ring that is broken shows 1, as its turn finds that out.
    #[inline]
    pub fn waiting(&self) -> u16 {
        let Some(running) = &self.running else { return 0 };
        let chains = running.queue.available().unwrap_or(1);
        chains.saturating_add(self.open.is_some().into())
    }

    /// Requests that are taken and not answered.
    pub fn in_flight(&self) -> u16 {
        self.slots.used()
    }

    /// Operations that the back end has accepted and not completed, those of forgotten requests too.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// What was done so far. A reset doesn't clear it.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// A turn: goes on with the open request by one piece, or takes a chain and does its first one.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on until the server is started anew. Nothing is taken or answered then.
    pub fn serve<B: Backend>(
        &mut self,
        window: &Window,
        backend: &mut B,
    ) -> Result<Outcome, Broken> {
        let Some(running) = &mut self.running else { return Ok(Outcome::default()) };
        if let Some(broken) = running.broken {
            return Err(broken);
        }
        if self.open.is_some() {
            return Ok(self.piece(backend));
        }
        if self.slots.full() {
            return Ok(Outcome { full: true, ..Outcome::default() });
        }
        match running.queue.take(window, &mut self.chain) {
            Ok(false) => return Ok(Outcome::default()),
            Ok(true) => {}
            Err(broken) => return Err(self.broke(broken.into())),
        }
        match self.taken() {
            Ok(Taken::Opened(open)) => {
                self.open = Some(open);
                Ok(self.piece(backend))
            }
            Ok(Taken::Answered(status, written)) => {
                if let Some(byte) = status_byte(&self.chain) {
                    let head = self.chain.head();
                    self.answer(&Job::new(head, byte, 0), status, written);
                }
                Ok(Outcome { charge: LEAST_CHARGE, completed: 1, more: true, ..Outcome::default() })
            }
            Err(broken) => Err(self.broke(broken)),
        }
    }

    /// Takes note of an operation's end. True if a request is answered by it.
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

    fn broke(&mut self, broken: Broken) -> Broken {
        if let Some(running) = &mut self.running {
            running.broken = Some(broken);
        }
        broken
    }

    /// Looks at the chain that was just taken.
    fn taken(&mut self) -> Result<Taken, Broken> {
        let Some(running) = &self.running else { return Err(Broken::NoStatus) };
        let rules = running.rules;
        let Some(status) = status_byte(&self.chain) else { return Err(Broken::NoStatus) };
        // A chain is shorter than 2^32 bytes, so the used length has room for the status byte, too.
        let writable = self.chain.writable_len().saturating_sub(1);
        let mut header = [0; HEADER_BYTES];
        let refused = |status| Ok(Taken::Answered(status, 0));
        if self.chain.read(0, &mut header).is_err() {
            return refused(Status::IoError);
        }
        let header = Header::parse(&header);
        let readable = self.chain.readable_len().saturating_sub(HEADER_BYTES as u32);
        let request = match rules.request(header, readable.into(), writable.into()) {
            Ok(request) => request,
            Err(status) => return refused(status),
        };
        let mut reads = 0;
        let work = match request {
            Request::Read { .. } | Request::Write { .. } if writable.max(readable) == 0 => {
                return refused(Status::Ok);
            }
            Request::Read { sector } => {
                reads = writable;
                Work::Read { sector, data: Cursor::new(0, writable.into()) }
            }
            Request::Write { sector } => {
                Work::Write { sector, data: Cursor::new(HEADER_BYTES as u64, readable.into()) }
            }
            Request::Flush => Work::Flush,
            Request::Id => {
                let serial = &self.config.parameters().serial;
                let count = writable.min(SERIAL_BYTES as u32) as usize;
                return Ok(match self.chain.write(0, &serial[..count]) {
                    Ok(()) => Taken::Answered(Status::Ok, count as u32),
                    Err(_) => Taken::Answered(Status::IoError, 0),
                });
            }
            Request::Range { discard } => {
                let mut range = [0; RANGE_BYTES];
                if self.chain.read(HEADER_BYTES as u32, &mut range).is_err() {
                    return refused(Status::IoError);
                }
                match rules.range(discard, &range) {
                    Ok((_, 0, _)) => return refused(Status::Ok),
                    Ok((sector, sectors, change)) => Work::Range { sector, sectors, change },
                    Err(status) => return refused(status),
                }
            }
        };
        match self.slots.insert(Job::new(self.chain.head(), status, reads)) {
            Some(place) => Ok(Taken::Opened(Open { place, work })),
            None => refused(Status::IoError),
        }
    }

    /// Asks the back end for the open request's next piece.
    fn piece<B: Backend>(&mut self, backend: &mut B) -> Outcome {
        let (Some(open), Some(running)) = (&mut self.open, &self.running) else {
            return Outcome::default();
        };
        let place = open.place;
        let token = self.slots.token(self.number, place);
        let Some(job) = self.slots.job(place) else { return Outcome::default() };
        // After a failure the rest isn't asked for: the request fails anyway.
        let next = match job.failed {
            None => open.work.next(&self.chain, &mut self.piece, running.rules.durable),
            Some(_) => None,
        };
        let mut bytes = 0;
        let mut rest = None;
        match next {
            None => job.note(Err(Failure::Io)),
            Some(next) => {
                match backend.submit(token, next.operation) {
                    Submitted::Full => return Outcome { full: true, ..Outcome::default() },
                    Submitted::Accepted => {
                        job.outstanding += 1;
                        self.outstanding += 1;
                    }
                    Submitted::Done(result) => job.note(result),
                }
                bytes = next.bytes;
                rest = next.rest.filter(|_| job.failed.is_none());
                self.statistics.asked(&open.work, bytes);
            }
        }
        let charge = bytes.max(LEAST_CHARGE);
        if let Some(work) = rest {
            open.work = work;
            return Outcome { bytes, charge, completed: 0, more: true, full: false };
        }
        job.open = false;
        self.open = None;
        let completed = self.close(place).into();
        Outcome { bytes, charge, completed, more: true, full: false }
    }

    /// Answers the request at a place if it is over. True if it was answered.
    fn close(&mut self, place: u16) -> bool {
        if !self.slots.job(place).is_some_and(|job| job.is_over()) {
            return false;
        }
        let Some(job) = self.slots.remove(place) else { return false };
        let (status, written) = job.answer();
        self.answer(&job, status, written)
    }

    /// Stores the status byte, and puts the chain into the used ring. Not into a broken one.
    fn answer(&mut self, job: &Job, status: Status, written: u32) -> bool {
        let Some(Running { queue, broken: None, .. }) = &mut self.running else { return false };
        // The span is a byte of its own: the store can't be outside of it.
        let _ = job.status.write(0, &[status as u8]);
        queue.complete(job.head, written.saturating_add(1));
        self.statistics.requests += 1;
        self.statistics.failed += u64::from(status != Status::Ok);
        true
    }
}

/// The last writable byte of a chain.
fn status_byte(chain: &Chain) -> Option<Span> {
    let last = chain.writable().iter().rev().find(|span| !span.is_empty())?;
    last.sub(last.len() - 1, 1)
}
