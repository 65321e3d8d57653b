//! Queues that come and go one by one, as they do where the transport is vhost-user: there the
//! front end carries out what a driver says of pairs, and stops queues for its own reasons.
use crate::config::QueueKind;
use crate::error::Broken;
use crate::port::Port;
use crate::queues::Queues;
use crate::steer::bit;
use crate::switch::{Outcome, PortNumber, Switch, price};
use crate::{BURST_CHARGE, Features};
use virtqueue::Queue;
use window::Window;

impl<const RING: usize> Switch<RING> {
    pub(crate) fn queues_mut(&mut self, number: PortNumber) -> Option<&mut Queues<RING>> {
        self.queues.get_mut(usize::from(number.0))
    }

    /// Takes the queue of this index back, while the others go on. Buffers that were taken for
    /// frames to come are in flight in it: who goes on with it takes them again, from its used
    /// index on, as frames are put into buffers in their order.
    pub fn detach(&mut self, number: PortNumber, index: u16) -> Option<Queue<RING>> {
        let kind = self.kind(number, index)?;
        let queue = self.queues_mut(number)?.detach(kind);
        self.port_mut(number).into_iter().for_each(|port| port.attach(kind, false));
        queue
    }

    /// All queues were taken back. The device's memory isn't used any more; what its driver has set
    /// holds until the device is stopped: it is the same one when it goes on.
    pub fn pause(&mut self, number: PortNumber) {
        self.port_mut(number).into_iter().for_each(Port::pause);
        self.queues_mut(number).into_iter().for_each(Queues::clear);
    }

    /// As [`Self::start`]. But if it was paused, and the driver accepted the same before that, what
    /// it has set holds.
    pub fn resume(&mut self, number: PortNumber, window: Window, accepted: Features) {
        let resumed = self.port_mut(number).map(|port| port.resume(window, accepted));
        if resumed == Some(false) {
            self.start(number, window, accepted);
        }
    }

    /// What the transmit queue of this index has is taken, and goes nowhere; or goes out again.
    pub fn set_discards(&mut self, number: PortNumber, index: u16, on: bool) {
        if let Some(QueueKind::Transmit(pair)) = self.kind(number, index)
            && let Some(running) = self.port_mut(number).and_then(|port| port.running.as_mut())
        {
            running.discards =
                if on { running.discards | bit(pair) } else { running.discards & !bit(pair) };
        }
    }

    /// A turn of such a queue.
    #[cold]
    pub(crate) fn discard(
        &mut self,
        number: PortNumber,
        pair: u16,
        most: u32,
    ) -> Result<Outcome, Broken> {
        let mut outcome = Outcome::default();
        let at = usize::from(number.0);
        let (Some(Some(port)), Some(queues)) = (self.ports.get_mut(at), self.queues.get_mut(at))
        else {
            return Ok(outcome);
        };
        let (Some(running), Some(served)) =
            (&port.running, queues.transmit.get_mut(usize::from(pair)))
        else {
            return Ok(outcome);
        };
        while outcome.completed < most && outcome.charge < BURST_CHARGE {
            match served.take(&running.window, &mut self.sent) {
                Ok(true) => {}
                Ok(false) => return Ok(outcome),
                // The queue stays broken: the next turn says so.
                Err(_) if outcome.completed > 0 => break,
                Err(broken) => return Err(broken),
            }
            if let Some(queue) = &mut served.queue {
                queue.complete(self.sent.head(), 0);
            }
            port.statistics.down += 1;
            outcome.charge += price(&self.sent);
            (outcome.completed, outcome.dropped) = (outcome.completed + 1, outcome.dropped + 1);
        }
        outcome.more = true;
        Ok(outcome)
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
