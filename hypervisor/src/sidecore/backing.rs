//! What is behind a disk: nothing, memory of the machine that was set aside for it, or a part of a
//! controller that its sidecore drives.

use crate::sidecore::controller::Driven;
use blk::backend::{Null, Ram};
use blk::{Backend, Completion, Failure, Operation, Submitted, Token};

/// A disk's back end.
pub enum Backing {
    /// For measurements: reads leave the guest's memory as it was.
    Null(Null),
    /// A RAM disk.
    Ram(Ram),
    /// A part of a controller: the controller's place in the sidecore, and the disk's number there.
    Part(usize, u16),
}

/// The same with what it needs of its sidecore.
pub struct Behind<'a> {
    pub backing: &'a mut Backing,
    pub controllers: &'a mut [Driven],
}

impl Backend for Behind<'_> {
    #[inline(always)]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match self.backing {
            Backing::Null(null) => null.submit(token, operation),
            _ => self.submit_otherwise(token, operation),
        }
    }

    /// Nothing: what isn't done at once is a controller's, and `PollingCore` asks that.
    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

impl Behind<'_> {
    #[inline(never)]
    fn submit_otherwise(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match self.backing {
            Backing::Null(null) => null.submit(token, operation),
            Backing::Ram(ram) => ram.submit(token, operation),
            Backing::Part(place, disk) => match self.controllers.get_mut(*place) {
                Some(driven) => driven.controller.disk(*disk).submit(token, operation),
                None => Submitted::Done(Err(Failure::Io)),
            },
        }
    }
}
