//! A port to the wire: a network controller's driver takes frames from it, and hands over those
//! that arrived; or the system below does, by frames with headers as guests have them.
//!
//! Guarantees: a frame that is to go out is whole, and no longer than [`MTU`] lets it, or, where
//! the other side is to make checksums or segments, says so in a [`Task`] or a header that fits the
//! frame; it is copied, so that no guest changes it any more. One that came in is copied, too,
//! before the switch looks at it. For more than [`PLACES`] places of frames that wait there is no
//! room.
use crate::deliver::Buffers;
use crate::error::Broken;
use crate::frame::{ETHERNET, Frame, TAG};
use crate::header::{GSO_NONE, GSO_TCPV6, HEADER_BYTES, Header, NEEDS_CSUM};
use crate::offload::{Cut, Offload, Partial};
use crate::{Features, MAX_FRAME};
use alloc::boxed::Box;
use virtqueue::{Chain, Head};
use window::Span;

/// The most bytes of a packet on the wire, behind the Ethernet header.
pub const MTU: u16 = 1500;
/// The most bytes of a frame there, its tag included.
pub const WIRE_FRAME: u32 = ETHERNET as u32 + TAG as u32 + MTU as u32;
/// Places for what waits to go out: for seven of the longest frames.
pub const PLACES: u64 = 256;
/// Bytes of a place: a frame begins in one, behind a header as guests have it, and goes on in the
/// next ones.
const PLACE: u64 = 2048;
/// Bytes of memory of an uplink, in whole pages.
pub const UPLINK_MEMORY: u64 = ((PLACES + 1) * PLACE).next_multiple_of(4096);
/// The same of one whose frames have headers: the longest may come in.
pub const LONG_UPLINK_MEMORY: u64 = (PLACES * PLACE + LONG_INBOX).next_multiple_of(4096);
/// The most bytes of a frame with its header and tag, and the room for one.
const LONGEST: u64 = HEADER_BYTES as u64 + MAX_FRAME as u64 + TAG as u64;
const LONG_INBOX: u64 = LONGEST.next_multiple_of(PLACE);
/// Where the checksums of TCP and UDP are, as controllers know them.
const TCP_SUM: u16 = 16;
const UDP_SUM: u16 = 6;
/// The least bytes of an IP header, and of data of a segment that a controller is to cut.
const IP: usize = 20;
const LEAST_SEGMENT: u16 = 256;

/// Frames below so many bytes are padded. The pseudo header has no room for that, and not every
/// controller leaves the padding out: QEMU's counts it.
const PADDED: u32 = 60;

/// Who makes the checksums and the segments of frames that go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The switch.
    Here,
    /// The controller, where a [`Task`] can tell it.
    ByController,
    /// Whoever reads [`Leaving::header`]. Frames that come in have one, too.
    ByHeader {
        /// It cuts UDP, too.
        udp: bool,
    },
}

/// What is left to do for a frame that goes out. Places are counted from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing.
    Nothing,
    /// The checksum: of what begins at `start`, where TCP has it, or UDP. In its place is the sum
    /// of the pseudo header.
    Checksum {
        /// Where the header of TCP or UDP is.
        start: u16,
        /// It is TCP's.
        tcp: bool,
    },
    /// Segments of TCP.
    Segments {
        /// Where TCP's header is.
        start: u16,
        /// It is in IPv6.
        six: bool,
        /// Bytes of all headers.
        headers: u16,
        /// Bytes of data of a segment.
        size: u16,
    },
}

/// A frame that goes out.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// Its bytes; the second part may have none, and has none if the switch finishes frames.
    pub parts: [Span; 2],
    /// The number of the port that it came from.
    pub sender: u32,
    /// Bytes of its Ethernet header, with the tag.
    pub ethernet: u16,
    /// What is left to do.
    pub task: Task,
    /// The same, as a guest would read it.
    pub header: [u8; HEADER_BYTES],
}

/// The frames on their way, in memory of the host's own.
#[derive(Debug)]
pub struct Uplink {
    /// The places.
    memory: Span,
    /// The frame that came in, behind its header, or one that asks for nothing.
    inbox: Span,
    finish: Finish,
    /// The places from the next free one on, to the memory's end and on from its start. Who fills
    /// them fills no more than were reserved.
    free: [Span; 2],
    /// How many places are free again, and how many were filled.
    gone: u64,
    put: u64,
    /// Of the frame that is delivered.
    sender: u32,
    /// By first places: a frame's bytes, and its sender.
    waiting: Box<[(u32, u32)]>,
}

/// So many bytes of the memory from this place on: to its end, and on from its start.
fn from(memory: &Span, place: u64, bytes: u64) -> Option<[Span; 2]> {
    let at = place % PLACES * PLACE;
    let first = bytes.min(PLACES * PLACE - at);
    Some([memory.sub(at, first)?, memory.sub(0, bytes - first)?])
}

/// The places for so many bytes of a frame.
fn places(bytes: u32) -> u64 {
    (u64::from(bytes) + HEADER_BYTES as u64).div_ceil(PLACE)
}

impl Uplink {
    /// Without frames, in [`UPLINK_MEMORY`] bytes, or [`LONG_UPLINK_MEMORY`].
    pub fn new(memory: Span, finish: Finish) -> Option<Uplink> {
        let inbox_bytes = match finish {
            Finish::ByHeader { .. } => LONG_INBOX,
            Finish::Here | Finish::ByController => PLACE,
        };
        let inbox = memory.sub(0, inbox_bytes)?;
        inbox.fill(0);
        let memory = memory.sub(inbox_bytes, PLACES * PLACE)?;
        Some(Uplink {
            memory,
            inbox,
            finish,
            free: from(&memory, 0, PLACES * PLACE)?,
            gone: 0,
            put: 0,
            sender: 0,
            waiting: (0..PLACES).map(|_| (0, 0)).collect(),
        })
    }

    /// Where a frame is put that comes in, with its header if frames have one.
    pub fn inbox(&self) -> Option<Span> {
        match self.finish {
            Finish::ByHeader { .. } => self.inbox.sub(0, LONGEST),
            _ => self.inbox.sub(HEADER_BYTES as u64, WIRE_FRAME.into()),
        }
    }

    /// This many bytes were put there: as a chain that a guest sends which accepted what this
    /// gives.
    pub fn arrived(&self, bytes: u32, chain: &mut Chain) -> Option<Features> {
        let (bytes, accepted) = match self.finish {
            Finish::ByHeader { .. } => {
                let tso = Features::HOST_TSO4 | Features::HOST_TSO6 | Features::HOST_ECN;
                (bytes.min(LONGEST as u32), Features::CSUM | tso | Features::HOST_USO)
            }
            _ => (bytes.min(WIRE_FRAME) + HEADER_BYTES as u32, Features::empty()),
        };
        chain.set_readable(self.inbox.sub(0, bytes.into())?);
        Some(accepted)
    }

    /// This frame is delivered next. Gives what its receiver would have accepted who can do for it
    /// what the controller can.
    pub fn begin(&mut self, frame: &Frame) -> Features {
        self.sender = frame.port.into();
        let segments = Features::GUEST_CSUM | Features::GUEST_TSO4 | Features::GUEST_TSO6;
        match frame.offload {
            _ if let Finish::ByHeader { udp } = self.finish => {
                let packets = Features::GUEST_USO4 | Features::GUEST_USO6;
                let udp = if udp { packets } else { Features::empty() };
                segments | Features::GUEST_ECN | udp
            }
            _ if self.finish == Finish::Here => Features::empty(),
            Offload::Nothing => Features::empty(),
            Offload::Checksum(partial) if frame.len < PADDED || !is_known(&frame.head, partial) => {
                Features::empty()
            }
            Offload::Checksum(_) => Features::GUEST_CSUM,
            Offload::Segments(cut) if is_cut_by_controller(cut) => segments,
            // The last one may be short.
            Offload::Segments(_) => Features::empty(),
        }
    }

    /// The oldest frame that is to go out. Its places are used again as soon as the next one comes.
    pub fn take(&mut self) -> Option<Leaving> {
        if self.gone == self.put {
            return None;
        }
        let &(bytes, sender) = self.waiting.get((self.gone % PLACES) as usize)?;
        let first = from(&self.memory, self.gone, places(bytes) * PLACE)?;
        self.gone += places(bytes);
        let [begin, rest] = first;
        let (header_bytes, bytes) = (HEADER_BYTES as u64, u64::from(bytes));
        let here = (begin.len() - header_bytes).min(bytes);
        let parts = [begin.sub(header_bytes, here)?, rest.sub(0, bytes - here)?];
        let (mut header, mut kind) = ([0; HEADER_BYTES], [0; 2]);
        begin.read(0, &mut header).ok()?;
        begin.read(header_bytes + 12, &mut kind).ok()?;
        let tag = if kind == [0x81, 0] { TAG } else { 0 };
        let ethernet = (ETHERNET + tag) as u16;
        Some(Leaving { parts, sender, ethernet, task: task(&Header::parse(&header)), header })
    }
}

/// Whether the controller knows where this checksum is: TCP's or UDP's, behind an IP header. The
/// head has no tag.
fn is_known(head: &[u8], Partial { start, offset }: Partial) -> bool {
    let kind = head.get(12..ETHERNET);
    let is_ip = kind == Some(&[0x08, 0x00]) || kind == Some(&[0x86, 0xDD]);
    is_ip && usize::from(start) >= ETHERNET + IP && (offset == TCP_SUM || offset == UDP_SUM)
}

/// Whether the controller cuts it. It isn't asked to do so with UDP.
fn is_cut_by_controller(cut: Cut) -> bool {
    cut.size >= LEAST_SEGMENT && !cut.ecn && !cut.udp
}

/// What a header asks for that was written for a controller.
fn task(header: &Header) -> Task {
    let Header { flags, gso_type, hdr_len: headers, gso_size: size, csum_start: start, .. } =
        *header;
    match gso_type {
        GSO_NONE if flags & NEEDS_CSUM == 0 => Task::Nothing,
        GSO_NONE => Task::Checksum { start, tcp: header.csum_offset == TCP_SUM },
        kind => Task::Segments { start, six: kind == GSO_TCPV6, headers, size },
    }
}

impl Buffers for Uplink {
    fn one(&mut self, _: u32) -> Result<Option<(Head, Span)>, Broken> {
        Ok(None)
    }

    fn complete_one(&mut self, _: Head, _: u32) {}

    fn reserve(&mut self, bytes: u32) -> Result<Option<u16>, Broken> {
        let most = match self.finish {
            Finish::Here => WIRE_FRAME,
            Finish::ByController | Finish::ByHeader { .. } => MAX_FRAME + TAG as u32,
        };
        let room = PLACES - (self.put - self.gone) >= places(bytes) && bytes <= most;
        // How many there are nobody asks.
        Ok(room.then_some(1))
    }

    fn spans(&self) -> &[Span] {
        &self.free
    }

    fn complete(&mut self, _: u16, bytes: u32) -> u64 {
        if let Some(waiting) = self.waiting.get_mut((self.put % PLACES) as usize) {
            *waiting = (bytes, self.sender);
        }
        self.put += places(bytes);
        if let Some(free) = from(&self.memory, self.put, PLACES * PLACE) {
            self.free = free;
        }
        0
    }
}
