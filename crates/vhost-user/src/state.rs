//! What a front end can negotiate, and what it says of rings and records.

use bitflags::bitflags;

bitflags! {
    /// Protocol features that can be offered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Protocol: u64 {
        /// More than one queue, and how many there are.
        const MQ = 1 << 0;
        /// The log of changed pages is memory that is handed over.
        const LOG_SHMFD = 1 << 1;
        /// A guest that has moved here is announced to the network.
        const RARP = 1 << 2;
        /// A front end may ask for an answer to any request.
        const REPLY_ACK = 1 << 3;
        /// The configuration space is read over the socket.
        const CONFIG = 1 << 9;
        /// Memory for records of requests in flight, which survives the back end.
        const INFLIGHT_SHMFD = 1 << 12;
        /// A reset of the device.
        const RESET_DEVICE = 1 << 13;
        /// Regions come and go one by one.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
    }
}

/// Where a ring lies, in the front end's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The table of descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// Changes of the used ring are logged as those of this guest-physical address.
    pub log: Option<u64>,
}

/// What was said of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Elements, 0 before they were said.
    pub size: u16,
    /// Where it lies.
    pub addresses: Option<Addresses>,
    /// Where to begin. Split rings: the available index, of 16 bits. Packed ones: the place of the
    /// next available descriptor in the low half, that of the next used one in the high half, each
    /// with its wrap counter in the highest bit.
    pub base: u32,
    /// Its KICK came, and no GET_VRING_BASE after.
    pub started: bool,
    /// It may be served, if protocol features are negotiated; else all may.
    pub enabled: bool,
}

/// Memory for records of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes.
    pub len: u64,
    /// Where they begin in the handle's file.
    pub offset: u64,
    /// Rings.
    pub rings: u16,
    /// Elements of each.
    pub size: u16,
}

/// Memory for the log of changed pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Bytes.
    pub len: u64,
    /// Where they begin in the handle's file.
    pub offset: u64,
}
