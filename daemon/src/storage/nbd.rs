//! A disk that an NBD server keeps.
//!
//! Guarantees: what was asked for and not answered when a connection ends is asked for again at
//! another, or at the same server once it is back. Writes that were answered and not flushed may be
//! lost with a server: the next flush fails then, once, so that the guest knows. After
//! [`GIVE_UP`] without any connection that has shaken hands, all fails until there is one. A
//! connection that is silent for its time though something is asked for there is lost; what
//! [`SILENCES`] of them didn't answer fails. What is kept for a guest is bounded: [`MOST`]
//! operations, and copies of [`MOST_WRITTEN`] bytes.
//!
//! Not guaranteed: that a server which lost a connection doesn't still carry out what came over it.

mod another;
mod open;
mod reach;
#[cfg(test)]
mod tests;

pub use self::open::reached;
use super::link::{Address, Job, Link};
use super::tls::Identity;
use anyhow::Result;
use blk::{Completion, Failure, Operation, SECTOR, Submitted, Token};
use nbd::{Command, Export, ExportFlags, Request};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use window::Span;

/// Connections, if the server allows more than one.
const LINKS: usize = 4;
/// How long requests wait for a server that is gone.
pub const GIVE_UP: Duration = Duration::from_secs(30);
/// As many silent connections a request is asked for at, at most.
const SILENCES: u32 = 2;
/// Bytes of writes that haven't ended, at most: they are copied. One write alone may have more.
const MOST_WRITTEN: u64 = 16 << 20;
/// The timer among what is waited for.
const TIMER: u64 = u64::MAX;

/// How long a server is waited for, and how much meanwhile.
struct Bounds {
    shake: Duration,
    silence: Duration,
    give_up: Duration,
    operations: usize,
    written: u64,
}

/// A server that another process reached, with which this one goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reached {
    addresses: Vec<Address>,
    size: u64,
    flags: u16,
    minimum_block: u32,
    structured: bool,
    /// What the other one can't open or make itself comes along behind the connections: this many
    /// texts of TLS's files, an epoll instance and a timer.
    prepared: Option<usize>,
}

/// The disk.
pub struct NbdStore {
    name: String,
    export_name: String,
    addresses: Vec<Address>,
    identity: Option<Identity>,
    export: Export,
    links: Vec<Option<Link>>,
    jobs: Slab<Job>,
    /// Bytes of the writes among them.
    written: u64,
    ended: VecDeque<Completion>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When it ends.
    timer_at: Option<Instant>,
    next: usize,
    tries: usize,
    /// Writes that were answered, and those of them that a flush covers.
    answered: u64,
    flushed: u64,
    /// Writes may be lost of which the guest wasn't told.
    is_lost: bool,
    /// Since when there has been no connection that has shaken hands; and the log has why.
    gone_since: Option<Instant>,
    is_gone_said: bool,
    bounds: Bounds,
    /// Flushes of this program's own.
    settles: u32,
}

/// An epoll instance, and a timer.
fn waits() -> Result<[OwnedFd; 2]> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok([epoll::create(CreateFlags::CLOEXEC)?, timerfd_create(TimerfdClockId::Monotonic, flags)?])
}

impl NbdStore {
    /// Is there a connection that has shaken hands, at which nothing is under way?
    pub fn is_reached(&self) -> bool {
        self.links.iter().flatten().any(Link::is_idle)
    }

    /// Was something answered that isn't flushed, and is there a connection to flush it by?
    pub fn can_flush_more(&self) -> bool {
        self.answered > self.flushed && self.links.iter().flatten().any(Link::is_ready)
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Is it reached over TLS?
    pub fn has_tls(&self) -> bool {
        self.identity.is_some()
    }

    /// How it is reached, in words.
    pub fn how(&self) -> &'static str {
        if self.has_tls() { "over NBD and TLS" } else { "over NBD" }
    }

    pub fn outstanding(&self) -> usize {
        self.jobs.len() + self.ended.len()
    }

    /// A number for a flush of this program's own.
    pub fn next_settle(&mut self) -> u32 {
        self.settles = self.settles.wrapping_add(1);
        self.settles
    }

    /// What was answered and not flushed counts as lost: the next flush fails.
    pub fn count_as_lost(&mut self) {
        self.is_lost = true;
    }

    pub fn ended(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        let is_given_up = self.is_given_up();
        if !is_given_up && self.outstanding() >= self.bounds.operations {
            return Submitted::Full;
        }
        let Some(mut job) = self.job(token, operation) else {
            return Submitted::Done(Err(Failure::Io));
        };
        let has = |flag| self.export.flags.contains(flag);
        match job.command {
            Command::Flush if std::mem::take(&mut self.is_lost) => {
                return Submitted::Done(Err(Failure::Io));
            }
            Command::Flush if !has(ExportFlags::FLUSH) => return Submitted::Done(Ok(())),
            Command::Trim if !has(ExportFlags::TRIM) => return Submitted::Done(Ok(())),
            Command::WriteZeroes { .. } if !has(ExportFlags::WRITE_ZEROES) => {
                return Submitted::Done(Err(Failure::Unsupported));
            }
            _ => {}
        }
        if is_given_up {
            return Submitted::Done(Err(Failure::Io));
        }
        let written = self.written + job.written();
        if written > self.bounds.written && self.written > 0 && job.written() > 0 {
            return Submitted::Full;
        }
        self.written = written;
        if !has(ExportFlags::FUA)
            && let Command::Write { durable } | Command::WriteZeroes { durable, .. } =
                &mut job.command
        {
            job.then_flush = std::mem::take(durable) && has(ExportFlags::FLUSH);
        }
        let key = self.jobs.insert(job);
        self.send(key);
        Submitted::Accepted
    }

    fn job(&self, token: Token, operation: Operation<'_>) -> Option<Job> {
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR);
        let none: &[Span] = &[];
        let (command, offset, len, spans) = match operation {
            Operation::Read { sector, into } => (Command::Read, bytes(sector)?, None, into),
            Operation::Write { sector, from, durable } => {
                (Command::Write { durable }, bytes(sector)?, None, from)
            }
            Operation::Flush => (Command::Flush, 0, Some(0), none),
            Operation::Discard { sector, sectors } => {
                (Command::Trim, bytes(sector)?, Some(bytes(sectors)?), none)
            }
            Operation::WriteZeroes { sector, sectors, unmap, durable } => {
                let command = Command::WriteZeroes { may_free: unmap, durable };
                (command, bytes(sector)?, Some(bytes(sectors)?), none)
            }
        };
        let len = len.unwrap_or_else(|| spans.iter().map(Span::len).sum());
        Some(Job {
            token,
            command,
            offset,
            len: u32::try_from(len).ok()?,
            came: 0,
            spans: spans.to_vec(),
            link: None,
            silences: 0,
            then_flush: false,
            result: Ok(()),
            covers: self.answered,
            is_abandoned: false,
        })
    }

    /// Puts a job's request to those that a connection sends, if there is one.
    fn send(&mut self, key: usize) {
        let count = self.links.len();
        let ready = |at: &usize| self.links[*at].as_ref().is_some_and(Link::is_ready);
        let Some(at) = (0..count).map(|at| (self.next + at) % count).find(ready) else { return };
        self.next = at + 1;
        let (Some(link), Some(job)) = (&mut self.links[at], self.jobs.get_mut(key)) else { return };
        job.link = Some(at);
        (job.result, job.came) = (Ok(()), 0);
        let Job { command, offset, len, .. } = *job;
        let out = link.out();
        out.extend(Request { command, cookie: key as u64, offset, len }.bytes());
        if matches!(command, Command::Write { .. }) {
            for span in &job.spans {
                let old = out.len();
                out.resize(old + span.len() as usize, 0);
                // The room is as long as the span.
                let _ = span.read(0, &mut out[old..]);
            }
        }
        link.count_asked();
        let silent_at = link.silent_at(self.bounds.silence);
        if silent_at.is_some_and(|at| self.timer_at.is_none_or(|timer| at < timer)) {
            self.set_timer();
        }
    }

    /// Nobody waits any more for what this ring asked for: from now on nothing is read from its
    /// memory, and nothing is written there. What no connection was asked for ends with an error,
    /// the rest once it is answered or its connection is lost.
    pub fn abandon(&mut self, ring: u16) {
        let of_it = self.jobs.iter_mut().filter(|(_, job)| job.token.server == ring);
        let mut waiting = Vec::new();
        for (key, job) in of_it {
            (job.is_abandoned, job.then_flush) = (true, false);
            job.spans.clear();
            if job.link.is_none() {
                job.result = Err(Failure::Io);
                waiting.push(key);
            }
        }
        waiting.into_iter().for_each(|key| self.end(key));
    }

    /// Sends what waits.
    pub fn push(&mut self) {
        for at in 0..self.links.len() {
            let Some(link) = self.links[at].as_mut().filter(|link| link.is_sending()) else {
                continue;
            };
            if let Err(error) = link.push() {
                self.lose(at, &error);
                continue;
            }
            if let Some(link) = &self.links[at] {
                let mut flags = EventFlags::IN;
                flags.set(EventFlags::OUT, link.is_sending());
                let _ = epoll::modify(&self.epoll, link, EventData::new_u64(at as u64), flags);
            }
        }
    }

    pub fn poll(&mut self) -> Option<Completion> {
        if self.ended.is_empty() {
            self.pump();
        }
        self.ended.pop_front()
    }

    /// Takes what came at any connection.
    fn pump(&mut self) {
        let mut events = [MaybeUninit::uninit(); LINKS + 1];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((came, _)) = epoll::wait(&self.epoll, &mut events, Some(&none)) else { return };
        let came: Vec<u64> = came.iter().map(|event| event.data.u64()).collect();
        for at in came {
            if at == TIMER {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                self.try_again();
            } else if let Err(error) = self.hear(at as usize) {
                self.lose(at as usize, &error);
            }
        }
        self.push();
    }

    /// An answer came.
    fn end(&mut self, key: usize) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        self.written = self.written.saturating_sub(job.written());
        let (command, covers) = (job.command, job.covers);
        match (command, job.result) {
            (Command::Write { durable } | Command::WriteZeroes { durable, .. }, Ok(())) => {
                if job.then_flush {
                    (job.command, job.then_flush) = (Command::Flush, false);
                    (job.offset, job.len) = (0, 0);
                    self.answered += 1;
                    job.covers = self.answered;
                    job.spans.clear();
                    return self.send(key);
                }
                if !durable {
                    self.answered += 1;
                }
            }
            (Command::Flush, Ok(())) => self.flushed = self.flushed.max(covers),
            _ => {}
        }
        let job = self.jobs.remove(key);
        self.ended.push_back(Completion { token: job.token, result: job.result });
    }
}
