//! What is taken from a queue: the spans of one chain of descriptors.
//!
//! Guarantees: the readable spans come first, there are no more than [`SEGMENTS`], and all together
//! are less than 2^32 bytes. Reads and writes go over the borders of spans, all or nothing.
use crate::Broken;
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
    spans: [Span; SEGMENTS],
    /// How many spans it has: the first ones.
    count: usize,
    /// How many of them are readable: the first ones.
    readable: usize,
    readable_len: u32,
    /// Bytes of all spans.
    len: u32,
    /// Those without bytes, too.
    descriptors: u32,
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
            spans: [Span::EMPTY; SEGMENTS],
            count: 0,
            readable: 0,
            readable_len: 0,
            len: 0,
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
        self.spans.get(self.readable..self.count).unwrap_or(&[])
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
    #[inline]
    pub fn read(&self, at: u32, into: &mut [u8]) -> Result<(), Outside> {
        // As nearly all drivers lay it out.
        if let Some(first) = self.readable().first()
            && first.read(at.into(), into) == Ok(())
        {
            return Ok(());
        }
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

    /// Becomes one of a single descriptor.
    #[inline(always)]
    pub(crate) fn set_one(&mut self, head: u16, span: Span, writable: bool) {
        // No more than a descriptor can say.
        let len = span.len() as u32;
        if let Some(place) = self.spans.first_mut() {
            *place = span;
        }
        (self.head, self.count, self.descriptors, self.len) = (Head(head), 1, 1, len);
        (self.readable, self.readable_len) = if writable { (0, 0) } else { (1, len) };
    }

    /// Becomes one of no queue: the device may read these bytes, which are below 4 GiB.
    pub fn set_readable(&mut self, span: Span) {
        self.set_one(0, span, false);
    }

    /// Becomes one of three descriptors with these spans, the first ones of which are `readable`.
    pub(crate) fn set_three(&mut self, head: Head, spans: [Span; 3], readable: usize) {
        if let Some(places) = self.spans.first_chunk_mut() {
            *places = spans;
        }
        let bytes = |spans: &[Span]| spans.iter().fold(0, |all, span| all + span.len()) as u32;
        (self.head, self.count, self.descriptors) = (head, spans.len(), spans.len() as u32);
        (self.len, self.readable) = (bytes(&spans), readable);
        self.readable_len = bytes(self.readable());
    }

    /// To be overwritten by what is taken next: until [`Taking::finish`] it says nothing.
    #[inline]
    pub(crate) fn begin<'a>(&'a mut self, window: &'a Window) -> Taking<'a> {
        (self.count, self.readable, self.readable_len, self.len) = (0, 0, 0, 0);
        Taking { chain: self, window, count: 0, len: 0, descriptors: 0, writing: false }
    }

    /// The same for a chain that may be a plain one.
    #[inline(always)]
    pub(crate) fn begin_plain<'a>(&'a mut self, window: &'a Window) -> Plain<'a> {
        Plain { chain: self, window, count: 0, len: 0, writing: false }
    }
}

/// A chain that is being taken. What each descriptor changes is kept here, in registers.
pub(crate) struct Taking<'a> {
    chain: &'a mut Chain,
    /// The guest's memory.
    pub window: &'a Window,
    /// Of the chain so far.
    count: usize,
    len: u32,
    descriptors: u32,
    /// A writable descriptor was there: no readable one may follow.
    writing: bool,
}

/// A chain that is being taken, and has nothing so far but buffers of some bytes in one region, the
/// largest. Nearly all chains stay so.
pub(crate) struct Plain<'a> {
    chain: &'a mut Chain,
    window: &'a Window,
    count: usize,
    /// The descriptors are few enough that it doesn't overflow.
    len: u64,
    writing: bool,
}

impl<'a> Plain<'a> {
    /// Takes the next descriptor's buffer. `false`, and nothing was done: it isn't a plain one.
    #[inline(always)]
    pub fn push(&mut self, address: u64, len: u32, writable: bool) -> Result<bool, Broken> {
        let Some(span) = self.window.span_of_largest(address, len.into()) else {
            return Ok(false);
        };
        let Some(place) = self.chain.spans.get_mut(self.count) else {
            return Err(Broken::TooLong);
        };
        if writable {
            if !self.writing {
                (self.chain.readable, self.chain.readable_len) = (self.count, self.len as u32);
                self.writing = true;
            }
        } else if self.writing {
            return Err(Broken::Order);
        }
        *place = span;
        self.count += 1;
        self.len += u64::from(len);
        Ok(true)
    }

    /// How many descriptors it has.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// It goes on with what isn't plain.
    #[cold]
    pub fn go_on(self) -> Result<Taking<'a>, Broken> {
        let Plain { chain, window, count, writing, .. } = self;
        let len = u32::try_from(self.len).map_err(|_| Broken::TooMuch)?;
        Ok(Taking { chain, window, count, len, descriptors: count as u32, writing })
    }

    /// It is complete, and has this head.
    #[inline(always)]
    pub fn finish(self, head: u16) -> Result<(), Broken> {
        let chain = self.chain;
        let Ok(len) = u32::try_from(self.len) else { return Err(Broken::TooMuch) };
        if !self.writing {
            (chain.readable, chain.readable_len) = (self.count, len);
        }
        (chain.head, chain.count) = (Head(head), self.count);
        (chain.len, chain.descriptors) = (len, self.count as u32);
        Ok(())
    }
}

impl Taking<'_> {
    /// How many descriptors it has.
    pub fn descriptors(&self) -> u32 {
        self.descriptors
    }

    /// It is complete, and has this head.
    #[inline(always)]
    pub fn finish(self, head: u16) {
        let chain = self.chain;
        if !self.writing {
            (chain.readable, chain.readable_len) = (self.count, self.len);
        }
        (chain.head, chain.count) = (Head(head), self.count);
        (chain.len, chain.descriptors) = (self.len, self.descriptors);
    }

    /// Takes the next descriptor's buffer. One without bytes has no span: the standard doesn't
    /// forbid it, and the address means nothing. So the caller limits how often it calls this.
    ///
    /// It is most of the work of taking a chain, so it is always inlined.
    #[inline(always)]
    pub fn push(&mut self, address: u64, len: u32, writable: bool) -> Result<(), Broken> {
        if self.writing != writable {
            if self.writing {
                return Err(Broken::Order);
            }
            (self.chain.readable, self.chain.readable_len) = (self.count, self.len);
            self.writing = true;
        }
        self.descriptors += 1;
        let Some(all) = self.len.checked_add(len) else {
            return Err(Broken::TooMuch);
        };
        self.len = all;
        match self.window.span(address, len.into()) {
            Some(span) if len != 0 => {
                let Some(place) = self.chain.spans.get_mut(self.count) else {
                    return Err(Broken::TooLong);
                };
                *place = span;
                self.count += 1;
            }
            _ => {
                let rest = self.chain.spans.get_mut(self.count..).unwrap_or(&mut []);
                self.count += pieces_of(self.window, address, len, rest)?;
            }
        }
        Ok(())
    }
}

/// The spans of a buffer that goes over the border of two regions, or has no bytes: how many.
#[cold]
#[inline(never)]
fn pieces_of(
    window: &Window,
    address: u64,
    len: u32,
    places: &mut [Span],
) -> Result<usize, Broken> {
    let outside = Broken::Outside { address, len };
    let (mut next, mut left, mut count) = (address, u64::from(len), 0);
    while left > 0 {
        let span = window.start(next, left).ok_or(outside)?;
        *places.get_mut(count).ok_or(Broken::TooLong)? = span;
        count += 1;
        left -= span.len();
        if left > 0 {
            next = next.checked_add(span.len()).ok_or(outside)?;
        }
    }
    Ok(count)
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
