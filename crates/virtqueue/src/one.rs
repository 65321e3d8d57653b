//! Chains of one buffer, which most frames are in: taken without a [`Chain`] to put them into, and
//! used before the next one is taken.
use crate::{Broken, Chain, PackedQueue, Queue, SplitQueue};
use window::{Span, Window};

/// A chain of one descriptor of some bytes. Until it is used or held the driver has lost it.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct One {
    pub(crate) head: u16,
    span: Span,
}

impl One {
    #[inline(always)]
    pub(crate) fn new(head: u16, span: Span) -> One {
        One { head, span }
    }

    /// Its bytes.
    #[inline(always)]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// How many they are: some.
    #[inline(always)]
    pub fn bytes(&self) -> u32 {
        // No more than a descriptor can say.
        self.span.len() as u32
    }
}

/// A queue whose chains are taken one by one. It is a trait so that a loop over two queues can know
/// their kinds.
pub trait OneByOne {
    /// Takes the next chain, if it is of one buffer that lies in the largest region and is
    /// `WRITABLE`, or else readable. None: `taken` is what [`Queue::take`] would have said, and if
    /// it took a chain that is in `chain`.
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One>;

    /// Writes the chain to the ring as used, as [`Queue::complete`] does.
    fn used(&mut self, one: One, written: u32);

    /// It isn't used yet: it is in `chain`, and in flight, as if [`Queue::take`] had taken it.
    fn hold<const WRITABLE: bool>(&mut self, one: One, chain: &mut Chain);
}

impl<const N: usize> OneByOne for Queue<N> {
    /// Not inlined: it is for what is neither frequent nor small.
    #[inline(never)]
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        match self {
            Queue::Split(queue) => queue.next_one::<WRITABLE>(window, chain, taken),
            Queue::Packed(queue) => queue.next_one::<WRITABLE>(window, chain, taken),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.take_one::<WRITABLE>(window, chain, taken),
        }
    }

    #[inline]
    fn used(&mut self, one: One, written: u32) {
        match self {
            Queue::Split(queue) => queue.used_one(one, written),
            Queue::Packed(queue) => queue.used_one(one, written),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.used(one, written),
        }
    }

    fn hold<const WRITABLE: bool>(&mut self, one: One, chain: &mut Chain) {
        match self {
            Queue::Split(queue) => queue.hold::<WRITABLE>(one, chain),
            Queue::Packed(queue) => queue.hold::<WRITABLE>(one, chain),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.hold::<WRITABLE>(one, chain),
        }
    }
}

impl<const N: usize> OneByOne for SplitQueue<N> {
    #[inline(always)]
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        self.next_one::<WRITABLE>(window, chain, taken)
    }

    #[inline(always)]
    fn used(&mut self, one: One, written: u32) {
        self.used_one(one, written);
    }

    #[cold]
    #[inline(never)]
    fn hold<const WRITABLE: bool>(&mut self, one: One, chain: &mut Chain) {
        self.hold_one(one.head);
        chain.set_one(one.head, one.span, WRITABLE);
    }
}

impl<const N: usize> OneByOne for PackedQueue<N> {
    #[inline(always)]
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One> {
        self.next_one::<WRITABLE>(window, chain, taken)
    }

    #[inline(always)]
    fn used(&mut self, one: One, written: u32) {
        self.used_one(one, written);
    }

    #[cold]
    #[inline(never)]
    fn hold<const WRITABLE: bool>(&mut self, one: One, chain: &mut Chain) {
        self.hold_one(one.head);
        chain.set_one(one.head, one.span, WRITABLE);
    }
}
