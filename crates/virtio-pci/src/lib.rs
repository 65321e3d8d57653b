//! The registers of a virtio function on PCI, as a state machine that trapped accesses drive.
//!
//! It is a modern function (virtio 1.2, section 4.1): no legacy interface, no interrupt pin. All
//! structures lie in BAR 0, a page each ([`bar`]). The notify page is plain memory of the host's,
//! which the guest may write as it likes: who serves the queues polls them, so a store there is no
//! exit and means nothing. [`config_space`] is what the function's configuration space says of it.
//!
//! Guarantees: any access of any size at any offset has a defined result, none panics, none
//! allocates. Features that were accepted are a subset of those offered, with VERSION_1, and never
//! change before the next reset. A queue's registers are locked from the moment it is enabled. The
//! queues are given out once ([`Effect::Start`]), and after [`Effect::Reset`] the status reads as
//! zero only when the server says that it has let go of them.
//!
//! Not guaranteed: that the addresses of a queue are the guest's memory, or aligned. Who maps the
//! rings checks that, and calls [`Function::needs_reset`] if they are not.
//!
//! Not offered: resets of single queues (VIRTIO_F_RING_RESET), notification data
//! (VIRTIO_F_NOTIF_CONFIG_DATA, VIRTIO_F_NOTIFICATION_DATA), the administration queue.
//! Writes to the device configuration change nothing here: what they do is the device's to know
//! ([`Effect::Config`]).
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod bar;
mod common;
pub mod config_space;
mod function;

pub use common::{Effect, NO_VECTOR, Queue, status};
pub use function::{Function, Host, TooMany};

/// The most queues that one function can have.
pub const MAX_QUEUES: usize = 16;
/// VIRTIO_F_VERSION_1 (6): always offered, and a driver must accept it.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_RING_PACKED (6): with it a queue's size needn't be a power of two.
pub const RING_PACKED: u64 = 1 << 34;

/// The kinds of devices that there are (5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Network device, 1.
    Net,
    /// Block device, 2.
    Block,
    /// IOMMU device, 23.
    Iommu,
}
