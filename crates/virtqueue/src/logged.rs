//! A queue that writes down which pages of the guest's memory it changed, for its migration while
//! it runs: one bit for each page of 4 KiB, in memory that others share, as vhost's dirty log.
//!
//! Guarantees: the bits of all that was written for a chain are set before the chain is shown to
//! the driver, and after it was written; those of the rings right after each store. No bit is set
//! beyond the log's end, whatever the guest writes. A queue without a log does nothing of this.
//!
//! Not guaranteed: that only changed pages are marked. What a chain's device may write is taken as
//! written, unless [`Log::exact`] says that it is written from the front.

use crate::{Broken, Chain, Head, Layout, Position, Queue, State};
use alloc::boxed::Box;
use alloc::vec::Vec;
use window::{Span, Window};

/// Bytes of a page, by which is logged.
pub const LOG_PAGE: u64 = 4096;

/// Where is logged, and what.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// The bits: page `n` is bit `n % 8` of byte `n / 8`.
    pub bits: Span,
    /// The guest-physical address for which the device's area of the ring is logged; none: the ring
    /// isn't logged.
    pub ring: Option<u64>,
    /// Buffers are written from the front, as many bytes as a chain's used length says.
    pub exact: bool,
}

impl Log {
    /// Marks these bytes. The address is the guest's, wherever devices have them.
    pub fn mark(&self, guest: u64, len: u64) {
        let Some(last) = len.checked_sub(1) else { return };
        let (first, last) = (guest / LOG_PAGE, guest.saturating_add(last) / LOG_PAGE);
        let end = last.min(self.bits.len().saturating_mul(8).saturating_sub(1));
        let mut page = first;
        while page <= end && !self.bits.is_empty() {
            // As many as there are in this byte.
            let count = (8 - page % 8).min(end - page + 1);
            let bits = (0xff_u8 >> (8 - count)) << (page % 8);
            let _ = self.bits.or_u8(page / 8, bits);
            page += count;
        }
    }
}

/// A queue with a log. What the methods do is said at [`Queue`].
#[derive(Debug)]
pub struct LoggedQueue<const N: usize> {
    queue: Queue<N>,
    log: Log,
    layout: Layout,
    /// By heads: what the device may write of a chain in flight, as addresses and lengths.
    writable: Vec<Vec<(u64, u64)>>,
}

impl<const N: usize> LoggedQueue<N> {
    pub(crate) fn new(queue: Queue<N>, layout: Layout, log: Log) -> Box<Self> {
        let writable = (0..queue.size()).map(|_| Vec::new()).collect();
        let logged = LoggedQueue { queue, log, layout, writable };
        // What it took back when it began isn't in this log.
        if logged.queue.left() > 0 {
            logged.mark_ring();
        }
        Box::new(logged)
    }

    /// The queue stored something in the device's area, or in a packed ring.
    fn mark_ring(&self) {
        let Some(at) = self.log.ring else { return };
        let size = u64::from(self.queue.size());
        let packed = !matches!(self.queue, Queue::Split(_));
        self.log.mark(at, if packed { 4 } else { 6 + 8 * size });
        if packed {
            self.log.mark(self.layout.descriptors, 16 * size);
        }
    }

    /// Of what the device may write, each span's pages, and the two that it may share with others.
    pub(crate) fn pages(&self, chain: &Chain) -> u64 {
        if self.log.exact {
            return 0;
        }
        chain.writable().iter().map(|span| span.len() / LOG_PAGE + 2).sum()
    }

    fn keep(&mut self, window: &Window, chain: &Chain) {
        if let Some(place) = self.writable.get_mut(usize::from(chain.head().0)) {
            place.clear();
            // All spans of a chain are of the window.
            let of = |span: &Span| Some((window.guest_address(span)?, span.len()));
            place.extend(chain.writable().iter().filter_map(of));
        }
    }

    pub(crate) fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        let taken = self.queue.take(window, chain)?;
        if taken {
            self.keep(window, chain);
        }
        Ok(taken)
    }

    pub(crate) fn take_again(
        &mut self,
        window: &Window,
        head: Head,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        self.queue.take_again(window, head, chain)?;
        self.keep(window, chain);
        Ok(())
    }

    pub(crate) fn complete(&mut self, head: Head, written: u32) {
        let place = self.writable.get_mut(usize::from(head.0));
        let mut left = if self.log.exact { written.into() } else { u64::MAX };
        for (at, len) in place.into_iter().flat_map(|place| place.drain(..)) {
            self.log.mark(at, len.min(left));
            left = left.saturating_sub(len);
        }
        self.queue.complete(head, written);
    }

    pub(crate) fn publish(&mut self) {
        if self.queue.is_unpublished() {
            self.queue.publish();
            self.mark_ring();
        }
    }

    pub(crate) fn suppress_kicks(&mut self) {
        self.queue.suppress_kicks();
        self.mark_ring();
    }

    pub(crate) fn enable_kicks(&mut self) -> Result<u16, Broken> {
        let waiting = self.queue.enable_kicks();
        self.mark_ring();
        waiting
    }

    /// The queue without its log, for what changes nothing of the guest's.
    pub(crate) fn inner(&self) -> &Queue<N> {
        &self.queue
    }

    /// The same, for what changes nothing but the queue itself.
    pub(crate) fn inner_mut(&mut self) -> &mut Queue<N> {
        &mut self.queue
    }

    pub(crate) fn used(&self) -> Position {
        self.queue.used()
    }

    pub(crate) fn state(&self) -> State<N> {
        self.queue.state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use window::Memory;

    fn marked(log: &Span) -> Vec<u64> {
        let byte = |at: u64| {
            let mut byte = [0];
            log.read(at, &mut byte).expect("inside");
            byte[0]
        };
        (0..log.len() * 8).filter(|page| byte(page / 8) & 1 << (page % 8) != 0).collect()
    }

    #[test]
    fn pages_are_marked_and_none_beyond_the_end() {
        let memory = Memory::new(&[(0, 4096)], 0);
        let all = memory.window().span(0, 4096).expect("it is there");
        let bits = all.sub(8, 4).expect("inside");
        let log = Log { bits, ring: None, exact: false };
        log.mark(0, 0);
        assert_eq!(marked(&bits), []);
        log.mark(4095, 2);
        assert_eq!(marked(&bits), [0, 1]);
        log.mark(6 * 4096, 11 * 4096 - 1);
        assert_eq!(marked(&bits), [&[0, 1][..], &(6..=16).collect::<Vec<_>>()].concat());
        for (at, len) in [(32 * 4096, 1), (u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 40, 1 << 40)] {
            log.mark(at, len);
        }
        log.mark(31 * 4096, u64::MAX);
        assert_eq!(marked(&bits).last(), Some(&31));
        log.mark(0, u64::MAX);
        assert_eq!(marked(&bits).len(), 32);
        assert!(marked(&all).iter().all(|page| (64..96).contains(page)), "nothing beside it");
        let none = Log { bits: Span::EMPTY, ..log };
        none.mark(0, 4096);
    }

    /// What it costs to complete a chain is known when it is taken.
    #[test]
    fn a_chain_marks_its_pages_and_no_more_than_it_says() {
        let features = Features::default();
        // Devices have it elsewhere.
        let memory = Memory::new(&[(0, 1 << 20), (1 << 20, 1 << 20)], 5 << 30);
        let window = memory.window();
        let layout = Layout { size: 8, descriptors: 0, driver: 0x100, device: 0x200 };
        let bits = window.span(0x1000, 64).expect("inside");
        // By two regions, from any place on, with an end in the middle of a page; the status.
        for (at, len) in [(0x3000, 0x1000), (0x3fff, 2), (0xf_f001, 0x2_0000), (0x2ffc, 0x9_9008)] {
            for exact in [false, true] {
                window.span(0, 0x3000).expect("inside").fill(0);
                let state = State::at_reset(features);
                let queue = Queue::<8>::new(&window, layout, features, state).expect("it is right");
                let mut queue = queue.logged(layout, Log { bits, ring: None, exact });
                for (place, address, len, flags) in [(0, at, len, 3_u64), (1, 0x18_0800, 1, 2)] {
                    let word = len | flags << 32 | 1 << 48;
                    let words = [u64::to_le_bytes(address), u64::to_le_bytes(word)];
                    window.write(16 * place, words.as_flattened()).expect("inside");
                }
                window.write(0x102, &[1, 0]).expect("inside");
                let mut chain = Chain::new();
                assert_eq!(queue.take(&window, &mut chain), Ok(true));
                let pages = queue.log_pages(&chain);
                queue.complete(chain.head(), 0);
                let marked = marked(&bits);
                if !exact {
                    let pages = (at / LOG_PAGE..=(at + len - 1) / LOG_PAGE).chain([0x180]);
                    assert_eq!(marked, pages.collect::<Vec<_>>());
                }
                let marked = marked.len() as u64;
                let most = marked + 2 * chain.writable().len() as u64;
                if exact {
                    assert_eq!((marked, pages), (0, 0));
                } else {
                    assert!(marked > 0 && (marked..=most).contains(&pages), "{pages} of {marked}");
                }
            }
        }
    }
}
