//! A request's work, piece by piece: what the next operation is, and what is left after it.

use arrayvec::ArrayVec;
use virtqueue::{Chain, SEGMENTS};
use window::Span;

use crate::backend::Operation;
use crate::request::Change;
use crate::{PIECE_DATA, PIECE_RANGE, SECTOR};

/// The spans of one piece: no more than the chain has.
pub type Piece = ArrayVec<Span, SEGMENTS>;

/// What is left to ask the back end for.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// From the disk, from this sector on, into the chain's writable spans.
    Read { sector: u64, data: Cursor },
    /// From the chain's readable spans to the disk.
    Write { sector: u64, data: Cursor },
    /// A flush, in one piece.
    Flush,
    /// A discard or write-zeroes request.
    Range { sector: u64, sectors: u64, change: Change },
}

/// The next operation of a request.
pub struct Next<'a> {
    /// What to ask for.
    pub operation: Operation<'a>,
    /// Bytes that it moves or touches.
    pub bytes: u64,
    /// What is left once the back end has taken it.
    pub rest: Option<Work>,
}

impl Work {
    /// The next operation; `piece` is overwritten. Nothing if the chain's spans are shorter than
    /// they were when the work was made, which can't be.
    #[inline]
    pub fn next<'a>(&self, chain: &Chain, piece: &'a mut Piece, durable: bool) -> Option<Next<'a>> {
        Some(match *self {
            Work::Read { sector, data } => {
                let (rest, bytes) = data.advance(chain.writable(), PIECE_DATA, piece)?;
                let rest = rest.map(|data| Work::Read { sector: sector + bytes / SECTOR, data });
                Next { operation: Operation::Read { sector, into: piece }, bytes, rest }
            }
            Work::Write { sector, data } => {
                let (rest, bytes) = data.advance(chain.readable(), PIECE_DATA, piece)?;
                let rest = rest.map(|data| Work::Write { sector: sector + bytes / SECTOR, data });
                Next { operation: Operation::Write { sector, from: piece, durable }, bytes, rest }
            }
            Work::Flush => Next { operation: Operation::Flush, bytes: 0, rest: None },
            Work::Range { sector, sectors, change } => {
                let now = sectors.min(u64::from(PIECE_RANGE) / SECTOR);
                let left = sectors - now;
                let rest = Work::Range { sector: sector + now, sectors: left, change };
                let operation = match change {
                    Change::Discard => Operation::Discard { sector, sectors: now },
                    Change::Zeroes { unmap } => {
                        Operation::WriteZeroes { sector, sectors: now, unmap, durable }
                    }
                };
                Next { operation, bytes: now * SECTOR, rest: (left > 0).then_some(rest) }
            }
        })
    }
}

/// A place in a list of spans, and how much there is from it on. The spans are less than 2^32 bytes
/// together, as those of a chain are.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The span, and the place in it.
    span: u32,
    at: u32,
    /// Bytes to the end of the data, which may be before that of the spans.
    left: u32,
}

impl Cursor {
    /// At `skip` bytes into the spans, with `left` bytes of data from there on.
    #[inline]
    pub fn new(skip: u32, left: u32) -> Self {
        Self { span: 0, at: skip, left }
    }

    /// Puts the spans of the next `limit` bytes, or what is left, into `piece`. Returns the place
    /// behind them, if anything is left there, and how many bytes they are.
    pub(crate) fn advance(
        mut self,
        spans: &[Span],
        limit: u32,
        piece: &mut Piece,
    ) -> Option<(Option<Self>, u64)> {
        piece.clear();
        let bytes = self.left.min(limit);
        self.left -= bytes;
        let mut wanted = bytes;
        while wanted > 0 {
            let span = spans.get(self.span as usize)?;
            let len = u32::try_from(span.len()).ok()?;
            if len <= self.at {
                self.at -= len;
                self.span += 1;
                continue;
            }
            let count = (len - self.at).min(wanted);
            piece.try_push(span.sub(self.at.into(), count.into())?).ok()?;
            self.at += count;
            wanted -= count;
        }
        Some(((self.left > 0).then_some(self), bytes.into()))
    }
}
