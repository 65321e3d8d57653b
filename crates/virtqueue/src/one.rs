//! Chains of one buffer, which most frames are in: taken without a [`Chain`](crate::Chain) to put
//! them into, and used before the next one is taken.
use crate::{Broken, Chain};
use window::{Span, Window};

/// A queue that gives and takes them.
pub trait Ones {
    /// Takes the next chain, if it is of one buffer that lies in the largest region and is
    /// `WRITABLE`, or else readable. None: `taken` is what [`Queue::take`](crate::Queue::take)
    /// would have said, and if that is a chain it is in `chain`. Each descriptor is read once.
    fn take_one<const WRITABLE: bool>(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        taken: &mut Result<bool, Broken>,
    ) -> Option<One>;
    /// Writes the chain to the ring as used, as [`Queue::complete`](crate::Queue::complete) does.
    fn used_one(&mut self, one: One, written: u32);
    /// The chain isn't used yet: it is in `chain`, and in flight, as if
    /// [`Queue::take`](crate::Queue::take) had taken it.
    fn hold_one(&mut self, one: One, writable: bool, chain: &mut Chain);
}

/// A chain of one descriptor of some bytes. Until it is used or held the driver has lost it.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct One {
    pub(crate) head: u16,
    pub(crate) span: Span,
}

impl One {
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
