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
use crate::error::Broken;
use crate::frame::{ETHERNET, FRONT, Frame, goes_as_it_is};
use crate::header::{HEADER_BYTES, Header};
use crate::port::Port;
use crate::queues::{Served, waits};
use crate::rate::Bucket;
use crate::receive::Receive;
use crate::steer::flow;
use crate::switch::{Outcome, Switch, price};
use crate::{LEAST_CHARGE, MAX_FRAME};
use virtqueue::{Chain, OneByOne, Queue};
use window::{Outside, Span, Window};

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

/// What there is between two queues.
struct Between<'a> {
    /// The addresses that its frames have.
    from: u64,
    to: u64,
    longest: u32,
    most: u32,
    most_charge: u64,
    /// Of the sender and of the receiver.
    windows: [&'a Window; 2],
    /// The sender's limit, if it has one, and the time.
    rate: Option<(&'a mut Bucket, u64)>,
    /// What was taken last from either.
    taken: [Result<bool, virtqueue::Broken>; 2],
    delivered: Sums,
}

/// What was delivered.
#[derive(Default)]
struct Sums {
    frames: u32,
    bytes: u64,
    charge: u64,
}

/// Why nothing more is delivered.
enum Stop {
    /// It is a turn's worth.
    Enough,
    /// The sender has sent its share.
    Full,
    /// What the sender has is no chain of one buffer, or nothing.
    Sent,
    /// It isn't a frame for this way: so many bytes of it are in the front.
    Read(usize),
    /// What the receiver has isn't a buffer for it.
    Received,
}

/// What frames and chains are taken into.
struct Room<'a> {
    sent: &'a mut Chain,
    frame: &'a mut Frame,
    scratch: &'a mut Chain,
}

impl Ended {
    /// A frame was taken, or there is none.
    fn taken(taken: bool) -> Ended {
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
        let before = outcome.completed;
        let ended = way.run(longest, now, most, outcome, Room { sent, frame, scratch });
        if outcome.completed > before {
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

    /// Takes and delivers frames, and counts them.
    #[inline(always)]
    fn run(
        &mut self,
        longest: u32,
        now: u64,
        most: u32,
        outcome: &mut Outcome,
        mut room: Room<'_>,
    ) -> Result<Ended, Broken> {
        let Way { sender, served, receiver, receive } = self;
        let (Some(sending), Some(receiving)) = (&sender.running, &receiver.running) else {
            return Ok(Ended::Nothing);
        };
        // What is broken or in stock is found on the other way.
        let (Some(sends), Some(receives)) = (served.taking(), receive.taking()) else {
            return served.take(&sending.window, room.sent).map(Ended::taken);
        };
        let mut ways = Between {
            from: sender.mac.word(),
            to: receiver.mac.word(),
            longest,
            most: most - outcome.completed,
            most_charge: BURST_CHARGE - outcome.charge,
            windows: [&sending.window, &receiving.window],
            rate: sender.rate.is_limited().then_some((&mut sender.rate, now)),
            taken: [Ok(false), Ok(false)],
            delivered: Sums::default(),
        };
        let ended = match (&mut *sends, receives) {
            (Queue::Split(sends), Queue::Split(receives)) => ways.run(sends, receives, &mut room),
            (sends, receives) => ways.run(sends, receives, &mut room),
        };
        let Between { taken: [sent, received], delivered, .. } = ways;
        outcome.completed += delivered.frames;
        outcome.charge += delivered.charge;
        outcome.sent += delivered.bytes;
        outcome.bytes += delivered.bytes;
        if delivered.frames > 0 {
            self.count(&delivered);
        }
        match ended {
            Stop::Enough => Ok(Ended::Enough),
            Stop::Full => {
                outcome.full = self.served.queue.as_ref().is_some_and(waits);
                Ok(Ended::Nothing)
            }
            Stop::Sent => match sent {
                Ok(taken) => Ok(Ended::taken(taken)),
                Err(broken) => Err(self.served.breaks(broken.into())),
            },
            Stop::Read(here) => Ok(Ended::Otherwise(here)),
            Stop::Received => {
                self.receive.taken(received, room.scratch);
                Ok(Ended::Otherwise(FRONT))
            }
        }
    }

    /// Counts what was delivered.
    #[inline(always)]
    fn count(&mut self, delivered: &Sums) {
        let Sums { frames, bytes, .. } = *delivered;
        let (sent, received) = (&mut self.sender.statistics, &mut self.receiver.statistics);
        sent.sent += u64::from(frames);
        sent.sent_bytes += bytes;
        received.received += u64::from(frames);
        received.received_bytes += bytes;
        let counts = &mut self.receive.counts;
        counts.frames = counts.frames.saturating_add(frames);
        counts.bytes = counts.bytes.saturating_add(bytes);
        self.receiver.touched |= 1;
    }
}

impl Between<'_> {
    /// Takes frames from one queue and puts them into chains of the other.
    #[inline(never)]
    fn run<S: OneByOne, R: OneByOne>(
        &mut self,
        sends: &mut S,
        receives: &mut R,
        room: &mut Room<'_>,
    ) -> Stop {
        let Between { from, to, longest, most, most_charge, .. } = *self;
        let [sending, receiving] = self.windows;
        let Some(front) = room.frame.front() else { return Stop::Enough };
        let Sums { mut frames, mut bytes, mut charge } = Sums::default();
        let stop = loop {
            if frames >= most || charge >= most_charge {
                break Stop::Enough;
            }
            if let Some((rate, now)) = &self.rate
                && rate.ready_at() > *now
            {
                break Stop::Full;
            }
            let Some(sent) = sends.take_one::<false>(sending, room.sent, &mut self.taken[0]) else {
                break Stop::Sent;
            };
            let all = sent.bytes();
            let len = all.wrapping_sub(HEADER_BYTES as u32);
            if all < FRONT as u32 || len > longest || sent.span().read(0, front).is_err() {
                sends.hold::<false>(sent, room.sent);
                break Stop::Read(0);
            }
            if !goes_as_it_is(front, from, to) {
                sends.hold::<false>(sent, room.sent);
                break Stop::Read(FRONT);
            }
            let Some(buffer) =
                receives.take_one::<true>(receiving, room.scratch, &mut self.taken[1])
            else {
                sends.hold::<false>(sent, room.sent);
                break Stop::Received;
            };
            if buffer.bytes() < all {
                sends.hold::<false>(sent, room.sent);
                receives.hold::<true>(buffer, room.scratch);
                self.taken[1] = Ok(true);
                break Stop::Received;
            }
            if let Some(header) = front.first_chunk_mut() {
                *header = Header::of_one_buffer();
            }
            // There is room for all.
            let _ = put(front, sent.span(), buffer.span());
            receives.used(buffer, all);
            sends.used(sent, 0);
            if let Some((rate, now)) = &mut self.rate {
                rate.take(all.into(), *now);
            }
            frames += 1;
            bytes += u64::from(len);
            charge += LEAST_CHARGE.max(len.into());
        };
        self.delivered = Sums { frames, bytes, charge };
        stop
    }
}

/// Puts the front of a chain, and the rest of it, into this buffer, which is as long.
#[inline(always)]
fn put(front: &[u8; FRONT], sent: &Span, into: &Span) -> Result<(), Outside> {
    let at = FRONT as u64;
    let rest = sent.sub(at, sent.len().saturating_sub(at)).ok_or(Outside)?;
    let room = into.sub(at, rest.len()).ok_or(Outside)?;
    into.write(0, front)?;
    rest.copy_to(&room)
}
