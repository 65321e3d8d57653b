//! What was negotiated for a queue, how it lies in memory, and where it is.

use crate::DEFAULT_SIZE;

/// What was negotiated and changes the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// VIRTIO_F_INDIRECT_DESC: a descriptor may refer to a table of descriptors.
    pub indirect: bool,
    /// VIRTIO_F_EVENT_IDX: both sides say from which index on they want to be told.
    pub event_index: bool,
    /// VIRTIO_F_RING_PACKED: the packed ring instead of the split one.
    pub packed: bool,
}

/// Where the driver has put the rings: guest-physical addresses, named as in 4.1.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements of each ring: split, a power of two; packed, any number up to [`MAX_SIZE`].
    pub size: u16,
    /// `queue_desc`: the descriptor table, or the packed ring. A multiple of 16.
    pub descriptors: u64,
    /// `queue_driver`: the available ring (a multiple of 2), or the driver's event suppression
    /// structure (a multiple of 4).
    pub driver: u64,
    /// `queue_device`: the used ring, or the device's event suppression structure. A multiple of 4.
    pub device: u64,
}

/// A place in a ring. Split: the index as it is in the ring, which counts on to 2^16. Packed: the
/// place of a descriptor, and the wrap counter, which is true at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The index.
    pub index: u16,
    /// Packed: the wrap counter. Split: true.
    pub wrap: bool,
}

/// What is needed to go on with a queue, of at most `N` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<const N: usize = DEFAULT_SIZE> {
    /// The next chain to take.
    pub available: Position,
    /// The next element to complete; all before it are published.
    pub used: Position,
    /// Of each head that is in flight, how many elements its chain has in the ring; else 0.
    pub in_flight: [u16; N],
}

impl<const N: usize> State<N> {
    /// The state of a queue that the driver has just set up.
    pub fn at_reset(_features: Features) -> State<N> {
        let start = Position { index: 0, wrap: true };
        State { available: start, used: start, in_flight: [0; N] }
    }
}
