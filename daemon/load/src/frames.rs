//! Frames from one network device to another: what a VM that sends and one that receives do with
//! their rings, both here. Descriptors are written once, and go round; so are the frames.
//!
//! As many frames are under way as were asked for, and buffers for more are there, so that a switch
//! has no reason to drop one. Frames of more than an Ethernet frame's bytes are TCP segments that
//! are to be cut by whoever can't take them whole; they are asked for only if both devices can.

use crate::connection::{Connection, EVENT_INDEX, Told};
use crate::line::{ELEMENTS, LINE_BYTES, Line};
use anyhow::{Result, bail};
use std::path::Path;
use window::Span;

/// VIRTIO_NET_F_MRG_RXBUF, and what frames to be cut need: CSUM, GUEST_CSUM, GUEST_TSO4, HOST_TSO4.
const MERGED: u64 = 1 << 15;
const CUT: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 11;
/// The receive ring, the transmit ring.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// What is where in the memory: two rings, and a place for each frame.
const PLACES: u64 = 2 * LINE_BYTES;
/// The most frames under way: half of the buffers.
pub const MOST: u16 = ELEMENTS / 2;
/// Bytes in front of each frame, of a frame at least and at most, and of one that isn't to be cut.
const HEADER: u32 = 12;
const LEAST: u32 = 60;
const LONGEST: u32 = 65_536;
const WHOLE: u32 = 1_514;
/// A place for a frame has a multiple of this many bytes, as a driver's has that shares pages.
const ROOM: u64 = 2048;
/// Of a segment, without headers.
const SEGMENT: u16 = 1448;
const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
const WRITE: u16 = 2;
/// The stations' addresses, as `bench io` gives them to the daemon's ports.
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// One device, and its two rings.
struct Station {
    _connection: Connection,
    memory: Span,
    receive: Line,
    transmit: Line,
    told: [Told; 2],
}

/// Both of them, and what is under way between them.
pub struct Stations {
    sender: Station,
    receiver: Station,
    bytes: u32,
    /// Places whose frame was sent.
    free: Vec<u16>,
    /// When those were sent that are under way, the first one at `first`.
    sent: Vec<u64>,
    first: usize,
    under_way: u16,
}

fn room(bytes: u32) -> u64 {
    u64::from(bytes + HEADER).next_multiple_of(ROOM)
}

impl Station {
    fn new(socket: &Path, bytes: u32) -> Result<Station> {
        let needed = MERGED | if bytes > WHOLE { CUT } else { 0 };
        let all = PLACES + u64::from(ELEMENTS) * room(bytes);
        let mut connection = Connection::open(socket, 2, (needed, EVENT_INDEX), all)?;
        let memory = connection.memory()?;
        let ring = |at| memory.sub(at, LINE_BYTES).unwrap_or(Span::EMPTY);
        let event_index = connection.has_event_index();
        let receive = Line::new(ring(0), event_index);
        let transmit = Line::new(ring(LINE_BYTES), event_index);
        for line in [&receive, &transmit] {
            line.want_calls(false)?;
        }
        let told = [connection.start(RECEIVE, 0)?, connection.start(TRANSMIT, LINE_BYTES)?];
        Ok(Station { _connection: connection, memory, receive, transmit, told })
    }
}

impl Stations {
    /// Both are there, and the receiver has buffers for all that comes.
    pub fn new(sender: &Path, receiver: &Path, bytes: u32) -> Result<Stations> {
        if !(LEAST..=LONGEST).contains(&bytes) {
            bail!("a frame can have {LEAST} to {LONGEST} bytes, and not {bytes}");
        }
        let mut receiver = Station::new(receiver, bytes)?;
        let sender = Station::new(sender, bytes)?;
        let frame = frame(bytes);
        for slot in 0..ELEMENTS {
            let (at, whole) = (PLACES + u64::from(slot) * room(bytes), bytes + HEADER);
            let place = u64::from(slot) * 16;
            receiver.receive.describe(place, at, room(bytes) as u32, WRITE, 0)?;
            receiver.receive.offer(slot)?;
            sender.transmit.describe(place, at, whole, 0, 0)?;
            sender.memory.write(at, &frame)?;
        }
        let kick = receiver.receive.publish()?;
        receiver.told[RECEIVE].kick(kick)?;
        let free = (0..ELEMENTS).collect();
        let sent = vec![0; ELEMENTS.into()];
        Ok(Stations { sender, receiver, bytes, free, sent, first: 0, under_way: 0 })
    }

    /// Sends until so many are under way.
    #[inline]
    pub fn send(&mut self, depth: u16, now: u64) -> Result<()> {
        let line = &mut self.sender.transmit;
        let index = line.used()?;
        while let Some((slot, _)) = line.next(index)? {
            self.free.push(slot as u16);
        }
        let before = self.under_way;
        while self.under_way < depth
            && let Some(slot) = self.free.pop()
        {
            line.offer(slot)?;
            let at = (self.first + usize::from(self.under_way)) % self.sent.len();
            if let Some(sent) = self.sent.get_mut(at) {
                *sent = now;
            }
            self.under_way += 1;
        }
        if self.under_way > before {
            let kick = line.publish()?;
            self.sender.told[TRANSMIT].kick(kick)?;
        }
        Ok(())
    }

    /// Takes what has arrived: how many, and `latency` is told of each.
    #[inline]
    pub fn receive(
        &mut self,
        now: impl FnOnce() -> u64,
        mut latency: impl FnMut(u64),
    ) -> Result<u32> {
        let line = &mut self.receiver.receive;
        let index = line.used()?;
        let Some(mut next) = line.next(index)? else { return Ok(0) };
        let (now, mut count) = (now(), 0);
        loop {
            let (slot, len) = next;
            if len != self.bytes + HEADER {
                bail!("{len} bytes arrived, of {} that were sent", self.bytes + HEADER);
            }
            line.offer(slot as u16)?;
            let sent = self.sent.get(self.first).copied().unwrap_or(now);
            latency(now.saturating_sub(sent));
            self.first = (self.first + 1) % self.sent.len();
            self.under_way = self.under_way.saturating_sub(1);
            count += 1;
            match line.next(index)? {
                Some(more) => next = more,
                None => break,
            }
        }
        let kick = line.publish()?;
        self.receiver.told[RECEIVE].kick(kick)?;
        Ok(count)
    }

    /// Those under way are lost.
    pub fn forget(&mut self) {
        self.under_way = 0;
    }

    /// Where the receiver is called.
    pub fn call(&self) -> &Told {
        &self.receiver.told[RECEIVE]
    }

    /// The receiver wants calls from now on, or not. Whether something has arrived meanwhile.
    pub fn want_calls(&self, wanted: bool) -> Result<bool> {
        self.receiver.receive.want_calls(wanted)
    }

    pub fn kicks(&self) -> u64 {
        let both = [&self.sender, &self.receiver];
        both.iter().flat_map(|station| &station.told).map(|told| told.kicks).sum()
    }
}

/// A frame with its header in front.
fn frame(bytes: u32) -> Vec<u8> {
    let mut all = vec![0; (HEADER + bytes) as usize];
    let (header, frame) = all.split_at_mut(HEADER as usize);
    frame[..6].copy_from_slice(&RECEIVER);
    frame[6..12].copy_from_slice(&SENDER);
    // An experiment's, or IPv4.
    frame[12..14].copy_from_slice(&if bytes > WHOLE { [8, 0] } else { [0x88, 0xb5] });
    if bytes <= WHOLE {
        return all;
    }
    let headers = ETHERNET + IP + TCP;
    // NEEDS_CSUM, GSO_TCPV4, and both sizes; the checksum of TCP begins behind IP's header.
    header[..2].copy_from_slice(&[1, 1]);
    header[2..4].copy_from_slice(&(headers as u16).to_le_bytes());
    header[4..6].copy_from_slice(&SEGMENT.to_le_bytes());
    header[6..8].copy_from_slice(&((ETHERNET + IP) as u16).to_le_bytes());
    header[8..10].copy_from_slice(&16_u16.to_le_bytes());
    let packet = (bytes as usize - ETHERNET) as u16;
    let ip = &mut frame[ETHERNET..ETHERNET + IP];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&packet.to_be_bytes());
    (ip[8], ip[9]) = (64, 6);
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !folded(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // That of the addresses, the protocol and the length is there; the rest is to be added.
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend((packet - IP as u16).to_be_bytes());
    let tcp = &mut frame[ETHERNET + IP..headers];
    tcp[..4].copy_from_slice(&[0x30, 0, 0x30, 1]);
    // Five words of header, ACK.
    (tcp[12], tcp[13]) = (0x50, 0x10);
    tcp[16..18].copy_from_slice(&folded(&pseudo).to_be_bytes());
    all
}

/// The sum of these words as ones' complement.
fn folded(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_frames_add_up() {
        let small = frame(64);
        assert_eq!((small.len(), &small[..12]), (76, &[0; 12][..]));
        let large = frame(LONGEST);
        let ip = &large[12 + ETHERNET..][..IP];
        assert_eq!(folded(ip), 0xffff);
        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 65_522);
    }
}
