//! Queues that come and go one by one, as they do where the transport is vhost-user: there the
//! front end carries out what a driver says of pairs, and stops queues for its own reasons.
use crate::config::QueueKind;
use crate::control::Command;
use crate::queues::Queues;
use crate::switch::{PortNumber, Switch};
use virtqueue::Queue;

impl<const RING: usize> Switch<RING> {
    pub(crate) fn queues_mut(&mut self, number: PortNumber) -> Option<&mut Queues<RING>> {
        self.queues.get_mut(usize::from(number.0))
    }

    /// Takes the queue of this index back, while the others go on. Buffers that were taken for
    /// frames to come are in flight in it: who goes on with it takes them again, from its used
    /// index on, as frames are put into buffers in their order.
    pub fn detach(&mut self, number: PortNumber, index: u16) -> Option<Queue<RING>> {
        let kind = self.kind(number, index)?;
        self.queues_mut(number)?.detach(kind)
    }

    /// So many pairs are used for receiving, as by the command of MQ. False if there are fewer.
    pub fn set_pairs(&mut self, number: PortNumber, pairs: u16) -> bool {
        self.port_mut(number).is_some_and(|port| port.command(Command::Pairs(pairs)))
    }

    /// Is there a port of this address, now or after a reset?
    pub fn has_address(&self, mac: crate::Mac) -> bool {
        self.ports.iter().flatten().any(|port| port.owns(mac))
    }

    /// The port is no more: its place is free for another one.
    pub fn remove(&mut self, number: PortNumber) {
        self.stop(number);
        if let Some(place) = self.ports.get_mut(usize::from(number.0)) {
            *place = None;
        }
    }

    /// What turns serve: no receive queue.
    pub fn has_turns(&self, number: PortNumber, index: u16) -> bool {
        matches!(self.kind(number, index), Some(QueueKind::Transmit(_) | QueueKind::Control))
    }
}
