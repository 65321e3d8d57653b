//! What can't be: ports that there can't be, queues that can't be served.

use crate::Mac;
use crate::port::MAX_PAIRS;
use thiserror::Error;

/// Why there can't be such a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadPort {
    /// The switch has no more.
    #[error("the switch has no port left")]
    Full,
    /// It has more than [`MAX_PAIRS`] pairs of queues.
    #[error("it has more than {MAX_PAIRS} pairs of queues")]
    Pairs,
    /// Another port has the address.
    #[error("its address {0} is another port's")]
    Address(Mac),
    /// There is no such VLAN.
    #[error("its VLAN isn't from 0 to 4094")]
    Vlan,
    /// Of an uplink.
    #[error("its memory is too short")]
    Memory,
}

/// The device has no queue of this index, or isn't started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the device has no such queue")]
pub struct NoSuchQueue;

/// Why a queue can't be served any more. The driver must reset the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The ring is.
    #[error(transparent)]
    Ring(#[from] virtqueue::Broken),
    /// A receive buffer has no writable byte, or a command has no room for the answer.
    #[error("a chain has no writable byte")]
    NoRoom,
    /// A receive buffer has parts without bytes, or some that the device may not write: to read
    /// them would cost who sends (virtio 1.2, 5.1.6.3 knows neither).
    #[error("a receive buffer has a part that nothing can be written to")]
    Empty,
}
