//! The frames of a transmit queue's turn.
//!
//! Most of them go the short way (`between`) to the port that the one before went to. All others
//! are looked at one by one, by [`Switch::forward`].
//!
//! Guarantees: a turn's frames are bounded by their number, and by what they cost.
use crate::between::{Room, Way};
use crate::error::Broken;
use crate::queues::waits;
use crate::steer::flow;
use crate::switch::{Outcome, Switch, price};
use crate::{LEAST_CHARGE, PortNumber};

/// The most frames of a turn.
pub const BURST: u32 = 8;
/// What a turn's frames cost before another one is taken, at most, in bytes.
pub const BURST_CHARGE: u64 = BURST as u64 * LEAST_CHARGE;

/// Why no more is taken.
pub enum Ended {
    /// There is nothing to take any more, or it may not be now.
    Nothing,
    /// It is a turn's worth.
    Enough,
    /// A frame was taken that is to be looked at: so many bytes of it are in the front.
    Otherwise(usize),
}

impl Ended {
    /// A frame was taken, or there is none.
    pub fn taken(taken: bool) -> Ended {
        if taken { Ended::Otherwise(0) } else { Ended::Nothing }
    }
}

impl<const RING: usize> Switch<RING> {
    /// Takes frames of this transmit queue, as many at most.
    pub(crate) fn transmit(
        &mut self,
        number: PortNumber,
        pair: u16,
        now: u64,
        most: u32,
    ) -> Result<Outcome, Broken> {
        let mut outcome = Outcome::default();
        while outcome.completed < most && outcome.charge < BURST_CHARGE {
            let ended = match self.short_way(number, pair, now, most, &mut outcome) {
                Some(ended) => ended,
                None => self.take(number, pair, now, &mut outcome),
            };
            match ended {
                Ok(Ended::Otherwise(here)) => self.otherwise(number, pair, here, now, &mut outcome),
                Ok(Ended::Nothing) => return Ok(outcome),
                Ok(Ended::Enough) => break,
                // The queue stays broken: the next turn says so.
                Err(_) if outcome.completed > 0 => break,
                Err(broken) => return Err(broken),
            }
        }
        outcome.more = true;
        Ok(outcome)
    }

    /// Takes frames of this queue as long as they go the short way. None: there is none, and no
    /// frame was taken.
    #[inline(always)]
    fn short_way(
        &mut self,
        number: PortNumber,
        pair: u16,
        now: u64,
        most: u32,
        outcome: &mut Outcome,
    ) -> Option<Result<Ended, Broken>> {
        let from = usize::from(number.0);
        let Switch { ports, queues, sent, frame, scratch, touched, .. } = self;
        let to = usize::from(ports.get(from)?.as_ref()?.last);
        let Ok([Some(sender), Some(receiver)]) = ports.get_disjoint_mut([from, to]) else {
            return None;
        };
        let Ok([of_sender, of_receiver]) = queues.get_disjoint_mut([from, to]) else {
            return None;
        };
        let served = of_sender.transmit.get_mut(usize::from(pair))?;
        let pairs = [pair, receiver.last_pair];
        let receive = of_receiver.receive.get_mut(usize::from(receiver.last_pair))?;
        let mut way = Way { sender, served, receiver, receive, pairs };
        let before = outcome.completed;
        let ended = way.run(now, most, outcome, Room { sent, frame, scratch });
        if outcome.completed > before {
            *touched |= 1 << to;
        }
        ended
    }

    /// Takes a frame.
    fn take(
        &mut self,
        number: PortNumber,
        pair: u16,
        now: u64,
        outcome: &mut Outcome,
    ) -> Result<Ended, Broken> {
        let at = usize::from(number.0);
        let (Some(Some(port)), Some(queues)) = (self.ports.get_mut(at), self.queues.get_mut(at))
        else {
            return Ok(Ended::Nothing);
        };
        let (Some(running), Some(served)) =
            (&mut port.running, queues.transmit.get_mut(usize::from(pair)))
        else {
            return Ok(Ended::Nothing);
        };
        if port.rate.ready_at() > now && served.broken.is_none() {
            outcome.full = served.queue.as_ref().is_some_and(waits);
            return Ok(Ended::Nothing);
        }
        served.take(&running.window, &mut self.sent).map(Ended::taken)
    }

    /// What there is to do for a frame that was taken.
    fn otherwise(
        &mut self,
        number: PortNumber,
        pair: u16,
        here: usize,
        now: u64,
        outcome: &mut Outcome,
    ) {
        let at = usize::from(number.0);
        let Some(Some(port)) = self.ports.get_mut(at) else { return };
        let Some(running) = &mut port.running else { return };
        let frame = &mut *self.frame;
        let taken = frame.take(&self.sent, here, running.accepted, port.config.parameters().mtu);
        let more = if taken.is_ok() { frame.wire_len() - u64::from(frame.len) } else { 0 };
        port.rate.take(u64::from(self.sent.readable_len()) + more, now);
        port.statistics.sent += 1;
        let mut this = Outcome::default();
        match taken {
            Ok(()) => {
                port.statistics.sent_bytes += u64::from(frame.len);
                outcome.sent += u64::from(frame.len);
                if port.config.parameters().pairs > 1 {
                    running.steering.sent(flow(&frame.head), pair);
                }
                let forwarded = self.forward(number, now, &mut this);
                outcome.dropped += u32::from(!forwarded);
            }
            Err(fault) => {
                port.fault(fault);
                outcome.dropped += 1;
            }
        }
        outcome.completed += 1;
        outcome.bytes += this.bytes;
        outcome.charge += this.charge.max(price(&self.sent));
        let head = self.sent.head();
        let served = self.queues.get_mut(at).and_then(|it| it.transmit.get_mut(usize::from(pair)));
        if let Some(queue) = served.and_then(|served| served.queue.as_mut()) {
            queue.complete(head, 0);
        }
    }
}
