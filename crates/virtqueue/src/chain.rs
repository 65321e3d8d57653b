//! What is taken from a queue: the spans of one chain of descriptors.
//!
//! Guarantees: the readable spans come first, there are no more than [`SEGMENTS`], and all together
//! are less than 2^32 bytes. Reads and writes go over the borders of spans, all or nothing.
use crate::Broken;
use arrayvec::ArrayVec;
use core::ops::Range;
use window::{Outside, Span, Window};

/// The most spans of a chain: 128 of data, and a request's header and status.
pub const SEGMENTS: usize = 130;

/// Which chain it is, for [`Queue::complete`](crate::Queue::complete).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head(pub(crate) u16);

impl Head {
    /// The index of its first descriptor, or its buffer ID: less than the queue's size. No other
    /// chain in flight has it.
    #[inline]
    pub fn index(self) -> u16 {
        self.0
    }
}

/// The buffers of one chain.
#[derive(Clone, Debug)]
pub struct Chain {
    head: Head,
    spans: ArrayVec<Span, SEGMENTS>,
    /// How many of the spans are readable: the first ones.
    readable: usize,
    readable_len: u32,
    /// Bytes of all spans.
    len: u32,
    /// Those without bytes, too.
    descriptors: u32,
    /// A writable descriptor was there: no readable one may follow.
    writing: bool,
}

impl Default for Chain {
    fn default() -> Self {
        Chain::new()
    }
}

impl Chain {
    /// An empty one, to take chains into.
    pub const fn new() -> Chain {
        Chain {
            head: Head(0),
            spans: ArrayVec::new_const(),
            readable: 0,
            readable_len: 0,
            len: 0,
            writing: false,
            descriptors: 0,
        }
    }

    /// Which one it is.
    #[inline]
    pub fn head(&self) -> Head {
        self.head
    }

    /// What the device may read, in order. No span is empty.
    #[inline]
    pub fn readable(&self) -> &[Span] {
        self.spans.get(..self.readable).unwrap_or(&[])
    }

    /// What the device may write, in order. No span is empty.
    #[inline]
    pub fn writable(&self) -> &[Span] {
        self.spans.get(self.readable..).unwrap_or(&[])
    }

    /// Bytes that the device may read.
    #[inline]
    pub fn readable_len(&self) -> u32 {
        self.readable_len
    }

    /// Bytes that the device may write.
    #[inline]
    pub fn writable_len(&self) -> u32 {
        self.len.wrapping_sub(self.readable_len)
    }

    /// How many descriptors it has, those without bytes among them: what it cost to take.
    #[inline]
    pub fn descriptors(&self) -> u64 {
        self.descriptors.into()
    }

    /// Copies readable bytes from this offset on, each once; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if there are fewer.
    pub fn read(&self, at: u32, into: &mut [u8]) -> Result<(), Outside> {
        pieces(self.readable(), self.readable_len, at, into.len(), |span, at, place| {
            span.read(at, &mut into[place])
        })
    }

    /// Stores writable bytes from this offset on; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if there are fewer.
    pub fn write(&self, at: u32, from: &[u8]) -> Result<(), Outside> {
        pieces(self.writable(), self.writable_len(), at, from.len(), |span, at, place| {
            span.write(at, &from[place])
        })
    }

    /// Becomes one of no queue: the device may read these bytes.
    pub fn set_readable(&mut self, span: Span) {
        self.clear();
        let bytes = u32::try_from(span.len()).unwrap_or(0);
        if bytes > 0 && self.spans.try_push(span).is_ok() {
            (self.readable, self.readable_len, self.len, self.descriptors) = (1, bytes, bytes, 1);
        }
    }

    /// Becomes an empty one.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.head = Head(0);
        (self.readable, self.readable_len, self.len, self.writing) = (0, 0, 0, false);
        self.descriptors = 0;
    }

    /// It is complete, and has this head.
    #[inline]
    pub(crate) fn finish(&mut self, head: u16) {
        self.head = Head(head);
    }

    /// Takes the next descriptor's buffer. One without bytes has no span: the standard doesn't
    /// forbid it, and the address means nothing. So the caller limits how often it calls this.
    ///
    /// It is most of the work of taking a chain, so it is always inlined.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        window: &Window,
        address: u64,
        len: u32,
        writable: bool,
    ) -> Result<(), Broken> {
        if self.writing && !writable {
            return Err(Broken::Order);
        }
        self.writing = writable;
        self.descriptors += 1;
        let Some(all) = self.len.checked_add(len) else {
            return Err(Broken::TooMuch);
        };
        self.len = all;
        match window.span(address, len.into()) {
            Some(span) if len != 0 => {
                if self.spans.try_push(span).is_err() {
                    return Err(Broken::TooLong);
                }
            }
            _ => self.push_pieces(window, address, len)?,
        }
        if !writable {
            self.readable_len = all;
            self.readable = self.spans.len();
        }
        Ok(())
    }

    /// Takes a buffer that goes over the border of two regions, or has no bytes.
    #[cold]
    #[inline(never)]
    fn push_pieces(&mut self, window: &Window, address: u64, len: u32) -> Result<(), Broken> {
        let outside = Broken::Outside { address, len };
        let (mut next, mut left) = (address, u64::from(len));
        while left > 0 {
            let span = window.start(next, left).ok_or(outside)?;
            self.spans.try_push(span).map_err(|_| Broken::TooLong)?;
            left -= span.len();
            if left > 0 {
                next = next.checked_add(span.len()).ok_or(outside)?;
            }
        }
        Ok(())
    }
}

/// Calls `access` for each piece of the `count` bytes from `at` on: the span, the offset in it, and
/// the place of the piece among the bytes.
fn pieces(
    spans: &[Span],
    len: u32,
    at: u32,
    count: usize,
    mut access: impl FnMut(&Span, u64, Range<usize>) -> Result<(), Outside>,
) -> Result<(), Outside> {
    let rest = len.checked_sub(at).ok_or(Outside)?;
    if count as u64 > u64::from(rest) {
        return Err(Outside);
    }
    let (mut skip, mut done) = (u64::from(at), 0);
    for span in spans {
        if done == count {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let piece = (span.len() - skip).min((count - done) as u64) as usize;
        access(span, skip, done..done + piece)?;
        done += piece;
        skip = 0;
    }
    Ok(())
}
