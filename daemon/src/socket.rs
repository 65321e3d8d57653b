//! Messages with their descriptors. A message that doesn't come whole within a second is an error.

use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vhost_user::{HEADER_BYTES, Header};

const PATIENCE: Duration = Duration::from_secs(1);

/// A message that came whole.
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// The socket of a connection.
pub struct Socket(UnixStream);

impl Socket {
    pub fn new(stream: UnixStream) -> Result<Socket> {
        stream.set_read_timeout(Some(PATIENCE)).context("the socket has no time-out")?;
        stream.set_write_timeout(Some(PATIENCE)).context("the socket has no time-out")?;
        Ok(Socket(stream))
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next message. None if the front end closed the socket.
    pub fn receive(&mut self) -> Result<Option<Message>> {
        let mut bytes = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = received.context("the socket can't be read")?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let rest = bytes.get_mut(received.bytes..).unwrap_or_default();
        self.0.read_exact(rest).context("a header didn't come whole")?;
        let header = Header::parse(&bytes)?;
        let mut payload = vec![0; header.size];
        self.0.read_exact(&mut payload).context("a message didn't come whole")?;
        Ok(Some(Message { header, payload, descriptors }))
    }

    /// Replies to a request, with a descriptor if there is one.
    pub fn reply(
        &mut self,
        request: u32,
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let bytes = [&Header::reply(request, payload.len())[..], payload].concat();
        let Some(descriptor) = descriptor else {
            return self.0.write_all(&bytes).context("the front end takes no reply");
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = [descriptor];
        control.push(SendAncillaryMessage::ScmRights(&rights));
        let sent = sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        match sent.context("the front end takes no reply")? {
            count if count == bytes.len() => Ok(()),
            _ => bail!("the front end takes no whole reply"),
        }
    }
}

/// An eventfd of the front end, which never makes this program wait.
pub fn event(descriptor: OwnedFd) -> Result<OwnedFd> {
    fcntl_setfl(&descriptor, OFlags::RDWR | OFlags::NONBLOCK)
        .context("an eventfd can't be made non-blocking")?;
    Ok(descriptor)
}

/// Tells the other side. If the counter is full, it was told already.
pub fn signal(descriptor: &OwnedFd) {
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}

/// Takes what the other side told.
pub fn take(descriptor: &OwnedFd) {
    let _ = rustix::io::read(descriptor, &mut [0; 8]);
}
