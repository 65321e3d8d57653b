//! From buffers to buffers: places in a list of spans, and copies between two of them.
use crate::offload::checksum::Sum;
use window::{Outside, Span};

/// Bytes that are copied at once while they are summed up.
const SUMMED: usize = 512;

/// A place in spans, from which they are read or written on.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    spans: &'a [Span],
    /// In the first of them.
    at: u64,
}

impl<'a> Cursor<'a> {
    /// At their start.
    pub fn new(spans: &'a [Span]) -> Cursor<'a> {
        Cursor { spans, at: 0 }
    }

    /// The next piece, of `most` bytes at most, and goes on behind it. It is empty if `most` is 0.
    fn next(&mut self, most: u64) -> Result<Span, Outside> {
        loop {
            let (first, rest) = self.spans.split_first().ok_or(Outside)?;
            let left = first.len().saturating_sub(self.at);
            if left == 0 && most > 0 {
                (self.spans, self.at) = (rest, 0);
                continue;
            }
            let piece = first.sub(self.at, left.min(most)).ok_or(Outside)?;
            self.at += piece.len();
            return Ok(piece);
        }
    }

    /// Goes on behind so many bytes.
    pub fn skip(&mut self, count: u64) -> Result<(), Outside> {
        let mut left = count;
        while left > 0 {
            left -= self.next(left)?.len();
        }
        Ok(())
    }

    /// Reads bytes.
    pub fn read(&mut self, into: &mut [u8]) -> Result<(), Outside> {
        let mut rest = into;
        while !rest.is_empty() {
            let piece = self.next(rest.len() as u64)?;
            let (part, others) = rest.split_at_mut(piece.len() as usize);
            piece.read(0, part)?;
            rest = others;
        }
        Ok(())
    }

    /// Writes bytes.
    pub fn write(&mut self, from: &[u8]) -> Result<(), Outside> {
        let mut rest = from;
        while !rest.is_empty() {
            let piece = self.next(rest.len() as u64)?;
            let (part, others) = rest.split_at(piece.len() as usize);
            piece.write(0, part)?;
            rest = others;
        }
        Ok(())
    }

    /// Copies so many bytes from here to there.
    pub fn copy_to(&mut self, to: &mut Cursor<'_>, count: u64) -> Result<(), Outside> {
        let mut left = count;
        while left > 0 {
            let from = self.next(left)?;
            let mut done = 0;
            while done < from.len() {
                let into = to.next(from.len() - done)?;
                from.sub(done, into.len()).ok_or(Outside)?.copy_to(&into)?;
                done += into.len();
            }
            left -= from.len();
        }
        Ok(())
    }

    /// As [`Self::copy_to`]; the bytes that are written there are added to the sum.
    pub fn copy_summed(
        &mut self,
        to: &mut Cursor<'_>,
        count: u64,
        sum: &mut Sum,
    ) -> Result<(), Outside> {
        let mut buffer = [0; SUMMED];
        let mut left = count;
        while left > 0 {
            let part = &mut buffer[..left.min(SUMMED as u64) as usize];
            self.read(part)?;
            sum.add(part);
            to.write(part)?;
            left -= part.len() as u64;
        }
        Ok(())
    }
}
