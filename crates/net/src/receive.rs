//! The buffers of a receive queue: chains that were taken and have no frame yet.
//!
//! A frame may need several chains (5.1.6.4). Whether there are enough is known only when they are
//! taken, and what was taken can't be put back. So a queue has a *stock* of chains, which the next
//! frame is put into, if this one has no room.
use crate::deliver::Buffers;
use crate::error::Broken;
use crate::header::HEADER_BYTES;
use alloc::vec::Vec;
use virtqueue::{Chain, Head, Queue, SEGMENTS};
use window::{Span, Window};

/// The most buffers of one frame. Those of 1,036 bytes and more are enough for the longest.
pub const BUFFERS: usize = 64;
/// The most spans in stock: a chain is taken if there is room for the longest.
const SPANS: usize = 256;

/// A chain in stock.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    head: Head,
    spans: usize,
    bytes: u32,
}

/// What came of frames for a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that were put into its buffers.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Those for which there was no room, or that were too long.
    pub dropped: u32,
}

/// A receive queue.
#[derive(Debug)]
pub struct Receive<const RING: usize> {
    /// The queue, while there is one.
    pub queue: Option<Queue<RING>>,
    /// Why it can't be used any more.
    pub broken: Option<Broken>,
    /// Of the buffers, in order.
    spans: Vec<Span>,
    buffers: Vec<Buffer>,
    /// What came of frames since it was last asked.
    pub counts: Counts,
}

impl<const RING: usize> Receive<RING> {
    /// Without a queue. What it will hold is allocated here.
    pub fn new() -> Receive<RING> {
        Receive {
            queue: None,
            broken: None,
            spans: Vec::with_capacity(SPANS),
            buffers: Vec::with_capacity(BUFFERS),
            counts: Counts::default(),
        }
    }

    /// Has this queue from now on, or none. What was taken of the one before is forgotten.
    pub fn set(&mut self, queue: Option<Queue<RING>>) {
        self.spans.clear();
        self.buffers.clear();
        (self.queue, self.broken) = (queue, None);
    }

    /// How many of the first buffers are for the header and so many bytes of a frame. None if there
    /// aren't enough: without `mergeable` one must do. Of chains only what is writable counts.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on.
    pub fn reserve(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        bytes: u32,
        mergeable: bool,
    ) -> Result<Option<u16>, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let asked = u64::from(bytes) + HEADER_BYTES as u64;
        let most = if mergeable { BUFFERS } else { 1 };
        let (mut count, mut room) = (0, 0);
        while room < asked && count < most {
            let Some(buffer) = self.buffers.get(count) else {
                match self.stock(window, chain) {
                    Ok(true) => continue,
                    Ok(false) => return Ok(None),
                    Err(broken) => {
                        self.broken = Some(broken);
                        return Err(broken);
                    }
                }
            };
            room += u64::from(buffer.bytes);
            count += 1;
        }
        Ok((room >= asked).then_some(count as u16))
    }

    /// Takes one chain more. False if there is none, or no room for it.
    fn stock(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        if self.buffers.len() >= BUFFERS || self.spans.len() + SEGMENTS > SPANS {
            return Ok(false);
        }
        let Some(queue) = &mut self.queue else { return Ok(false) };
        if !queue.take(window, chain)? {
            return Ok(false);
        }
        self.keep(chain)?;
        Ok(true)
    }

    /// Puts a chain that was taken into the stock, which has room for it.
    fn keep(&mut self, chain: &Chain) -> Result<(), Broken> {
        let (spans, bytes) = (chain.writable(), chain.writable_len());
        if bytes == 0 {
            return Err(Broken::NoRoom);
        }
        if !is_writable(chain) {
            return Err(Broken::Empty);
        }
        let buffer = Buffer { head: chain.head(), spans: spans.len(), bytes };
        // There is room: a chain has no more than `SEGMENTS`.
        self.spans.extend_from_slice(spans);
        self.buffers.push(buffer);
        Ok(())
    }

    /// The next chain, if nothing is in stock and its first buffer has room for so many bytes: it
    /// is to be completed by [`Self::complete_one`]. None: [`Self::reserve`] is to be asked.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on.
    #[inline]
    pub fn one(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        bytes: u32,
    ) -> Result<Option<(Head, Span)>, Broken> {
        let Some(queue) = self.queue.as_mut().filter(|_| self.buffers.is_empty()) else {
            return Ok(None);
        };
        if self.broken.is_some() {
            return Ok(None);
        }
        let taken = match queue.take(window, chain) {
            Ok(false) => return Ok(None),
            Ok(true) if chain.descriptors() == 1 => {
                let span = chain.writable().first().filter(|span| span.len() >= bytes.into());
                if let Some(span) = span {
                    return Ok(Some((chain.head(), *span)));
                }
                self.keep(chain)
            }
            Ok(true) => self.keep(chain),
            Err(broken) => Err(broken.into()),
        };
        self.broken = taken.err();
        taken.map(|()| None)
    }

    /// The queue, if it isn't broken and nothing is in stock. What is taken from it and not used at
    /// once is to be told to [`Self::taken`].
    #[inline(always)]
    pub fn taking(&mut self) -> Option<&mut Queue<RING>> {
        self.queue.as_mut().filter(|_| self.broken.is_none() && self.buffers.is_empty())
    }

    /// Puts what was taken into the stock, if it was a chain.
    #[cold]
    pub fn taken(&mut self, taken: Result<bool, virtqueue::Broken>, chain: &Chain) {
        let kept = match taken {
            Ok(false) => Ok(()),
            Ok(true) => self.keep(chain),
            Err(broken) => Err(broken.into()),
        };
        self.broken = kept.err();
    }

    /// The chain of [`Self::one`] has so many bytes.
    #[inline]
    pub fn complete_one(&mut self, head: Head, bytes: u32) {
        if let Some(queue) = &mut self.queue {
            queue.complete(head, bytes);
        }
    }

    /// The spans of the first buffers.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The first `count` buffers have the header and this many bytes of a frame: they are used.
    /// Gives of how many spans they are.
    pub fn complete(&mut self, count: u16, bytes: u32) -> u64 {
        let mut left = bytes.saturating_add(HEADER_BYTES as u32);
        let mut spans = 0;
        let count = usize::from(count).min(self.buffers.len());
        for buffer in self.buffers.drain(..count) {
            let written = left.min(buffer.bytes);
            left -= written;
            spans += buffer.spans;
            if let Some(queue) = &mut self.queue {
                queue.complete(buffer.head, written);
            }
        }
        if spans >= self.spans.len() {
            self.spans.clear();
        } else {
            self.spans.drain(..spans);
        }
        spans as u64
    }
}

/// Whether the device may write to all of its descriptors.
fn is_writable(chain: &Chain) -> bool {
    chain.descriptors() <= chain.writable().len() as u64
}

/// Whether so many bytes may be put into a chain of the driver's, which has room for them.
pub fn is_for_frames(chain: &Chain, bytes: u32) -> bool {
    chain.writable_len() >= bytes && is_writable(chain)
}

/// A receive queue, with what it takes to fill it.
#[derive(Debug)]
pub struct Filling<'a, const RING: usize> {
    /// The queue.
    pub receive: &'a mut Receive<RING>,
    /// The receiver's memory.
    pub window: &'a Window,
    /// Its driver takes frames in several buffers.
    pub mergeable: bool,
    /// What chains are taken into.
    pub scratch: &'a mut Chain,
}

impl<const RING: usize> Buffers for Filling<'_, RING> {
    fn reserve(&mut self, bytes: u32) -> Result<Option<u16>, Broken> {
        self.receive.reserve(self.window, self.scratch, bytes, self.mergeable)
    }

    fn spans(&self) -> &[Span] {
        self.receive.spans()
    }

    fn complete(&mut self, count: u16, bytes: u32) -> u64 {
        self.receive.complete(count, bytes)
    }

    #[inline]
    fn one(&mut self, bytes: u32) -> Result<Option<(Head, Span)>, Broken> {
        self.receive.one(self.window, self.scratch, bytes)
    }

    #[inline]
    fn complete_one(&mut self, buffer: Head, bytes: u32) {
        self.receive.complete_one(buffer, bytes);
    }
}
