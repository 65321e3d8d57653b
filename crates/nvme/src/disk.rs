//! A disk on a controller, as a back end: what it can do, and how it is asked.

use crate::controller::Controller;
use crate::registers::Registers;
use blk::{Backend, Completion, Operation, Submitted, Token};

/// What a disk on it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Bytes of a block.
    pub block: u32,
    /// Discards are possible.
    pub discards: bool,
    /// Zeroes can be written without data.
    pub zeroes: bool,
    /// Nothing can be written at all.
    pub protected: bool,
}

impl<R: Registers> Controller<R> {
    /// What disks can do, once that is known.
    pub fn abilities(&self) -> Option<Abilities> {
        let (traits, namespace) = (self.traits?, self.namespace?);
        Some(Abilities {
            block: namespace.block(),
            discards: traits.deallocates,
            zeroes: traits.zeroes,
            protected: namespace.protected,
        })
    }

    /// The back end of a disk. Its completions come by [`Self::poll`].
    pub fn disk(&mut self, number: u16) -> Disk<'_, R> {
        Disk { controller: self, number }
    }
}

/// One of the controller's disks, as a back end.
#[derive(Debug)]
pub struct Disk<'a, R> {
    controller: &'a mut Controller<R>,
    number: u16,
}

impl<R: Registers> Backend for Disk<'_, R> {
    #[inline]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        self.controller.submit(self.number, token, operation)
    }

    /// Nothing: [`Controller::poll`] has the completions of all disks.
    fn poll(&mut self) -> Option<Completion> {
        None
    }
}
