//! Files by io_uring, to and from shared memory.
//!
//! Tasks are collected, and handed to the kernel together by [`Uring::push`], one system call. What
//! ended comes by [`Uring::take_ended`], with the number that it was given. Reads and writes that
//! end short are gone on with. One whose bytes are of one piece in memory that the ring holds
//! ([`Uring::pin`]) is done there. The ring belongs to the thread that makes it; as a descriptor it
//! is readable when something ended.
//!
//! Guarantees: each task ends once. The kernel's copies of vectors are those of tasks that haven't
//! ended, which stay where they are.
//!
//! Not guaranteed: that memory which was given up isn't accessed by tasks that haven't ended. Who
//! gives it up waits until [`Uring::outstanding`] is 0.

use crate::Mapping;
use crate::pinned::{Buffers, Pinned};
use crate::spare::{give_back, set_files, take};
use io_uring::squeue::Entry;
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, opcode};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use window::Span;

/// IORING_ENTER_GETEVENTS: the kernel does what is left of ended tasks.
const GET_EVENTS: u32 = 1;
/// How often a task is asked for again that the kernel says to ask for again.
const AGAIN: u8 = 100;
/// Bytes of one call: what the kernel does at most.
const MOST: usize = 0x7fff_f000;

/// What a file is asked for. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Task<'a> {
    /// From the file into memory.
    Read {
        /// Where in the file.
        offset: u64,
        /// Where to.
        into: &'a [Span],
    },
    /// From memory to the file.
    Write {
        /// Where in the file.
        offset: u64,
        /// What.
        from: &'a [Span],
        /// It ends when it is durable.
        durable: bool,
    },
    /// All that was written before is durable when it ends.
    Sync,
    /// The bytes become zeroes, and what is behind them is freed.
    Punch {
        /// Where in the file.
        offset: u64,
        /// How many.
        len: u64,
        /// It ends when it is durable.
        durable: bool,
    },
    /// The bytes become zeroes.
    Zero {
        /// Where in the file.
        offset: u64,
        /// How many.
        len: u64,
        /// It ends when it is durable.
        durable: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync,
    Allocate { mode: i32, len: u64 },
}

/// A task that hasn't ended.
#[derive(Debug)]
struct Job {
    number: u64,
    file: u32,
    kind: Kind,
    offset: u64,
    /// What is left to move, from the first one on.
    vectors: Vec<libc::iovec>,
    first: usize,
    durable: bool,
    again: u8,
}

/// A ring with a few files.
pub struct Uring {
    ring: ManuallyDrop<IoUring>,
    /// What it holds, if it ever was to.
    buffers: Option<Buffers>,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// Tasks that ended without the kernel.
    ended: VecDeque<(u64, io::Result<()>)>,
    outstanding: usize,
    files: usize,
    /// Tasks that ended short were asked for again.
    goes_on: bool,
}

// SAFETY: the vectors' addresses are those of spans, which any thread may access.
unsafe impl Send for Uring {}

impl Uring {
    /// A ring for these files, two at most, which tasks name by their places.
    ///
    /// # Errors
    ///
    /// The system's: it may forbid io_uring, or be too old. [`io::ErrorKind::QuotaExceeded`]: all
    /// of the stock ([`crate::stock_rings`]) are in use.
    pub fn new(files: &[BorrowedFd<'_>]) -> io::Result<Uring> {
        let ring = take()?;
        let descriptors: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        set_files(&ring, &descriptors)?;
        Ok(Uring {
            ring: ManuallyDrop::new(ring),
            buffers: None,
            jobs: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            outstanding: 0,
            files: files.len(),
            goes_on: false,
        })
    }

    /// Holds a mapping's pages for tasks there. Whoever frees pages of its file has later tasks go
    /// astray: the caller knows that nobody does.
    ///
    /// # Errors
    ///
    /// The system's: with ENOMEM more would be locked than this program may. Tasks do without.
    pub fn pin(&mut self, mapping: &Arc<Mapping>) -> io::Result<Pinned> {
        let ring = self.ring.as_raw_fd();
        self.buffers.get_or_insert_with(|| Buffers::new(ring)).pin(mapping)
    }

    /// Tasks that haven't come by [`Self::take_ended`].
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Asks for a task of the file at this place. It may begin at [`Self::push`].
    pub fn ask(&mut self, number: u64, file: usize, task: Task<'_>) {
        self.outstanding += 1;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let none: &[Span] = &[];
        let (kind, offset, spans, durable) = match task {
            Task::Read { offset, into } => (Kind::Read, offset, into, false),
            Task::Write { offset, from, durable } => (Kind::Write, offset, from, durable),
            Task::Sync => (Kind::Sync, 0, none, false),
            Task::Punch { offset, len, durable } => {
                (Kind::Allocate { mode: punch, len }, offset, none, durable)
            }
            Task::Zero { offset, len, durable } => {
                (Kind::Allocate { mode: zero, len }, offset, none, durable)
            }
        };
        let place = self.free.pop().unwrap_or(self.jobs.len() as u32);
        let file = file.min(self.files) as u32;
        let vectors = match self.jobs.get_mut(place as usize) {
            Some(job) => std::mem::take(&mut job.vectors),
            None => Vec::new(),
        };
        let mut job = Job { number, file, kind, offset, vectors, first: 0, durable, again: AGAIN };
        job.vectors.clear();
        job.vectors.extend(spans.iter().filter(|span| !span.is_empty()).map(|span| libc::iovec {
            iov_base: span.as_ptr().cast(),
            iov_len: span.len() as usize,
        }));
        let is_nothing = job.vectors.is_empty() && matches!(kind, Kind::Read | Kind::Write);
        match self.jobs.get_mut(place as usize) {
            Some(old) => *old = job,
            None => self.jobs.push(job),
        }
        if is_nothing {
            self.free.push(place);
            self.ended.push_back((number, Ok(())));
        } else {
            self.queue(place);
        }
    }

    /// Puts a job's next call into the ring.
    fn queue(&mut self, place: u32) {
        let Some(job) = self.jobs.get(place as usize) else { return };
        let entry = job.entry(self.buffers.as_ref()).user_data(place.into());
        for _ in 0..2 {
            // SAFETY: what the entry points to are spans, which are mapped for good, and the job's
            // vectors, which are neither moved nor changed until its completion is taken. A buffer
            // is of the mapping that the span is of.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The ring is full: the kernel takes all of it.
            let _ = self.push();
        }
        let number = job_number(&self.jobs, place);
        self.free.push(place);
        self.ended.push_back((number, Err(io::ErrorKind::ResourceBusy.into())));
    }

    /// Hands over what was asked for, and has the kernel finish what ended; without a system call
    /// if there is neither.
    ///
    /// # Errors
    ///
    /// The system's, other than to try again.
    pub fn push(&mut self) -> io::Result<()> {
        let (submitter, queue, _) = self.ring.split();
        let count = queue.len() as u32;
        if count == 0 && !queue.taskrun() && !queue.cq_overflow() {
            return Ok(());
        }
        drop(queue);
        // SAFETY: no argument is given; the entries are those that `queue` vouches for.
        match unsafe { submitter.enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) } {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The next task that ended: its number, and how.
    pub fn take_ended(&mut self) -> Option<(u64, io::Result<()>)> {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                self.outstanding = self.outstanding.saturating_sub(1);
                return Some(ended);
            }
            let Some(completion) = self.ring.completion().next() else {
                // What goes on is with the kernel before anybody sleeps.
                if !std::mem::take(&mut self.goes_on) || self.push().is_err() {
                    return None;
                }
                continue;
            };
            let Ok(place) = u32::try_from(completion.user_data()) else { continue };
            let Some(job) = self.jobs.get_mut(place as usize) else { continue };
            match job.after(completion.result()) {
                None => {
                    self.goes_on = true;
                    self.queue(place);
                }
                Some(result) => {
                    let number = job.number;
                    self.free.push(place);
                    self.outstanding = self.outstanding.saturating_sub(1);
                    return Some((number, result));
                }
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.buffers.iter().for_each(Buffers::close);
        // SAFETY: the ring is taken once, here, and isn't touched after.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        // With something under way the kernel still accesses memory for it, and it is no other's.
        if self.outstanding == 0 {
            give_back(ring);
        }
    }
}

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring is there.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

fn job_number(jobs: &[Job], place: u32) -> u64 {
    jobs.get(place as usize).map_or(0, |job| job.number)
}

impl Job {
    fn entry(&self, held: Option<&Buffers>) -> Entry {
        let file = Fixed(self.file);
        let rest = self.vectors.get(self.first..).unwrap_or_default();
        let flags = if self.durable { libc::RWF_DSYNC } else { 0 };
        match (self.kind, rest) {
            (Kind::Read, [one]) => {
                let (at, len) = (one.iov_base.cast(), one.iov_len.min(MOST) as u32);
                match held.and_then(|held| held.find(one.iov_base.addr(), len as usize)) {
                    Some(held) => {
                        let read = opcode::ReadFixed::new(file, at, len, held);
                        read.offset(self.offset).build()
                    }
                    None => opcode::Read::new(file, at, len).offset(self.offset).build(),
                }
            }
            (Kind::Write, [one]) => {
                let (at, len) = (one.iov_base.cast_const().cast(), one.iov_len.min(MOST) as u32);
                match held.and_then(|held| held.find(one.iov_base.addr(), len as usize)) {
                    Some(held) => {
                        let write = opcode::WriteFixed::new(file, at, len, held);
                        write.offset(self.offset).rw_flags(flags).build()
                    }
                    None => {
                        let write = opcode::Write::new(file, at, len);
                        write.offset(self.offset).rw_flags(flags).build()
                    }
                }
            }
            (Kind::Read, all) => {
                let read = opcode::Readv::new(file, all.as_ptr(), all.len() as u32);
                read.offset(self.offset).build()
            }
            (Kind::Write, all) => {
                let write = opcode::Writev::new(file, all.as_ptr(), all.len() as u32);
                write.offset(self.offset).rw_flags(flags).build()
            }
            (Kind::Sync, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            (Kind::Allocate { mode, len }, _) => {
                opcode::Fallocate::new(file, len).offset(self.offset).mode(mode).build()
            }
        }
    }

    /// A call ended with this. How the task did, if that was all of it.
    fn after(&mut self, result: i32) -> Option<io::Result<()>> {
        let done = match usize::try_from(result) {
            Ok(done) => done,
            Err(_) => {
                let again = matches!(-result, libc::EINTR | libc::EAGAIN) && self.again > 0;
                self.again = self.again.saturating_sub(1);
                return (!again).then(|| Err(io::Error::from_raw_os_error(-result)));
            }
        };
        match self.kind {
            Kind::Sync => Some(Ok(())),
            Kind::Allocate { .. } if self.durable => {
                (self.kind, self.durable) = (Kind::Sync, false);
                None
            }
            Kind::Allocate { .. } => Some(Ok(())),
            Kind::Read if done == 0 => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            Kind::Write if done == 0 => Some(Err(io::ErrorKind::WriteZero.into())),
            Kind::Read | Kind::Write => {
                self.advance(done);
                (self.first == self.vectors.len()).then_some(Ok(()))
            }
        }
    }

    fn advance(&mut self, mut done: usize) {
        self.offset += done as u64;
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if done < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(done);
                vector.iov_len -= done;
                break;
            }
            done -= vector.iov_len;
            self.first += 1;
        }
    }
}
