//! The requests that a server has taken and not answered, and which completions are theirs.
//!
//! A place is known by its number and its *sequence*, which grows whenever the place is given up.
//! So a completion that comes after a reset, or twice, is known to be nobody's, even if the place
//! is another request's by then. Only one that comes 2^32 requests of the same place too late would
//! be mistaken; who drains at a reset (`Server::outstanding`) never gets there.

use alloc::boxed::Box;
use arrayvec::ArrayVec;
use virtqueue::Head;
use window::Span;

use crate::backend::{Failure, Token};

/// What is left to know of a request once its data is under way.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Of its chain.
    pub head: Head,
    /// The chain's last writable byte.
    pub status: Span,
    /// Bytes that are written to the guest if all goes well.
    pub reads: u32,
    /// Writable bytes in front of the status byte.
    pub room: u32,
    /// Operations that the back end hasn't completed.
    pub outstanding: u32,
    /// There are pieces that the back end wasn't asked for yet.
    pub open: bool,
    /// How its operations ended so far: the first failure counts.
    pub result: Result<(), Failure>,
}

impl Job {
    /// A request that the back end wasn't asked for yet.
    pub fn new(head: Head, status: Span, reads: u32, room: u32) -> Self {
        Self { head, status, reads, room, outstanding: 0, open: true, result: Ok(()) }
    }

    /// A request whose only operation the back end has accepted.
    #[inline]
    pub fn under_way(head: Head, status: Span, reads: u32, room: u32) -> Self {
        Self { head, status, reads, room, outstanding: 1, open: false, result: Ok(()) }
    }

    /// Takes note of how an operation ended.
    pub fn note(&mut self, result: Result<(), Failure>) {
        self.result = self.result.and(result);
    }

    /// Whether there is nothing to wait for.
    pub fn is_over(&self) -> bool {
        !self.open && self.outstanding == 0
    }
}

/// A request's place.
#[derive(Clone, Copy, Debug)]
struct Slot {
    sequence: u32,
    job: Option<Job>,
}

/// Places for a fixed number of requests: allocated once, so that a server isn't too large for the
/// stack that it is made on.
#[derive(Debug)]
pub struct Slots<const N: usize> {
    slots: Box<[Slot]>,
    free: ArrayVec<u16, N>,
}

impl<const N: usize> Slots<N> {
    /// Fails to compile for more places than a token can tell.
    const FITS: () = assert!(N > 0 && N <= 1 << 15);

    /// All free.
    pub fn new() -> Self {
        const { Self::FITS };
        let slots = (0..N).map(|_| Slot { sequence: 0, job: None }).collect();
        Self { slots, free: (0..N as u16).rev().collect() }
    }

    /// Requests that have a place.
    pub fn used(&self) -> u16 {
        (N - self.free.len()) as u16
    }

    /// Is there a place left?
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a request a place, if there is one.
    pub fn insert(&mut self, job: Job) -> Option<u16> {
        let place = self.free.pop()?;
        self.slots.get_mut(usize::from(place))?.job = Some(job);
        Some(place)
    }

    /// The request at a place.
    pub fn job(&mut self, place: u16) -> Option<&mut Job> {
        self.slots.get_mut(usize::from(place))?.job.as_mut()
    }

    /// The token for operations of the request at a place.
    pub fn token(&self, server: u16, place: u16) -> Token {
        let sequence = self.slots.get(usize::from(place)).map_or(0, |slot| slot.sequence);
        Token { server, slot: place, sequence }
    }

    /// The token of the next request that gets a place, if there is one.
    pub fn next_token(&self, server: u16) -> Option<Token> {
        self.free.last().map(|place| self.token(server, *place))
    }

    /// The place that a token is of, if its request is still there and waits for it.
    pub fn find(&self, token: Token) -> Option<u16> {
        let slot = self.slots.get(usize::from(token.slot))?;
        let waits = slot.job.is_some_and(|job| job.outstanding > 0);
        (waits && slot.sequence == token.sequence).then_some(token.slot)
    }

    /// Gives up a place. What still comes for its request is nobody's.
    pub fn remove(&mut self, place: u16) -> Option<Job> {
        let slot = self.slots.get_mut(usize::from(place))?;
        let job = slot.job.take()?;
        slot.sequence = slot.sequence.wrapping_add(1);
        self.free.try_push(place).ok()?;
        Some(job)
    }

    /// Gives up all places.
    pub fn clear(&mut self) {
        for place in 0..N as u16 {
            self.remove(place);
        }
    }
}
