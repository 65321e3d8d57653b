//! What a disk's data is kept by: the trait, and two back ends that are done at once.
//!
//! A back end is asked for *operations*: pieces of requests, checked against the disk's size. It
//! answers at once, or later by a [`Completion`] with the [`Token`] of the operation.
//!
//! The spans of an operation lead into guest memory, which the guest may read and write meanwhile:
//! a back end copies what it needs to look at. Spans have any length and any alignment; together
//! they are whole blocks.

use window::{Outside, Span};

use crate::SECTOR;

/// Which operation a completion is of. A back end only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Who asked: the number that the server was made with.
    pub server: u16,
    /// The request's place in the server.
    pub(crate) slot: u16,
    /// Which of the requests that had this place.
    pub(crate) sequence: u32,
}

impl Token {
    /// As one word, for queues whose entries have room for 64 bits (io_uring).
    pub fn bits(self) -> u64 {
        u64::from(self.sequence) << 32 | u64::from(self.slot) << 16 | u64::from(self.server)
    }

    /// The request's place among those that its server has under way; another one has it when this
    /// one is answered.
    pub fn slot(self) -> u16 {
        self.slot
    }

    /// From [`Self::bits`]. Any other word is a token of nothing: its completion is stale.
    pub fn from_bits(bits: u64) -> Self {
        Self { server: bits as u16, slot: (bits >> 16) as u16, sequence: (bits >> 32) as u32 }
    }
}

/// What is asked of a back end. Sectors are of 512 bytes and within the disk.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// From the disk into memory.
    Read {
        /// The first sector.
        sector: u64,
        /// Whole blocks together.
        into: &'a [Span],
    },
    /// From memory to the disk.
    Write {
        /// The first sector.
        sector: u64,
        /// Whole blocks together.
        from: &'a [Span],
        /// It completes when it is durable (NVMe's FUA, RWF_DSYNC).
        durable: bool,
    },
    /// Every write that completed before, by whichever queue, is to be durable.
    Flush,
    /// The sectors' content isn't needed any more. Nothing need happen.
    Discard {
        /// The first sector.
        sector: u64,
        /// How many, whole blocks.
        sectors: u64,
    },
    /// The sectors are to be zeroes.
    WriteZeroes {
        /// The first sector.
        sector: u64,
        /// How many, whole blocks.
        sectors: u64,
        /// What is behind them may be freed.
        unmap: bool,
        /// It completes when it is durable.
        durable: bool,
    },
}

/// The operation failed. What it was to read or write is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The storage failed.
    Io,
    /// The back end has no such operation.
    Unsupported,
}

/// How an operation was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// A completion will follow. Until then the spans are in use.
    Accepted,
    /// It is done, and no completion follows.
    Done(Result<(), Failure>),
    /// There is no room. It is asked for again later; nothing happened.
    Full,
}

/// An accepted operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of which operation.
    pub token: Token,
    /// How it ended.
    pub result: Result<(), Failure>,
}

/// What a disk's data is kept by. It is trusted to complete what it accepted, once; a completion
/// too many is ignored.
pub trait Backend {
    /// Asks for an operation. It doesn't wait. The slices of spans are gone when it returns.
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted;

    /// The next accepted operation that ended, if there is one. It doesn't wait.
    fn poll(&mut self) -> Option<Completion>;
}

/// Keeps nothing, and reads nothing: a read leaves the guest's memory as it was. For measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Backend for Null {
    fn submit(&mut self, _: Token, _: Operation<'_>) -> Submitted {
        Submitted::Done(Ok(()))
    }

    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

/// A disk in memory. A discard leaves the content as it was.
#[derive(Clone, Copy, Debug)]
pub struct Ram {
    disk: Span,
}

impl Ram {
    /// The memory is the disk's content. A disk that is said to be larger fails beyond its end.
    pub fn new(disk: Span) -> Self {
        Self { disk }
    }

    /// The memory of these sectors, if they are there.
    fn part(&self, sector: u64, bytes: u64) -> Option<Span> {
        self.disk.sub(sector.checked_mul(SECTOR)?, bytes)
    }

    /// Calls `copy` with the disk's part and the memory's for each span.
    fn each<F>(&self, sector: u64, spans: &[Span], copy: F) -> Option<()>
    where
        F: Fn(&Span, &Span) -> Result<(), Outside>,
    {
        let bytes = spans.iter().try_fold(0u64, |sum, span| sum.checked_add(span.len()))?;
        let part = self.part(sector, bytes)?;
        let mut at = 0;
        for span in spans {
            copy(&part.sub(at, span.len())?, span).ok()?;
            at += span.len();
        }
        Some(())
    }
}

impl Backend for Ram {
    fn submit(&mut self, _: Token, operation: Operation<'_>) -> Submitted {
        let done = match operation {
            Operation::Read { sector, into } => {
                self.each(sector, into, |disk, memory| memory.copy_from(disk))
            }
            Operation::Write { sector, from, .. } => {
                self.each(sector, from, |disk, memory| disk.copy_from(memory))
            }
            Operation::WriteZeroes { sector, sectors, .. } => sectors
                .checked_mul(SECTOR)
                .and_then(|bytes| self.part(sector, bytes))
                .map(|part| part.fill(0)),
            Operation::Flush | Operation::Discard { .. } => Some(()),
        };
        Submitted::Done(done.ok_or(Failure::Io))
    }

    fn poll(&mut self) -> Option<Completion> {
        None
    }
}
