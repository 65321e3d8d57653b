//! What a disk's data is kept by.
//!
//! A back end answers at once, or later and in any order. What it is asked for may only begin at
//! [`Store::push`], which is called once for many. Until an operation has ended its memory is in
//! use: [`Store::outstanding`].
//!
//! | file | is |
//! |---|---|
//! | `file` | a file or block device, by io_uring or by calls that wait |
//! | `emptying` | discards and write-zeroes, step by step |
//! | `open`, `format` | how a file is opened: locks, direct I/O; images that aren't raw |
//! | `nbd` | what an NBD server keeps; `reach`: how it is reached |
//! | `locked` | how much memory may be locked, and what is said if that isn't enough |
//! | `link`, `tls` | one connection to such a server |
//! | `nvme`, `controllers` | a disk on an NVMe controller; how one is found and opened |

mod controllers;
mod emptying;
mod file;
mod format;
mod link;
mod locked;
mod nbd;
mod nvme;
#[cfg(test)]
mod nvme_tests;
mod open;
#[cfg(test)]
mod tests;
mod tls;

pub use self::nbd::{NbdStore, Reached, reached};
pub use controllers::{Controllers, Store as NvmeDisk, found};
pub use file::FileStore;
pub use locked::most as may_lock;
pub use open::{Access, Opened, looked_at, open};

use crate::arrivals::Begun;
use anyhow::{Result, bail};
use blk::backend::{Null, Ram};
use blk::{Backend, Completion, Failure, Operation, Submitted, Token};
use daemon_os::GuestRegion;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Operations that a store accepts and that haven't ended, at most: what one guest may have kept.
const MOST: usize = 1024;
/// How long an operation is waited for before it is looked again: a millisecond.
const LONGEST_WAIT: u64 = 1_000_000;
/// How long a flush may take before what is served is handed over.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// The data.
pub enum Store {
    Null(Null),
    Ram(Ram),
    File(Box<FileStore>),
    Nbd(Box<NbdStore>),
    Nvme(Box<NvmeDisk>),
}

impl Store {
    /// Operations that were accepted and haven't been polled.
    #[inline]
    pub fn outstanding(&self) -> usize {
        match self {
            Store::Null(_) | Store::Ram(_) => 0,
            Store::File(file) => file.outstanding(),
            Store::Nbd(nbd) => nbd.outstanding(),
            Store::Nvme(nvme) => nvme.disk.outstanding(),
        }
    }

    /// Begins what was asked for.
    pub fn push(&mut self) {
        match self {
            Store::Null(_) | Store::Ram(_) => {}
            Store::File(file) => file.push(),
            Store::Nbd(nbd) => nbd.push(),
            Store::Nvme(nvme) => nvme.disk.push(),
        }
    }

    /// Is readable when an operation has ended. None: all are done at once, or nothing tells.
    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Store::Null(_) | Store::Ram(_) | Store::Nvme(_) => None,
            Store::File(file) => file.ended(),
            Store::Nbd(nbd) => Some(nbd.ended()),
        }
    }

    /// After how long it is to be asked what has ended, if nothing tells.
    pub fn look_after(&self) -> Option<u64> {
        match self {
            Store::Nvme(nvme) => Some(nvme.disk.look_after()),
            _ => None,
        }
    }

    /// Sleeps until an operation has ended, for a millisecond at most. One that nothing tells of is
    /// looked for again when that is due.
    pub fn wait(&self) {
        let (ended, after) = (self.ended(), self.look_after());
        if ended.is_none() && after.is_none() {
            return;
        }
        let limit = after.map_or(LONGEST_WAIT, |after| after.min(LONGEST_WAIT));
        let limit = Timespec { tv_sec: 0, tv_nsec: limit as i64 };
        let ended = ended.map(|ended| PollFd::from_borrowed_fd(ended, PollFlags::IN));
        let _ = poll(&mut Vec::from_iter(ended), Some(&limit));
    }

    /// Lets the device that keeps the data reach these regions, if one does; or has the system hold
    /// them, if that is wished for.
    ///
    /// # Errors
    ///
    /// In a sentence, if it can't.
    pub fn share(&mut self, regions: Vec<GuestRegion>) -> Result<Vec<GuestRegion>> {
        match self {
            Store::Nvme(nvme) => nvme.share(regions),
            Store::File(file) => Ok(file.pin(regions)),
            _ => Ok(regions),
        }
    }

    /// Makes durable what only this program's connections to a server vouch for; nothing is under
    /// way. What a file's descriptors know goes along with them.
    ///
    /// # Errors
    ///
    /// If that fails, or takes longer than [`FLUSHED_WITHIN`]: as for any other flush that fails,
    /// the driver is told at its next one.
    pub fn settle(&mut self) -> Result<()> {
        let Store::Nbd(nbd) = self else { return Ok(()) };
        let flush = own_token(nbd.next_settle());
        let mut done = match nbd.submit(flush, Operation::Flush) {
            Submitted::Done(result) => Some(result),
            Submitted::Accepted => None,
            Submitted::Full => Some(Err(Failure::Io)),
        };
        let began = Instant::now();
        while done.is_none() && began.elapsed() < FLUSHED_WITHIN {
            self.wait();
            self.push();
            let ended = self.poll().filter(|completion| completion.token == flush);
            done = ended.map(|completion| completion.result);
        }
        if done == Some(Ok(())) {
            return Ok(());
        }
        if let Store::Nbd(nbd) = self {
            nbd.count_as_lost();
        }
        bail!("the server doesn't make durable what was written")
    }

    /// The same where the program ends, if there is something to make durable and a server that
    /// could.
    ///
    /// # Errors
    ///
    /// As for [`Self::settle`].
    pub fn settle_at_end(&mut self) -> Result<()> {
        match self {
            Store::Nbd(nbd) if nbd.can_flush_more() => self.settle(),
            _ => Ok(()),
        }
    }

    /// Nobody waits any more for what this ring asked for. An operation on a file has begun, and
    /// may still read or write the ring's memory, which is kept for it; one that waits for a server
    /// doesn't.
    pub fn abandon(&mut self, ring: u16) {
        if let Store::Nbd(nbd) = self {
            nbd.abandon(ring);
        }
    }

    /// What keeps it from being read and written now, in words.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Store::File(file) => file.has_failed().then(|| "all accesses fail".into()),
            Store::Nbd(nbd) => nbd.trouble(),
            _ => None,
        }
    }

    /// How it is done, in words.
    pub fn how(&self) -> &'static str {
        match self {
            Store::Null(_) => "keeps nothing",
            Store::Ram(_) => "in memory",
            Store::File(file) => file.how(),
            Store::Nbd(nbd) => nbd.how(),
            Store::Nvme(_) => "by a driver of its own",
        }
    }
}

impl Backend for Store {
    #[inline]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match self {
            Store::Null(null) => null.submit(token, operation),
            Store::Ram(ram) => ram.submit(token, operation),
            Store::File(file) => file.submit(token, operation),
            Store::Nbd(nbd) => nbd.submit(token, operation),
            Store::Nvme(nvme) => nvme.disk.submit(token, operation),
        }
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        match self {
            Store::Null(_) | Store::Ram(_) => None,
            Store::File(file) => file.poll(),
            Store::Nbd(nbd) => nbd.poll(),
            Store::Nvme(nvme) => nvme.disk.poll(),
        }
    }
}

/// Of a flush that [`Store::settle`] asks for. No ring has this slot.
fn own_token(number: u32) -> Token {
    Token::from_bits(u64::from(number) << 32 | u64::from(u32::MAX))
}

/// Whether this is of such a flush, which may end when nobody waits for it any more; it is no
/// ring's, not even of one that is gone.
pub fn is_own(token: Token) -> bool {
    token.bits() as u32 == u32::MAX
}

/// The data, of which a ring asks that notes when each request was seen waiting.
pub struct Timed<'a> {
    pub store: &'a mut Store,
    pub begun: &'a mut Begun,
    pub since: u64,
}

impl Backend for Timed<'_> {
    #[inline]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        let submitted = self.store.submit(token, operation);
        if matches!(submitted, Submitted::Accepted) {
            self.begun.note(token, self.since);
        }
        submitted
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        self.store.poll()
    }
}
