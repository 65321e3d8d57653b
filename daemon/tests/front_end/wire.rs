//! Messages of a front end.
#![allow(dead_code, reason = "each test uses a part")]

use rustix::event::Timespec;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const NEED_REPLY: u32 = 1 | 1 << 3;
/// Nothing takes as long.
pub const LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A connection to the daemon.
pub struct Wire(UnixStream);

impl Wire {
    pub fn connect(path: &str) -> Wire {
        Wire::new(UnixStream::connect(path).expect("it listens"))
    }

    pub fn new(socket: UnixStream) -> Wire {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it has one");
        Wire(socket)
    }

    pub fn socket(&self) -> &UnixStream {
        &self.0
    }

    /// Bytes that are no whole message.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it is sent");
    }

    /// The daemon closes the connection.
    pub fn expect_end(&mut self) {
        assert!(matches!(self.0.read(&mut [0; 64]), Ok(0) | Err(_)));
    }

    /// A request with a reply.
    pub fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, 1, payload, &[]);
        self.receive().0
    }

    /// A request that goes well.
    pub fn tell(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, NEED_REPLY, payload, files);
        assert_eq!(self.receive().0, [0; 8], "request {request}");
    }

    pub fn send(&mut self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        assert!(self.is_sent(request, flags, payload, files), "request {request} is sent");
    }

    /// Sends it, unless the connection has ended.
    pub fn is_sent(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> bool {
        let header = words32([request, flags, payload.len() as u32]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let bytes = [header, payload.to_vec()].concat();
        let all = [IoSlice::new(&bytes)];
        match sendmsg(&self.0, &all, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => true,
            Err(Errno::PIPE | Errno::CONNRESET) => false,
            Err(error) => panic!("request {request}: {error}"),
        }
    }

    /// Does something come within so many seconds?
    pub fn has_come(&self, seconds: i64) -> bool {
        let limit = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
        let flags = rustix::event::PollFlags::IN;
        let mut waits = [rustix::event::PollFd::new(&self.0, flags)];
        rustix::event::poll(&mut waits, Some(&limit)) == Ok(1)
    }

    /// Waits for what comes; whether that is the end.
    pub fn has_ended(&self) -> bool {
        let came = rustix::io::retry_on_intr(|| recv(&self.0, &mut [0_u8; 1], RecvFlags::PEEK));
        !matches!(came, Ok((1.., ..)))
    }

    pub fn receive(&mut self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut header)];
        // A process that was stopped and goes on has its call interrupted.
        let got = rustix::io::retry_on_intr(|| {
            recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        assert_eq!(got.expect("a reply").bytes, 12);
        let file = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let size = u32::from_le_bytes(header[8..].try_into().expect("a word"));
        let mut payload = vec![0; size as usize];
        self.0.read_exact(&mut payload).expect("a whole reply");
        (payload, file)
    }
}

pub fn words32<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn words64<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
