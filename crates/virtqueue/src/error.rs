//! What refuses a layout, and what breaks a queue. Texts are the ends of sentences.
use thiserror::Error;
use window::{Outside, Span, Window};

/// Why a queue can't be served as the driver laid it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// 0, beyond what is allowed here, or, of a split ring, no power of two.
    #[error("its size of {0} is none that can be served")]
    Size(u16),
    /// An area isn't aligned as 2.7 and 2.8 ask for.
    #[error("its {area} at {address:#x} isn't aligned")]
    Unaligned {
        /// Which one.
        area: Area,
        /// Its guest address.
        address: u64,
    },
    /// An area isn't, or not all of it, in one piece of the guest's memory.
    #[error("its {area} at {address:#x} isn't in memory")]
    Outside {
        /// Which one.
        area: Area,
        /// Its guest address.
        address: u64,
    },
    /// The state to go on from is none that a queue of this size can be in.
    #[error("the state to go on from isn't that of a queue of its size")]
    State,
}

/// A part of a queue in the guest's memory, by the names of 4.1.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// `queue_desc`.
    Descriptors,
    /// `queue_driver`.
    Driver,
    /// `queue_device`.
    Device,
}

impl Area {
    /// The memory of this area, if it is aligned and in one piece.
    pub(crate) fn span(
        self,
        window: &Window,
        address: u64,
        alignment: u64,
        len: u64,
    ) -> Result<Span, LayoutError> {
        if !address.is_multiple_of(alignment) {
            return Err(LayoutError::Unaligned { area: self, address });
        }
        window.span(address, len).ok_or(LayoutError::Outside { area: self, address })
    }
}

impl core::fmt::Display for Area {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Area::Descriptors => "descriptor area",
            Area::Driver => "driver area",
            Area::Device => "device area",
        })
    }
}

/// Why a queue can't go on: the driver did what the standard forbids, or what can't be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The available index is further ahead than the ring is long.
    #[error("the driver offered more chains than the ring holds")]
    Jumped,
    /// A head, a next descriptor or a buffer ID that doesn't exist.
    #[error("the driver named descriptor {0}, which doesn't exist")]
    Index(u16),
    /// A head or buffer ID is offered that the driver hasn't got back yet.
    #[error("the driver offered {0} again while it was in flight")]
    InFlight(u16),
    /// A chain of more descriptors than the queue or [`SEGMENTS`](crate::SEGMENTS) allow, or one
    /// that loops.
    #[error("a chain has too many descriptors")]
    TooLong,
    /// More descriptors are in flight than a packed ring has.
    #[error("the driver offered more descriptors than the ring holds")]
    Overrun,
    /// A readable descriptor behind a writable one (2.7.4.2, 2.8.17).
    #[error("a readable descriptor is behind a writable one")]
    Order,
    /// An indirect descriptor without VIRTIO_F_INDIRECT_DESC, with NEXT, in an indirect table of a
    /// split ring, or behind another descriptor of a packed one (2.7.5.3.1, 2.8.19).
    #[error("an indirect descriptor is where none may be")]
    Indirect,
    /// An indirect table that is empty, or isn't made of whole descriptors.
    #[error("an indirect table has {0} bytes")]
    TableLength(u32),
    /// A buffer or an indirect table that isn't in the guest's memory.
    #[error("{len} bytes at {address:#x} aren't in memory")]
    Outside {
        /// Its guest address.
        address: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// The descriptors of a chain have 2^32 bytes or more. The standard allows 2^32 itself, which
    /// no used length can say.
    #[error("a chain has 2^32 bytes or more")]
    TooMuch,
    /// An access to the queue's own rings failed: not by anything the guest can do.
    #[error("its rings aren't where they were")]
    Ring,
}

impl From<Outside> for Broken {
    fn from(_: Outside) -> Broken {
        Broken::Ring
    }
}
