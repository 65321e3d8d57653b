//! What is taken from a queue: the spans of one chain of descriptors.
//!
//! Guarantees: the readable spans come first, there are no more than [`SEGMENTS`], and all together
//! are less than 2^32 bytes. Reads and writes go over the borders of spans, all or nothing.
use arrayvec::ArrayVec;
use window::{Outside, Span};

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
    pub(crate) head: Head,
    spans: ArrayVec<Span, SEGMENTS>,
    /// How many of the spans are readable: the first ones.
    readable: usize,
    readable_len: u32,
    writable_len: u32,
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
            writable_len: 0,
        }
    }

    /// Which one it is.
    #[inline]
    pub fn head(&self) -> Head {
        self.head
    }

    /// What the device may read, in order.
    #[inline]
    pub fn readable(&self) -> &[Span] {
        self.spans.get(..self.readable).unwrap_or(&[])
    }

    /// What the device may write, in order.
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
        self.writable_len
    }

    /// Copies readable bytes from this offset on, each once; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if there are fewer.
    pub fn read(&self, at: u32, into: &mut [u8]) -> Result<(), Outside> {
        let _ = (at, into);
        todo!()
    }

    /// Stores writable bytes from this offset on; all or none of them.
    ///
    /// # Errors
    ///
    /// [`Outside`] if there are fewer.
    pub fn write(&self, at: u32, from: &[u8]) -> Result<(), Outside> {
        let _ = (at, from);
        todo!()
    }
}
