//! A virtio network device (virtio 1.2, 5.1), and a switch of Ethernet frames between several of
//! them, for a core that polls their queues.
//!
//! A [`Config`] is what a driver may read of its device, a [`Plan`] what the switch allows at its
//! port. The [`Switch`] owns the queues of all its ports: [`Switch::serve`] takes one frame of one
//! transmit queue, checks it, and copies it into buffers of the ports that it is for; or it takes
//! one command of a control queue. All ports of a switch are served by the same core.
//!
//! Guarantees, whatever the guests do:
//! - A turn does bounded work: one frame of at most [`MAX_FRAME`] bytes, in at most
//!   [`MAX_SEGMENTS`] segments; for several ports no more than [`MOST_COPIES`]. It says what that
//!   cost.
//! - What was checked of a frame is what arrives: its first bytes (addresses, tag, headers) are
//!   copied once, checked, and delivered from that copy. The rest goes straight from the sender's
//!   buffers into the receiver's; it goes through a small buffer of ours only if a checksum is made
//!   of it, so that the checksum is right for the bytes that arrive.
//! - A frame comes from an address that the port may have, stays in its VLAN, and never goes back
//!   to its sender. A port of a fixed address can neither take another port's address nor see
//!   frames for another one's.
//! - A frame arrives whole or not at all, once, and in order with others of its flow. A receiver
//!   gets no frame that it isn't ready for: without GUEST_TSO4 and GUEST_TSO6 it is segmented here,
//!   without GUEST_CSUM its checksum is complete.
//! - What one guest does to its rings breaks its own queues only.
//! - Nothing is allocated but by [`Switch::new`] and [`Switch::add`], and nothing that is large is
//!   moved over the stack.
//!
//! Not guaranteed: that a frame arrives. It is dropped, and counted, if there is no room. Nor that
//! bytes which a sender changes meanwhile are of one moment; nor anything about addresses above
//! Ethernet: what ARP or neighbour discovery says isn't looked at.
//!
//! | file | is |
//! |---|---|
//! | `config` | features and configuration space |
//! | `error` | ports and queues that can't be |
//! | `mac`, `vlan` | addresses, and numbers of virtual LANs |
//! | `header` | the header in front of each frame |
//! | `frame` | a frame that was sent: what is checked before it is forwarded |
//! | `offload` | what is left to do for a frame: checksum, segments |
//! | `copy` | from buffers to buffers |
//! | `queues`, `receive` | the queues of a port; the buffers of a receive queue |
//! | `announce` | a frame for a station that has moved here |
//! | `attached` | queues that come and go one by one |
//! | `burst` | the frames of a transmit queue's turn |
//! | `between` | the short way from one port to another, which most of them go |
//! | `deliver` | one frame to one receiver |
//! | `filter`, `control` | what a driver wants to receive, and its commands |
//! | `steer` | which receive queue a flow goes to |
//! | `rate`, `table` | limits by time; addresses that were learned |
//! | `uplink`, `wire` | a port to the wire, and what the switch has to do with it |
//! | `port`, `switch` | a device at the switch; who gets which frame; the turn |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod announce;
mod attached;
mod between;
mod burst;
pub mod config;
pub mod control;
mod copy;
mod deliver;
mod error;
pub mod filter;
pub mod frame;
pub mod header;
mod mac;
pub mod offload;
mod port;
mod queues;
pub mod rate;
mod receive;
mod steer;
mod switch;
pub mod table;
#[cfg(test)]
mod tests;
mod uplink;
mod vlan;
mod wire;

pub use announce::ANNOUNCE_BYTES;
pub use burst::{BURST, BURST_CHARGE};
pub use config::{BadConfig, BadFeatures, Config, Features, Parameters};
pub use error::{BadPort, Broken, NoSuchQueue};
pub use mac::Mac;
pub use port::{MAX_PAIRS, Plan, Sources, Statistics};
pub use rate::Rate;
pub use receive::Counts;
pub use switch::{MAX_PORTS, Outcome, PortNumber, Switch, Touched};
pub use uplink::{Finish, LONG_UPLINK_MEMORY, Leaving, Task, UPLINK_MEMORY, WIRE_FRAME};
pub use vlan::{Vlan, VlanSet};

/// The most bytes of a frame without a tag: 5.1.6.3.1 has buffers for no more.
pub const MAX_FRAME: u32 = 65550;
/// The most segments that one frame is cut into. Frames that would need more are dropped: with
/// segments of 256 bytes and more there are none.
pub const MAX_SEGMENTS: u32 = 256;
/// The most packets that a frame of UDP is handed on uncut for: another one is cut here, whatever
/// its receiver accepts.
pub const MAX_UNCUT: u32 = 64;
/// What all copies of a frame for several ports may cost, in bytes as they are charged: of more it
/// is dropped. 63 ports get frames of 9,000 bytes; a frame of 64 KiB that is cut for each of them
/// would keep all queues waiting for milliseconds.
pub const MOST_COPIES: u64 = 576 << 10;
/// What a turn costs at least, and each frame that it delivers, in bytes: so that small frames
/// can't keep a scheduler that counts bytes. The same as a block device's.
pub const LEAST_CHARGE: u64 = 2048;
/// What a chain of a driver's costs at least for each of its descriptors, in bytes: whoever sends
/// pays for those of the receiver, too, which may be the same VM's.
pub const DESCRIPTOR_CHARGE: u64 = 512;
