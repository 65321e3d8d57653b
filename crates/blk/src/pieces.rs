//! A large request's data, piece by piece: where the next one starts, and the spans of one.

use arrayvec::ArrayVec;
use window::Span;

/// A place in a list of spans, and how much there is from it on.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The span, and the place in it.
    span: usize,
    at: u64,
    /// Bytes to the end of the data, which may be before that of the spans.
    left: u64,
}

impl Cursor {
    /// At `skip` bytes into the spans, with `left` bytes of data from there on.
    pub fn new(skip: u64, left: u64) -> Self {
        Self { span: 0, at: skip, left }
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Puts the spans of the next `limit` bytes, or what is left, into `piece`, and goes there.
    /// False if the spans are shorter than they were said to be.
    pub fn advance<const N: usize>(
        &mut self,
        spans: &[Span],
        limit: u64,
        piece: &mut ArrayVec<Span, N>,
    ) -> bool {
        piece.clear();
        let mut wanted = self.left.min(limit);
        self.left -= wanted;
        while wanted > 0 {
            let Some(span) = spans.get(self.span) else { return false };
            let Some(there) = span.len().checked_sub(self.at).filter(|there| *there > 0) else {
                self.at = self.at.saturating_sub(span.len());
                self.span += 1;
                continue;
            };
            let count = there.min(wanted);
            let Some(part) = span.sub(self.at, count) else { return false };
            if piece.try_push(part).is_err() {
                return false;
            }
            self.at += count;
            wanted -= count;
        }
        true
    }
}
