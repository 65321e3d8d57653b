//! A port to the wire: a network controller's driver takes frames from it, and hands over those
//! that arrived.
//!
//! Guarantees: a frame that is to go out is whole, has its checksums, and is no longer than
//! [`MTU`] lets it; it is copied, so that no guest changes it any more. One that came in is copied,
//! too, before the switch looks at it. For more than [`FRAMES`] frames that wait there is no room.
use crate::deliver::Buffers;
use crate::error::Broken;
use crate::frame::{ETHERNET, TAG};
use crate::header::HEADER_BYTES;
use virtqueue::{Chain, Head};
use window::Span;

/// The most bytes of a packet on the wire, behind the Ethernet header.
pub const MTU: u16 = 1500;
/// The most bytes of a frame there, its tag included.
pub const WIRE_FRAME: u32 = ETHERNET as u32 + TAG as u32 + MTU as u32;
/// Frames that may wait to go out. A guest's longest, cut into segments as usual, are fewer.
const FRAMES: u64 = 64;
/// Bytes of a place for one: a header as guests have it, which nobody reads, and the frame.
const PLACE: u64 = 2048;
/// Bytes of memory of an uplink, in whole pages.
pub const UPLINK_MEMORY: u64 = ((FRAMES + 1) * PLACE).next_multiple_of(4096);

/// The frames on their way, in memory of the host's own.
#[derive(Debug)]
pub struct Uplink {
    memory: Span,
    /// The frame that came in, behind a header that asks for nothing.
    inbox: Span,
    /// Where the next frame goes that is to go out.
    free: [Span; 1],
    /// How many went out, and how many were put in.
    gone: u64,
    put: u64,
    lengths: [u16; FRAMES as usize],
}

/// The place of the frame of this number.
fn place(memory: &Span, number: u64) -> Option<Span> {
    memory.sub((1 + number % FRAMES) * PLACE, PLACE)
}

impl Uplink {
    /// Without frames, in [`UPLINK_MEMORY`] bytes.
    pub fn new(memory: Span) -> Option<Uplink> {
        let inbox = memory.sub(0, PLACE)?;
        inbox.fill(0);
        let free = [place(&memory, 0)?];
        place(&memory, FRAMES - 1)?;
        Some(Uplink { memory, inbox, free, gone: 0, put: 0, lengths: [0; FRAMES as usize] })
    }

    /// Where a frame is put that comes in.
    pub fn inbox(&self) -> Option<Span> {
        self.inbox.sub(HEADER_BYTES as u64, WIRE_FRAME.into())
    }

    /// A frame of this many bytes was put there: as a chain that a guest without any feature sends.
    pub fn arrived(&self, bytes: u32, chain: &mut Chain) -> Option<()> {
        let bytes = bytes.min(WIRE_FRAME) + HEADER_BYTES as u32;
        chain.set_readable(self.inbox.sub(0, bytes.into())?);
        Some(())
    }

    /// The oldest frame that is to go out. Its place is used again as soon as the next one comes.
    pub fn take(&mut self) -> Option<Span> {
        if self.gone == self.put {
            return None;
        }
        let bytes = self.lengths.get((self.gone % FRAMES) as usize).copied()?;
        let frame = place(&self.memory, self.gone)?.sub(HEADER_BYTES as u64, bytes.into());
        self.gone += 1;
        frame
    }
}

impl Buffers for Uplink {
    fn one(&mut self, _: u32) -> Result<Option<(Head, Span)>, Broken> {
        Ok(None)
    }

    fn complete_one(&mut self, _: Head, _: u32) {}

    fn reserve(&mut self, bytes: u32) -> Result<Option<u16>, Broken> {
        let room = self.put - self.gone < FRAMES && bytes <= WIRE_FRAME;
        Ok(room.then_some(1))
    }

    fn spans(&self) -> &[Span] {
        &self.free
    }

    fn complete(&mut self, _: u16, bytes: u32) {
        if let Some(length) = self.lengths.get_mut((self.put % FRAMES) as usize) {
            *length = bytes as u16;
        }
        self.put += 1;
        if let Some(next) = place(&self.memory, self.put) {
            self.free = [next];
        }
    }
}
