//! The frames of a transmit queue's turn, and the short way that most of them go.
//!
//! Where a frame goes that asks for nothing, from its port's own address to another port's own,
//! is decided once for all such frames of a turn: nothing that it depends on changes meanwhile.
//! From the turn before there is only a guess who the other port is. All other frames are looked
//! at one by one, by [`Switch::forward`].
//!
//! Guarantees: what the short way does to a frame is what `forward` would have done. It delivers
//! those alone that are for one port, have no tag on either side, and have room in its first
//! buffer. Their first bytes are copied once, checked, and delivered from that copy.
use crate::PortNumber;
use crate::copy::Cursor;
use crate::deliver::charge;
use crate::error::Broken;
use crate::frame::{ETHERNET, FRONT, Frame, goes_as_it_is};
use crate::header::{HEADER_BYTES, Header};
use crate::port::Port;
use crate::queues::Served;
use crate::receive::Receive;
use crate::steer::flow;
use crate::switch::{Outcome, Switch, price};
use crate::{LEAST_CHARGE, MAX_FRAME};
use virtqueue::Chain;
use window::{Outside, Span};

/// The most frames of a turn.
pub const BURST: u32 = 8;
/// What a turn's frames cost before another one is taken, at most, in bytes.
pub const BURST_CHARGE: u64 = BURST as u64 * LEAST_CHARGE;

/// Why the short way ended.
enum Ended {
    /// There is nothing to take any more, or it may not be now.
    Nothing,
    /// It is a turn's worth.
    Enough,
    /// A frame was taken that goes another way: so many bytes of it are in the front.
    Otherwise(usize),
}

/// The two ends of the short way.
struct Way<'a, const RING: usize> {
    sender: &'a mut Port,
    served: &'a mut Served<RING>,
    receiver: &'a mut Port,
    receive: &'a mut Receive<RING>,
}

/// What it delivered.
#[derive(Default)]
struct Sums {
    frames: u32,
    bytes: u64,
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

    /// Takes frames of this queue as long as they go the short way. None: there is none.
    #[inline]
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
        let receive = of_receiver.receive.first_mut()?;
        let mut way = Way { sender, served, receiver, receive };
        let longest = way.longest()?;
        let mut sums = Sums::default();
        let ended = way.run(longest, now, most, outcome, sent, frame, scratch, &mut sums);
        if sums.frames > 0 {
            way.count(&sums);
            outcome.sent += sums.bytes;
            outcome.bytes += sums.bytes;
            *touched |= 1 << to;
        }
        Some(ended)
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
            outcome.full = served.waits();
            return Ok(Ended::Nothing);
        }
        let taken = served.take(&running.window, &mut self.sent)?;
        Ok(if taken { Ended::Otherwise(0) } else { Ended::Nothing })
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
        port.rate.take(self.sent.readable_len().into(), now);
        port.statistics.sent += 1;
        let mut this = Outcome::default();
        match taken {
            Ok(()) => {
                port.statistics.sent_bytes += u64::from(frame.len);
                outcome.sent += u64::from(frame.len);
                if port.config.parameters().pairs > 1 {
                    running.steering.sent(flow(frame), pair);
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

impl<const RING: usize> Way<'_, RING> {
    /// The most bytes of a frame that may go this way, if any may: from the sender's own address
    /// to the receiver's own, without a tag.
    #[inline]
    fn longest(&self) -> Option<u32> {
        let Way { sender, receiver, .. } = self;
        let running = receiver.running.as_ref()?;
        let vlan = sender.plan.vlan.ingress(None)?;
        let (own, other) = (sender.config.parameters(), receiver.config.parameters());
        // With several pairs it isn't known which of them receives.
        let is_one = own.pairs == 1 && running.active <= 1;
        let is_guest = sender.uplink.is_none() && receiver.uplink.is_none();
        let is_up = sender.link_up && receiver.link_up;
        let may = receiver.plan.vlan.egress(vlan) == Some(false)
            && running.filter.accepts(receiver.mac, None, receiver.mac);
        let longest = MAX_FRAME.min(ETHERNET as u32 + u32::from(own.mtu.min(other.mtu)));
        (is_one && is_guest && is_up && may).then_some(longest)
    }

    /// Takes and delivers frames.
    #[allow(clippy::too_many_arguments, reason = "all that a turn has")]
    #[inline]
    fn run(
        &mut self,
        longest: u32,
        now: u64,
        most: u32,
        outcome: &mut Outcome,
        sent: &mut Chain,
        frame: &mut Frame,
        scratch: &mut Chain,
        sums: &mut Sums,
    ) -> Result<Ended, Broken> {
        let (Some(sending), Some(receiving)) = (&self.sender.running, &self.receiver.running)
        else {
            return Ok(Ended::Nothing);
        };
        let (from, to) = (self.sender.mac.word(), self.receiver.mac.word());
        let Some(front) = frame.front() else { return Ok(Ended::Nothing) };
        while outcome.completed < most && outcome.charge < BURST_CHARGE {
            if self.sender.rate.ready_at() > now && self.served.broken.is_none() {
                outcome.full = self.served.waits();
                return Ok(Ended::Nothing);
            }
            if !self.served.take(&sending.window, sent)? {
                return Ok(Ended::Nothing);
            }
            let bytes = sent.readable_len();
            let len = bytes.wrapping_sub(HEADER_BYTES as u32);
            if bytes < FRONT as u32 || len > longest || sent.read(0, front).is_err() {
                return Ok(Ended::Otherwise(0));
            }
            if !goes_as_it_is(front, from, to) {
                return Ok(Ended::Otherwise(FRONT));
            }
            // A queue that is broken says so on the other way.
            let Ok(Some((buffer, span))) = self.receive.one(&receiving.window, scratch, bytes)
            else {
                return Ok(Ended::Otherwise(FRONT));
            };
            if let Some(header) = front.first_chunk_mut() {
                *header = Header::of_one_buffer();
            }
            // It has room for all, and the chain has as many.
            let _ = put(front, sent, &span);
            self.receive.complete_one(buffer, bytes);
            self.sender.rate.take(bytes.into(), now);
            if let Some(queue) = &mut self.served.queue {
                queue.complete(sent.head(), 0);
            }
            sums.frames += 1;
            sums.bytes += u64::from(len);
            outcome.completed += 1;
            outcome.charge += charge(len).max(price(sent));
        }
        Ok(Ended::Enough)
    }

    /// Counts what it delivered.
    fn count(&mut self, sums: &Sums) {
        let (frames, bytes) = (u64::from(sums.frames), sums.bytes);
        let (sent, received) = (&mut self.sender.statistics, &mut self.receiver.statistics);
        sent.sent += frames;
        sent.sent_bytes += bytes;
        received.received += frames;
        received.received_bytes += bytes;
        let counts = &mut self.receive.counts;
        counts.frames = counts.frames.saturating_add(sums.frames);
        counts.bytes = counts.bytes.saturating_add(bytes);
        self.receiver.touched |= 1;
    }
}

/// Puts the front of a chain, and the rest of it, into this buffer.
#[inline(always)]
fn put(front: &[u8; FRONT], sent: &Chain, into: &Span) -> Result<(), Outside> {
    into.write(0, front)?;
    let at = FRONT as u64;
    let rest = into.sub(at, into.len().saturating_sub(at)).ok_or(Outside)?;
    match sent.readable() {
        [one] => one.sub(at, one.len().saturating_sub(at)).ok_or(Outside)?.copy_to(&rest),
        spans => put_rest(spans, &rest),
    }
}

/// The same of the rest, from several buffers.
#[inline(never)]
fn put_rest(spans: &[Span], rest: &Span) -> Result<(), Outside> {
    let bytes: u64 = spans.iter().map(Span::len).sum();
    let mut source = Cursor::new(spans);
    source.skip(FRONT as u64)?;
    let rest = [*rest];
    source.copy_to(&mut Cursor::new(&rest), bytes.saturating_sub(FRONT as u64))
}
