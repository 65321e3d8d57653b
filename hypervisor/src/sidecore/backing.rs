//! What is behind a disk: nothing, or memory of the machine that was set aside for it.

use blk::backend::{Null, Ram};
use blk::{Backend, Completion, Operation, Submitted, Token};

/// A disk's back end.
pub enum Backing {
    /// For measurements: reads leave the guest's memory as it was.
    Null(Null),
    /// A RAM disk.
    Ram(Ram),
}

impl Backend for Backing {
    #[inline]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match self {
            Backing::Null(null) => null.submit(token, operation),
            Backing::Ram(ram) => ram.submit(token, operation),
        }
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        match self {
            Backing::Null(null) => null.poll(),
            Backing::Ram(ram) => ram.poll(),
        }
    }
}
