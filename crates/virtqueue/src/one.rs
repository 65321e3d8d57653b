//! Chains of one buffer, which most frames are in: taken without a [`Chain`](crate::Chain) to put
//! them into, and used before the next one is taken. Split rings alone have that.
use window::Span;

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
