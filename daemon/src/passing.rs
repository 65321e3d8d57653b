//! Lines and descriptors from one program to another, by a socket, with an end to the waiting.
//!
//! Descriptors come in parts, each with a byte of its own: the kernel hands over no more at a time.

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Descriptors of a part: Linux takes 253.
const PART: usize = 128;
/// The longest line.
const LONGEST: usize = 64 << 20;

/// A socket, and until when it is waited for.
pub struct Passing<'a> {
    socket: &'a OwnedFd,
    begun: Instant,
    until: Instant,
    /// What came and wasn't taken.
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl<'a> Passing<'a> {
    pub fn new(socket: &'a OwnedFd, patience: Duration) -> Passing<'a> {
        let begun = Instant::now();
        let until = begun + patience;
        Passing { socket, begun, until, bytes: Vec::new(), descriptors: Vec::new() }
    }

    /// Sends a line.
    ///
    /// # Errors
    ///
    /// If the other side doesn't take it.
    pub fn say(&self, line: &str) -> Result<()> {
        let mut left = line.as_bytes();
        while !left.is_empty() {
            left = left.get(self.send(left, &[])?..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends descriptors.
    ///
    /// # Errors
    ///
    /// If the other side doesn't take them.
    pub fn give(&self, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        for part in descriptors.chunks(PART) {
            self.send(b"\n", part)?;
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PART))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors))
            {
                bail!("there are too many descriptors");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("the other program takes nothing"),
            }
        }
    }

    /// The next line, without its end.
    ///
    /// # Errors
    ///
    /// If the other side ends, says too much, or nothing for too long.
    pub fn hear(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                let line = std::mem::replace(&mut self.bytes, rest);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.receive()?;
        }
    }

    /// Does the other side say nothing for so many seconds?
    pub fn is_silent(&self, seconds: u64) -> bool {
        self.bytes.is_empty() && self.says_nothing(PollFlags::IN, Duration::from_secs(seconds))
    }

    /// Does nothing of this come within the time? A signal of this program's own is nothing.
    fn says_nothing(&self, what: PollFlags, limit: Duration) -> bool {
        let (mut waits, until) = ([PollFd::new(self.socket, what)], Instant::now() + limit);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut waits, Some(&left)) {
                Err(Errno::INTR) => {}
                told => return told == Ok(0),
            }
        }
    }

    /// So many descriptors, in order.
    ///
    /// # Errors
    ///
    /// As for [`Self::hear`].
    pub fn take(&mut self, count: usize) -> Result<Vec<OwnedFd>> {
        while self.descriptors.len() < count {
            self.receive()?;
        }
        // Each part has a line of its own without a word.
        for _ in 0..count.div_ceil(PART) {
            self.hear()?;
        }
        let rest = self.descriptors.split_off(count);
        Ok(std::mem::replace(&mut self.descriptors, rest))
    }

    /// Has the other side said more than was heard, or ended?
    pub fn has_more(&self) -> bool {
        let more = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        !self.bytes.is_empty() || !self.says_nothing(more, Duration::ZERO)
    }

    /// It is waited for until it has been used for so long.
    pub fn wait_until(&mut self, age: Duration) {
        self.until = self.begun + age;
    }

    /// Since when it has been used.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    fn receive(&mut self) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PART))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(self.socket, into, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return self.wait(PollFlags::IN),
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).context("the other program can't be heard"),
        };
        if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
            bail!("this program may not have as many files: raise its limit (ulimit -n)");
        }
        if received.bytes == 0 {
            bail!("the other program ended");
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        self.bytes.extend(&bytes[..received.bytes]);
        if self.bytes.len() > LONGEST {
            bail!("the other program says more than it may");
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("the other program doesn't answer");
        }
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(self.socket, what)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("the system doesn't wait"),
        }
    }
}
