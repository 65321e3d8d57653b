//! Requests: what is read of a chain, each byte once, and the answer (5.13.6).
//!
//! A request of a type that isn't known, or a chain without room for its answer, is answered with
//! nothing at all, as the standard has it.

use crate::{BYPASS_CONFIG, Status, Tables, Viommu};
use paging::Access;
use virtqueue::{Broken, Chain, Features, Layout, LayoutError, Queue, SplitQueue, State};
use window::Window;

/// Bytes of properties that a `PROBE` is answered with.
pub const PROBE_BYTES: u32 = 2 * PROPERTY_BYTES;
/// Of a reserved region, with the head of the property.
const PROPERTY_BYTES: u32 = 24;
/// VIRTIO_IOMMU_PROBE_T_RESV_MEM.
const RESERVED_MEMORY: u16 = 1;
/// Bytes of an answer's tail.
const TAIL: u32 = 4;
/// Bytes of a request that are read at most: what is behind them means nothing.
pub const LONGEST: usize = 40;

const ATTACH: u8 = 1;
const DETACH: u8 = 2;
const MAP: u8 = 3;
const UNMAP: u8 = 4;
const PROBE: u8 = 5;

/// VIRTIO_IOMMU_ATTACH_F_BYPASS.
const ATTACH_BYPASS: u32 = 1;
/// VIRTIO_IOMMU_MAP_F_READ and _WRITE.
const MAP_READ: u32 = 1;
const MAP_WRITE: u32 = 2;

/// Bytes that a request of this type must have, and the place of the answer's tail.
fn shape(kind: u8) -> Option<(u32, u32)> {
    match kind {
        ATTACH | DETACH => Some((20, 0)),
        MAP => Some((36, 0)),
        UNMAP => Some((28, 0)),
        PROBE => Some((8, PROBE_BYTES)),
        _ => None,
    }
}

/// Makes the request queue that the driver laid out: a split ring, with nothing negotiated for it.
pub fn queue(window: &Window, layout: Layout) -> Result<Queue, LayoutError> {
    let features = Features { indirect: false, event_index: false, packed: false };
    SplitQueue::new(window, layout, features, State::at_reset(features)).map(Queue::Split)
}

/// Takes up to so many requests of such a queue, does them and answers; `answered` counts them.
/// Nothing is published. `accepted`: the features. The chain is one to take chains into.
pub fn serve(
    device: &mut Viommu,
    tables: &mut dyn Tables,
    (queue, window, chain): (&mut Queue, &Window, &mut Chain),
    accepted: u64,
    most: u32,
    answered: &mut u32,
) -> Result<(), Broken> {
    let Queue::Split(queue) = queue else { return Ok(()) };
    while *answered < most && queue.take(window, chain)? {
        let written = answer(device, tables, chain, accepted);
        queue.complete(chain.head(), written);
        *answered += 1;
    }
    Ok(())
}

/// Does what a chain asks for, and answers; gives how many bytes were written.
fn answer(device: &mut Viommu, tables: &mut dyn Tables, chain: &Chain, accepted: u64) -> u32 {
    let (mut bytes, len) = ([0; LONGEST], chain.readable_len());
    let there = bytes.get_mut(..(len as usize).min(LONGEST));
    let Some(Ok(())) = there.map(|there| chain.read(0, there)) else { return 0 };
    let shape = bytes.first().and_then(|kind| shape(*kind));
    let Some((_, at)) = shape.filter(|(_, at)| len > 0 && chain.writable_len() >= at + TAIL) else {
        return 0;
    };
    let mut properties = [0; PROBE_BYTES as usize];
    let status = device.answer(tables, (bytes, len), accepted, &mut properties);
    let tail = [status as u8, 0, 0, 0];
    let first = if at > 0 { chain.write(0, &properties) } else { Ok(()) };
    match first.and_then(|()| chain.write(at, &tail)) {
        Ok(()) => at + TAIL,
        Err(_) => 0,
    }
}

impl Viommu {
    /// Does what a request of a known type asks for. `request`: as much as is read of it, and how
    /// long it is. Of a `PROBE` that is done, the properties are filled in.
    pub fn answer(
        &mut self,
        tables: &mut dyn Tables,
        request: ([u8; LONGEST], u32),
        accepted: u64,
        properties: &mut [u8; PROBE_BYTES as usize],
    ) -> Status {
        self.act(tables, request, accepted, properties).err().unwrap_or(Status::Ok)
    }

    fn act(
        &mut self,
        tables: &mut dyn Tables,
        (bytes, len): ([u8; LONGEST], u32),
        accepted: u64,
        properties: &mut [u8; PROBE_BYTES as usize],
    ) -> Result<(), Status> {
        let kind = bytes.first().copied().unwrap_or(0);
        shape(kind).filter(|(needed, _)| len >= *needed).ok_or(Status::Invalid)?;
        // All fields are aligned. The first word is the type, and the domain or, of PROBE, the
        // endpoint.
        let mut words = [0; LONGEST / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [head, first, last, to, flags] = words;
        let (number, id) = ((head >> 32) as u32, first as u32);
        match kind {
            ATTACH => {
                let (flags, reserved) = ((first >> 32) as u32, last as u32);
                let known = if accepted & BYPASS_CONFIG != 0 { ATTACH_BYPASS } else { 0 };
                if flags & !known != 0 || reserved != 0 {
                    return Err(Status::Invalid);
                }
                self.attach(tables, number, id, flags & ATTACH_BYPASS != 0)
            }
            DETACH => self.detach(tables, number, id),
            MAP => {
                let flags = flags as u32;
                let mut access = Access::empty();
                access.set(Access::READ, flags & MAP_READ != 0);
                access.set(Access::WRITE, flags & MAP_WRITE != 0);
                if flags & !(MAP_READ | MAP_WRITE) != 0 || access.is_empty() {
                    return Err(Status::Invalid);
                }
                self.map(tables, number, (first, last), to, access)
            }
            UNMAP => self.unmap(tables, number, first, last),
            _ => self.probe(number, properties),
        }
    }

    /// `PROBE`: where this endpoint can't be given addresses.
    fn probe(&self, id: u32, properties: &mut [u8; PROBE_BYTES as usize]) -> Result<(), Status> {
        self.endpoint(id)?;
        let places = properties.chunks_mut(PROPERTY_BYTES as usize);
        for (place, range) in places.zip(self.shape.reserved) {
            // Type, length without these four bytes, the kind of region (1: messages).
            let head = u64::from(RESERVED_MEMORY)
                | u64::from(PROPERTY_BYTES - 4) << 16
                | u64::from(range.messages) << 32;
            let words = [head, range.first, range.last];
            let all = words.into_iter().flat_map(u64::to_le_bytes);
            place.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        }
        Ok(())
    }
}
