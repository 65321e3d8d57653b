//! Messages with their descriptors, from a socket that this program never waits for.
//!
//! Guarantees: what came of a message is kept until the rest comes; at most one message's bytes and
//! descriptors are, however many came along. A front end that doesn't take its replies is an error.

use crate::foreign::{Foreign, Unclosed};
use crate::pace::{Pace, measured};
use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use vhost_user::{HEADER_BYTES, Header, MAX_HANDLES, MAX_PAYLOAD};

/// As many descriptors as Linux lets be sent at a time. It closes those for which there is no room,
/// in this thread. With too few files for them it does so nevertheless: a tick ends what that waits
/// for.
const MOST_SENT: usize = 253;

/// A message that came whole.
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub descriptors: Vec<Foreign>,
}

/// What there was to read.
pub enum Received {
    Message(Message),
    /// No whole message yet.
    Nothing,
    /// The front end closed the socket.
    End,
}

/// The socket of a connection, and what came of a message.
pub struct Socket {
    socket: OwnedFd,
    /// Of its device.
    unclosed: Unclosed,
    /// How long it takes to take from it, and to put into it: who waits there is woken up.
    pace: Pace,
    /// The front end says nothing any more.
    is_at_end: bool,
    bytes: [u8; HEADER_BYTES + MAX_PAYLOAD],
    filled: usize,
    header: Option<Header>,
    descriptors: Vec<Foreign>,
}

impl Socket {
    pub fn new(socket: OwnedFd, unclosed: Unclosed) -> Socket {
        Socket {
            socket,
            unclosed,
            pace: Pace::default(),
            is_at_end: false,
            bytes: [0; HEADER_BYTES + MAX_PAYLOAD],
            filled: 0,
            header: None,
            descriptors: Vec::new(),
        }
    }

    /// One of which this came already.
    ///
    /// # Errors
    ///
    /// If it is more than a message.
    pub fn with(
        socket: OwnedFd,
        unclosed: Unclosed,
        came: &[u8],
        descriptors: Vec<Foreign>,
    ) -> Result<Socket> {
        let mut made = Socket::new(socket, unclosed);
        let place = made.bytes.get_mut(..came.len()).context("more than a message came")?;
        place.copy_from_slice(came);
        if descriptors.len() > MAX_HANDLES {
            bail!("more than {MAX_HANDLES} descriptors came with a message");
        }
        // The header is looked at when the rest of it, or what follows, has come.
        (made.filled, made.descriptors) = (came.len(), descriptors);
        Ok(made)
    }

    /// What came of a message that isn't whole.
    pub fn came(&self) -> (&[u8], &[Foreign]) {
        (self.bytes.get(..self.filled).unwrap_or_default(), &self.descriptors)
    }

    /// Closes it. In one that the front end hasn't closed there may be descriptors.
    pub fn leave(self) {
        if !self.is_at_end {
            Foreign::new(self.socket, &self.unclosed).end();
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes what there is of a message.
    pub fn receive(&mut self) -> Result<Received> {
        self.unclosed.fits()?;
        loop {
            let wanted = match &self.header {
                None => HEADER_BYTES,
                Some(header) => HEADER_BYTES + header.size,
            };
            if self.filled < wanted {
                match self.read(wanted)? {
                    None => return Ok(Received::Nothing),
                    Some(0) if self.filled == 0 => return Ok(Received::End),
                    Some(0) => bail!("the front end left within a message"),
                    Some(more) => self.filled += more,
                }
                continue;
            }
            let Some(header) = self.header.take() else {
                let head = self.bytes.first_chunk().context("a header is shorter")?;
                self.header = Some(Header::parse(head)?);
                continue;
            };
            let payload = self.bytes[HEADER_BYTES..wanted].to_vec();
            self.filled = 0;
            let descriptors = std::mem::take(&mut self.descriptors);
            return Ok(Received::Message(Message { header, payload, descriptors }));
        }
    }

    /// Reads up to this byte: how many came. None if there is nothing yet.
    fn read(&mut self, end: usize) -> Result<Option<usize>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut self.bytes[self.filled..end])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let receive = || recvmsg(&self.socket, into, &mut control, flags);
        let (received, took) = measured(|| daemon_os::interrupted(receive));
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error).context("the socket can't be read"),
        };
        let is_quick = self.pace.allows(took);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                let rights = rights.map(|file| Foreign::new(file, &self.unclosed));
                self.descriptors.extend(rights);
            }
        }
        if self.descriptors.len() > MAX_HANDLES {
            bail!("more than {MAX_HANDLES} descriptors came with a message");
        }
        if !is_quick {
            bail!("so many wait at the front end's socket that taking a message took {took:?}");
        }
        self.is_at_end = received.bytes == 0;
        Ok(Some(received.bytes))
    }

    /// Replies to a request, with a descriptor if there is one.
    pub fn reply(
        &mut self,
        request: u32,
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let bytes = [&Header::reply(request, payload.len())[..], payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights: Vec<_> = descriptor.into_iter().collect();
        if !rights.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&rights));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send = || sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags);
        let (sent, took) = measured(send);
        if !self.pace.allows(took) {
            bail!("so many wait at the front end's socket that a reply took {took:?}");
        }
        match sent.context("the front end takes no reply")? {
            count if count == bytes.len() => Ok(()),
            _ => bail!("the front end takes no whole reply"),
        }
    }
}
