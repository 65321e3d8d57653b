//! One connection to an NBD server: its socket, the handshake, bytes in and out, in TLS if that is
//! asked for. It never waits.

use super::tls::{Identity, Records};
use anyhow::{Context as _, Result, bail};
use blk::{Failure, Token};
use nbd::{Asked, Command, Event, Export, Handshake, Progress, Replies};
use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
    set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use window::Span;

/// Bytes that are read at a time, and how often before others have their turn.
const READ: usize = 256 << 10;
const READS: u32 = 4;
/// How long a host may not acknowledge what was sent, and after what silence it is asked to.
const SILENCE: Duration = Duration::from_secs(10);
/// Room for what is to be sent that is kept though there is nothing.
const KEPT: usize = 1 << 20;

/// Where a server is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Address {
    Host(SocketAddr),
    Unix(PathBuf),
}

/// An operation that hasn't ended.
pub struct Job {
    pub token: Token,
    pub command: Command,
    /// Bytes.
    pub offset: u64,
    pub len: u32,
    /// A read: the bytes of it that came.
    pub came: u32,
    pub spans: Vec<Span>,
    /// By which connection it was asked for.
    pub link: Option<usize>,
    /// How many connections didn't answer it in time.
    pub silences: u32,
    /// A flush is to follow.
    pub then_flush: bool,
    pub result: std::result::Result<(), Failure>,
    /// A flush: the writes that were answered before.
    pub covers: u64,
    /// Nobody waits for it any more: its memory may be another's, and is none of its spans.
    pub is_abandoned: bool,
}

impl Job {
    fn asked(&self) -> Asked {
        let reads = if self.command == Command::Read { self.len } else { 0 };
        Asked { reads, offset: self.offset }
    }

    /// So many bytes of a read came. More than are read are no answer to it: there would be no end
    /// to holes, which a server tells in 32 bytes each.
    fn comes(&mut self, bytes: u32) -> Result<()> {
        let came = self.came.checked_add(bytes).filter(|came| *came <= self.len);
        self.came = came.context("the server says more than it was asked for")?;
        Ok(())
    }

    /// Bytes that are copied to be sent.
    pub fn written(&self) -> u64 {
        let writes = matches!(self.command, Command::Write { .. });
        if writes { self.len.into() } else { 0 }
    }
}

enum State {
    Shaking(Handshake),
    Ready(Replies),
}

/// A connection.
pub struct Link {
    socket: OwnedFd,
    state: State,
    /// What came and isn't done with.
    came: Vec<u8>,
    /// What is to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    began: Instant,
    /// TLS, from when both sides know; before, it is the other one.
    tls: Option<Box<Records>>,
    next_tls: Option<Box<Records>>,
    /// Requests that haven't ended.
    asked: usize,
    /// Since when nothing has come, or nothing was asked for.
    quiet_since: Instant,
}

impl Link {
    /// Begins one, over TLS if there is an identity for it. Whether the server is there shows
    /// later.
    pub fn new(address: &Address, export: &str, identity: Option<&Identity>) -> Result<Link> {
        let family = match address {
            Address::Host(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Host(SocketAddr::V6(_)) => AddressFamily::INET6,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connected = match address {
            Address::Host(address) => {
                set_tcp_nodelay(&socket, true)?;
                // A server that is gone without a word: as if it had closed the connection.
                set_tcp_keepidle(&socket, SILENCE)?;
                set_tcp_keepintvl(&socket, SILENCE / 5)?;
                set_socket_keepalive(&socket, true)?;
                set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?;
                connect(&socket, address)
            }
            Address::Unix(path) => connect(&socket, &SocketAddrUnix::new(path)?),
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => {
                return Err(error).context("the server isn't there; start it, or mend the address");
            }
        }
        let next_tls = identity.map(Identity::connection).transpose()?.map(Box::new);
        let state = State::Shaking(Handshake::new(export, next_tls.is_some()));
        let began = Instant::now();
        Ok(Link {
            socket,
            state,
            came: Vec::new(),
            out: Vec::new(),
            sent: 0,
            began,
            tls: None,
            next_tls,
            asked: 0,
            quiet_since: began,
        })
    }

    /// One that has shaken hands, and at which nothing is under way.
    pub fn ready(socket: OwnedFd, structured: bool) -> Link {
        let state = State::Ready(Replies::new(structured));
        let (came, out, began) = (Vec::new(), Vec::new(), Instant::now());
        let (tls, next_tls, quiet_since) = (None, None, began);
        Link { socket, state, came, out, sent: 0, began, tls, next_tls, asked: 0, quiet_since }
    }

    /// Has it shaken hands, with nothing left to be sent or looked at?
    pub fn is_idle(&self) -> bool {
        self.is_ready() && !self.is_sending() && self.came.is_empty()
    }

    /// Can another process go on with it? Nobody but this one has the keys of a TLS connection.
    pub fn can_be_given(&self) -> bool {
        self.is_idle() && self.tls.is_none()
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Has it shaken hands for longer than this?
    pub fn shakes_for(&self, limit: Duration) -> bool {
        !self.is_ready() && self.began.elapsed() > limit
    }

    /// Is there something to send that the socket hasn't taken?
    pub fn is_sending(&self) -> bool {
        self.sent < self.out.len() || self.tls.as_ref().is_some_and(|tls| tls.is_sending())
    }

    /// A request is put to what is sent.
    pub fn count_asked(&mut self) {
        if self.asked == 0 {
            self.quiet_since = Instant::now();
        }
        self.asked += 1;
    }

    /// When it has been silent for so long, though something is asked for.
    pub fn silent_at(&self, limit: Duration) -> Option<Instant> {
        (self.asked > 0).then(|| self.quiet_since + limit)
    }

    /// Bytes that came and weren't looked at.
    #[cfg(test)]
    pub fn came(&self) -> usize {
        self.came.len()
    }

    /// What is to be sent is put there; [`Self::push`] sends it.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends as much as the socket takes.
    pub fn push(&mut self) -> Result<()> {
        if let Some(tls) = &mut self.tls {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            self.sent += tls.push(self.socket.as_fd(), rest)?;
            self.forget_sent();
            return Ok(());
        }
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            // By `write`, which every sandbox allows. SIGPIPE is ignored by this program.
            match write(&self.socket, rest) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOTCONN) => break,
                Err(error) => return Err(error).context("the server takes nothing"),
            }
        }
        self.forget_sent();
        Ok(())
    }

    /// Drops what was sent, if that moves no more bytes than it drops.
    fn forget_sent(&mut self) {
        let left = self.out.len() - self.sent;
        if self.sent >= left {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        if left == 0 {
            self.out.shrink_to(KEPT);
        }
    }

    /// Reads what came, or a good part of it: more than that isn't kept before it is looked at.
    pub fn read_some(&mut self) -> Result<()> {
        for _ in 0..READS {
            if !self.read()? {
                break;
            }
        }
        Ok(())
    }

    /// Reads once. False: there was nothing.
    fn read(&mut self) -> Result<bool> {
        let into = match &mut self.tls {
            Some(tls) => tls.room(),
            None => &mut self.came,
        };
        into.reserve(READ);
        match read(&self.socket, spare_capacity(into)) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(_) => {
                self.quiet_since = Instant::now();
                if let Some(tls) = &mut self.tls {
                    tls.open(self.socket.as_fd(), &mut self.came)?;
                }
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("the server can't be heard"),
        }
    }

    /// Goes on with the handshake: the export, once it is done.
    pub fn shake(&mut self) -> Result<Option<Export>> {
        while let State::Shaking(handshake) = &mut self.state {
            let is_sending = self.sent < self.out.len();
            let (count, progress) = handshake.hear(&self.came, &mut self.out)?;
            self.came.drain(..count);
            match progress {
                Progress::Done(export) => {
                    self.state = State::Ready(Replies::new(export.structured));
                    return Ok(Some(export));
                }
                // Who is between the two could have put something there: nothing that was in the
                // clear counts from here on.
                Progress::StartTls if is_sending || !self.came.is_empty() => {
                    bail!("the server says more than that TLS begins")
                }
                Progress::StartTls => self.tls = self.next_tls.take(),
                Progress::Shaking if count == 0 => break,
                Progress::Shaking => {}
            }
        }
        Ok(None)
    }

    /// Takes all replies that came, as the connection of this number: the jobs that `ended`, also
    /// before an error.
    pub fn replies(
        &mut self,
        at: usize,
        jobs: &mut Slab<Job>,
        ended: &mut Vec<usize>,
    ) -> Result<()> {
        let mut from = 0;
        let State::Ready(replies) = &mut self.state else { return Ok(()) };
        loop {
            let bytes = self.came.get(from..).unwrap_or_default();
            let (count, event) = replies.hear(bytes, |cookie| {
                let job = jobs.get(cookie as usize).filter(|job| job.link == Some(at))?;
                Some(job.asked())
            })?;
            from += count;
            match event {
                Event::Nothing => break,
                Event::Data { cookie, at, bytes } => {
                    if let Some(job) = jobs.get_mut(cookie as usize) {
                        job.comes(bytes.len() as u32)?;
                        scatter(&job.spans, at, bytes.len(), |span, part| {
                            // The span is a part of its own length.
                            let _ = span.write(0, bytes.get(part).unwrap_or_default());
                        });
                    }
                }
                Event::Hole { cookie, at, len } => {
                    if let Some(job) = jobs.get_mut(cookie as usize) {
                        job.comes(len)?;
                        scatter(&job.spans, at, len as usize, |span, _| span.fill(0));
                    }
                }
                Event::Failed { cookie, error } => {
                    if let Some(job) = jobs.get_mut(cookie as usize) {
                        job.result = Err(failure(error));
                    }
                }
                Event::End { cookie } => {
                    self.asked = self.asked.saturating_sub(1);
                    // From here on the cookie is nobody's.
                    if let Some(job) = jobs.get_mut(cookie as usize) {
                        job.link = None;
                        // Chunks may be missing, and memory is as it was there.
                        if job.command == Command::Read && job.came != job.len {
                            job.result = job.result.and(Err(Failure::Io));
                        }
                    }
                    ended.push(cookie as usize);
                }
            }
        }
        self.came.drain(..from);
        Ok(())
    }
}

/// Calls `put` for each piece of the `len` bytes from `at` on: its memory, and its place among
/// them.
fn scatter(spans: &[Span], at: u32, len: usize, put: impl Fn(&Span, Range<usize>)) {
    let (mut skip, mut done) = (u64::from(at), 0);
    for span in spans {
        if done == len {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let count = (span.len() - skip).min((len - done) as u64);
        if let Some(part) = span.sub(skip, count) {
            put(&part, done..done + count as usize);
        }
        (skip, done) = (0, done + count as usize);
    }
}

/// What the guest is told of an error: ENOTSUP and EINVAL are of what the server can't do.
fn failure(error: u32) -> Failure {
    match error {
        22 | 95 => Failure::Unsupported,
        _ => Failure::Io,
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(self.socket.as_fd());
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
