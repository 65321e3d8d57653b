//! A network interface of the host's, by a packet socket: frames of many, in one call.
//!
//! Guarantees: nothing waits. A frame that came is as it was on the wire, its tag among it, behind
//! a virtio header that holds for it as it is. One that is longer than [`LONGEST`] is dropped.
//!
//! Not guaranteed: that the interface takes a frame. What the host itself sends there isn't seen,
//! nor what is for its own address: that is nobody else's, and nobody is woken up by it.

use crate::tap::interface_name;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io;
use window::Span;

/// Frames of one call.
pub const FRAMES: usize = 16;
/// Bytes of the header here: `num_buffers` included, which packet sockets don't have.
pub const HEADER: usize = 12;
const SOCKET_HEADER: usize = 10;
/// The most bytes of a frame, with a tag.
pub const LONGEST: usize = 65550 + TAG;
/// Bytes of a tag, and where it is in a frame.
const TAG: usize = 4;
const TAG_AT: usize = 12;
/// Bytes for a frame: the header, room for a tag, and from there on what came.
const FRAME: usize = HEADER + TAG;
const ROOM: usize = FRAME + LONGEST;
/// Places in the header.
const HDR_LEN: usize = 2;
const CSUM_START: usize = 6;
/// All protocols, as they stand in frames.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
/// `linux/if_packet.h`: frames have a virtio header.
const PACKET_VNET_HDR: libc::c_int = 15;
/// `linux/filter.h`: where a filter reads whom a frame is for.
const SKF_AD_OFF: u32 = 0xffff_f000;
const SKF_AD_PKTTYPE: u32 = 4;
/// Bytes of frames on their way that are asked for; the system may give less.
const ON_THE_WAY: libc::c_int = 4 << 20;
/// Bytes for what comes beside a frame.
const CONTROL: usize = 64;

/// What comes beside a frame, aligned as its header wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// An interface.
pub struct Packets {
    socket: OwnedFd,
    bytes: Box<[u8]>,
    /// What came: where in the bytes, and how many.
    came: [(usize, usize); FRAMES],
}

/// A frame that is to be sent: its header and its bytes.
#[derive(Clone, Copy)]
pub struct Outgoing {
    /// As guests have it.
    pub header: [u8; HEADER],
    /// Behind it; the second one may have none.
    pub parts: [Span; 2],
}

impl Packets {
    /// Opens the interface of this name. It takes frames of all addresses from now on.
    ///
    /// # Errors
    ///
    /// In words if the name can't be one; else the system's.
    pub fn open(name: &str) -> io::Result<Packets> {
        let bytes = interface_name(name)?;
        // SAFETY: the name ends with a zero.
        let index = unsafe { libc::if_nametoindex(bytes.as_ptr()) };
        let index = match index {
            0 => return Err(io::Error::last_os_error()),
            index => libc::c_int::try_from(index).map_err(io::Error::other)?,
        };
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: there are no pointers. Nothing comes before an interface is said.
        let socket = match unsafe { libc::socket(libc::AF_PACKET, kind, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: it is new, and nobody else's.
            socket => unsafe { OwnedFd::from_raw_fd(socket) },
        };
        let yes: libc::c_int = 1;
        set(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, &yes)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &yes)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &yes)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &ON_THE_WAY)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &ON_THE_WAY)?;
        let [own, from_kind] = [libc::PACKET_HOST.into(), SKF_AD_OFF + SKF_AD_PKTTYPE];
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, from_kind),
            step((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, own),
            step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
            step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        // SAFETY: all zeroes is an address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = ALL;
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is whole.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all zeroes is a request.
        let mut asked: libc::packet_mreq = unsafe { std::mem::zeroed() };
        asked.mr_ifindex = index;
        asked.mr_type = libc::PACKET_MR_PROMISC as libc::c_ushort;
        set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &asked)?;
        Ok(Self::taken_over(socket))
    }

    /// The same, by a socket that another program opened so.
    pub fn taken_over(socket: OwnedFd) -> Packets {
        let bytes = vec![0; FRAMES * ROOM].into_boxed_slice();
        Packets { socket, bytes, came: [(0, 0); FRAMES] }
    }

    /// The socket, for another program.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Was the interface removed? One that is down may come up again. Nothing is sent: without a
    /// header nothing would be.
    pub fn is_gone(&self) -> bool {
        let mut none = SendAncillaryBuffer::default();
        sendmsg(&self.socket, &[], &mut none, SendFlags::DONTWAIT) == Err(Errno::NXIO)
    }

    /// Takes frames that came: how many, in one call.
    ///
    /// # Errors
    ///
    /// The system's: the interface is down or gone.
    pub fn receive(&mut self) -> io::Result<usize> {
        let mut controls = [Control([0; CONTROL]); FRAMES];
        let mut parts = [[libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2]; FRAMES];
        // SAFETY: all zeroes is a message without anything.
        let mut messages: [libc::mmsghdr; FRAMES] = unsafe { std::mem::zeroed() };
        let each = self.bytes.chunks_exact_mut(ROOM).zip(&mut parts).zip(&mut controls);
        for (((bytes, parts), control), message) in each.zip(&mut messages) {
            let (header, frame) = bytes.split_at_mut(FRAME);
            parts[0].iov_base = header.as_mut_ptr().cast();
            parts[0].iov_len = SOCKET_HEADER;
            parts[1].iov_base = frame.as_mut_ptr().cast();
            parts[1].iov_len = frame.len();
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = parts.len();
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL;
        }
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let (messages_at, none) = (messages.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: each message is of two parts of its own piece of the bytes, and of its own room
        // for what comes beside; all of it is there until the call returns.
        let count =
            unsafe { libc::recvmmsg(socket, messages_at, FRAMES as libc::c_uint, flags, none) };
        let count = match usize::try_from(count) {
            Ok(count) => count.min(FRAMES),
            Err(_) => {
                let error = io::Error::last_os_error();
                let is_none = error.kind() == io::ErrorKind::WouldBlock;
                return if is_none { Ok(0) } else { Err(error) };
            }
        };
        for (at, message) in messages.iter().take(count).enumerate() {
            let is_cut = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            let frame = (message.msg_len as usize).checked_sub(SOCKET_HEADER);
            let Some(frame) = frame.filter(|len| !is_cut && *len >= TAG_AT) else {
                self.came[at] = (0, 0);
                continue;
            };
            let bytes = &mut self.bytes[at * ROOM..][..ROOM];
            bytes[SOCKET_HEADER..HEADER].fill(0);
            self.came[at] = match tag_of(&message.msg_hdr) {
                None => {
                    bytes.copy_within(..HEADER, TAG);
                    (at * ROOM + TAG, HEADER + frame)
                }
                Some(tag) => {
                    // The addresses go to the front, and the tag is between them and the rest.
                    bytes.copy_within(FRAME..FRAME + TAG_AT, HEADER);
                    bytes[HEADER + TAG_AT..][..TAG].copy_from_slice(&tag);
                    shift(&mut bytes[..HEADER]);
                    (at * ROOM, HEADER + TAG + frame)
                }
            };
        }
        Ok(count)
    }

    /// One of the frames that came, behind its header; nothing if it was too long.
    pub fn came(&self, number: usize) -> &[u8] {
        let (start, len) = self.came.get(number).copied().unwrap_or_default();
        self.bytes.get(start..start + len).unwrap_or_default()
    }

    /// Sends frames, [`FRAMES`] at most. Those that the interface doesn't take are dropped.
    pub fn send(&self, frames: &[Outgoing]) {
        let mut parts = [[libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 3]; FRAMES];
        // SAFETY: all zeroes is a message without anything.
        let mut messages: [libc::mmsghdr; FRAMES] = unsafe { std::mem::zeroed() };
        for ((frame, parts), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
            parts[0].iov_base = frame.header.as_ptr().cast_mut().cast();
            parts[0].iov_len = SOCKET_HEADER;
            for (part, span) in parts[1..].iter_mut().zip(&frame.parts) {
                part.iov_base = span.as_ptr().cast();
                part.iov_len = span.len() as usize;
            }
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = parts.len();
        }
        let mut rest = &mut messages[..frames.len().min(FRAMES)];
        while !rest.is_empty() {
            let (socket, count) = (self.socket.as_raw_fd(), rest.len() as libc::c_uint);
            // SAFETY: each message is of a header and of two spans, which are mapped; the kernel
            // reads them.
            let sent =
                unsafe { libc::sendmmsg(socket, rest.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
            // The first one of those that are left is what is refused.
            let done = usize::try_from(sent).unwrap_or(0).max(1);
            let error = (sent < 0).then(io::Error::last_os_error);
            if error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            rest = rest.get_mut(done..).unwrap_or_default();
        }
    }
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let (socket, len) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the value is whole, and read alone.
    match unsafe { libc::setsockopt(socket, level, option, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The tag that the system took off a frame, as it stood there.
fn tag_of(message: &libc::msghdr) -> Option<[u8; TAG]> {
    // SAFETY: the message is as the kernel left it.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: it is none, or lies in the message's own room.
    let header = unsafe { first.as_ref() }?;
    let is_it = header.cmsg_level == libc::SOL_PACKET
        && header.cmsg_type == libc::PACKET_AUXDATA
        && header.cmsg_len >= size_of::<libc::cmsghdr>() + size_of::<libc::tpacket_auxdata>();
    if !is_it {
        return None;
    }
    // SAFETY: it is as long as that; where it begins needn't be aligned.
    let beside: libc::tpacket_auxdata =
        unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if beside.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let kind = match beside.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => 0x8100,
        _ => beside.tp_vlan_tpid,
    };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), beside.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// A header whose frame has a tag more. Fields that don't hold are read by nobody.
fn shift(header: &mut [u8]) {
    let mut add = |at: usize| {
        if let Some([low, high]) = header.get_mut(at..at + 2) {
            let word = u16::from_le_bytes([*low, *high]).saturating_add(TAG as u16);
            [*low, *high] = word.to_le_bytes();
        }
    };
    add(HDR_LEN);
    add(CSUM_START);
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
