//! The short way, which most frames go: from one port to another.
//!
//! Where a frame goes that asks for nothing, from its port's own address to another port's own, is
//! decided once for all such frames of a turn: nothing that it depends on changes meanwhile. From
//! the turn before there is only a guess who the other port is.
//!
//! Guarantees: what happens to a frame here is what [`Switch::forward`](crate::Switch) would have
//! done. Those alone are delivered that are for one port, have no tag on either side, and have room
//! in its next chain. Their first bytes are copied once, checked, and delivered from that copy.
use crate::burst::{BURST_CHARGE, Ended};
use crate::error::Broken;
use crate::frame::{ETHERNET, FRONT, Frame, goes_as_it_is};
use crate::header::HEADER_BYTES;
use crate::port::Port;
use crate::queues::{Served, waits};
use crate::rate::Bucket;
use crate::receive::{Receive, is_for_frames};
use crate::steer::{FLOW, Steering, are_several, bit, flow};
use crate::switch::{Outcome, price};
use crate::{LEAST_CHARGE, MAX_FRAME};
use virtqueue::{Chain, Ones, Queue};
use window::{Outside, Span, Window};

/// Where the front ends in a frame.
const BEHIND: u64 = (FRONT - HEADER_BYTES) as u64;

/// The two ends of the short way.
pub struct Way<'a, const RING: usize> {
    pub sender: &'a mut Port,
    pub served: &'a mut Served<RING>,
    pub receiver: &'a mut Port,
    pub receive: &'a mut Receive<RING>,
    /// The pairs of the two queues.
    pub pairs: [u16; 2],
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
    /// Where flows go, if there are several pairs on one side.
    steers: Option<Steers<'a>>,
    /// The sender's limit, if it has one, and the time.
    rate: Option<(&'a mut Bucket, u64)>,
    /// What was taken last from either.
    taken: [Result<bool, virtqueue::Broken>; 2],
    delivered: Sums,
}

/// Where flows go.
struct Steers<'a> {
    /// The sender's memory of it, if it has several pairs.
    sender: Option<&'a mut Steering>,
    /// The receiver's, if several of its pairs receive, and a bit for each that does.
    receiver: Option<(&'a Steering, u64)>,
    pairs: [u16; 2],
}

/// What was delivered.
#[derive(Clone, Copy, Default)]
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
    /// The sender has nothing, or is broken.
    Sent,
    /// It isn't a frame for this way: so many bytes of it are in the front.
    Read(usize),
    /// Its chain, or one of the receiver's, isn't of one buffer: both are taken if the front is
    /// read and found right, else the sender's is.
    Pieces(bool),
    /// What the receiver has isn't a buffer for it.
    Received,
}

/// What frames and chains are taken into.
pub struct Room<'a> {
    pub sent: &'a mut Chain,
    pub frame: &'a mut Frame,
    pub scratch: &'a mut Chain,
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
        // Without steering it is the only one that receives.
        let active = running.pairs.active();
        let is_steered = are_several(active) || active == bit(self.pairs[1]);
        let is_guest = sender.uplink.is_none() && receiver.uplink.is_none();
        let is_up = sender.link_up && receiver.link_up;
        let may = receiver.plan.vlan.egress(vlan) == Some(false)
            && receiver.filter.accepts_own(receiver.mac);
        let longest = MAX_FRAME.min(ETHERNET as u32 + u32::from(own.mtu.min(other.mtu)));
        (is_steered && is_guest && is_up && may).then_some(longest)
    }

    /// Takes and delivers frames, and counts them. None: no frame may go this way.
    #[inline(always)]
    pub fn run(
        &mut self,
        now: u64,
        most: u32,
        outcome: &mut Outcome,
        mut room: Room<'_>,
    ) -> Option<Result<Ended, Broken>> {
        let longest = self.longest()?;
        let Way { sender, served, receiver, receive, .. } = self;
        let (sending, receiving) = (sender.running.as_mut()?, receiver.running.as_ref()?);
        let active = receiving.pairs.active();
        let steers = Steers {
            sender: (sender.config.parameters().pairs > 1).then_some(&mut sending.steering),
            receiver: are_several(active).then_some((&receiving.steering, active)),
            pairs: self.pairs,
        };
        // What is broken or in stock is found on the other way.
        let (sends, receives) = (served.taking()?, receive.taking()?);
        let mut ways = Between {
            from: sender.mac.word(),
            to: receiver.mac.word(),
            longest,
            most: most - outcome.completed,
            most_charge: BURST_CHARGE - outcome.charge,
            windows: [&sending.window, &receiving.window],
            steers: (steers.sender.is_some() || steers.receiver.is_some()).then_some(steers),
            rate: sender.rate.is_limited().then_some((&mut sender.rate, now)),
            taken: [Ok(false), Ok(false)],
            delivered: Sums::default(),
        };
        let ended = loop {
            let stop = match (&mut *sends, &mut *receives) {
                (Queue::Split(sends), Queue::Split(receives)) => {
                    ways.run(sends, receives, &mut room)
                }
                (Queue::Packed(sends), Queue::Packed(receives)) => {
                    ways.run(sends, receives, &mut room)
                }
                (sends, _) => ways.take(sends, &mut room),
            };
            let Stop::Pieces(is_read) = stop else { break stop };
            if let Err(stop) = ways.pieces(is_read, sends, receives, &mut room) {
                break stop;
            }
        };
        let Between { taken: [sent, received], delivered, .. } = ways;
        outcome.completed += delivered.frames;
        outcome.charge += delivered.charge;
        outcome.sent += delivered.bytes;
        outcome.bytes += delivered.bytes;
        if delivered.frames > 0 {
            self.count(&delivered);
        }
        Some(Ok(match ended {
            Stop::Enough => Ended::Enough,
            Stop::Full => {
                outcome.full = self.served.queue.as_ref().is_some_and(waits);
                Ended::Nothing
            }
            Stop::Sent => match sent {
                Ok(_) => Ended::Nothing,
                Err(broken) => return Some(Err(self.served.breaks(broken.into()))),
            },
            Stop::Read(here) => Ended::Otherwise(here),
            Stop::Pieces(is_read) => Ended::Otherwise(if is_read { FRONT } else { 0 }),
            Stop::Received => {
                self.receive.taken(received, room.scratch);
                Ended::Otherwise(FRONT)
            }
        }))
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
        self.receiver.touched |= bit(self.pairs[1]);
    }
}

impl Steers<'_> {
    /// Whether a frame that begins with these bytes goes to the receiver's pair. If so, the
    /// sender's pair is remembered.
    #[inline(never)]
    fn lead_here(&mut self, head: Option<&[u8]>) -> bool {
        let Some(flow) = head.map(flow) else { return false };
        if let Some((steering, active)) = self.receiver
            && steering.pair(flow, active) != self.pairs[1]
        {
            return false;
        }
        if let Some(steering) = &mut self.sender {
            steering.sent(flow, self.pairs[0]);
        }
        true
    }
}

impl Between<'_> {
    /// Whether no frame is to be taken now, and why.
    #[inline(always)]
    fn stops(&self, Sums { frames, charge, .. }: Sums) -> Option<Stop> {
        if frames >= self.most || charge >= self.most_charge {
            return Some(Stop::Enough);
        }
        let is_full = self.rate.as_ref().is_some_and(|(rate, now)| rate.ready_at() > *now);
        is_full.then_some(Stop::Full)
    }

    /// Takes a frame that isn't looked at yet.
    fn take<const RING: usize>(&mut self, sends: &mut Queue<RING>, room: &mut Room<'_>) -> Stop {
        if let Some(stop) = self.stops(self.delivered) {
            return stop;
        }
        self.taken[0] = sends.take(self.windows[0], room.sent);
        if self.taken[0] == Ok(true) { Stop::Pieces(false) } else { Stop::Sent }
    }

    /// Takes frames from one queue and puts them into chains of the other.
    #[inline(never)]
    fn run(
        &mut self,
        sends: &mut impl Ones,
        receives: &mut impl Ones,
        room: &mut Room<'_>,
    ) -> Stop {
        let Sums { mut frames, mut bytes, mut charge } = self.delivered;
        let stop = loop {
            if let Some(stop) = self.stops(Sums { frames, bytes, charge }) {
                break stop;
            }
            let len = match self.frame(sends, receives, room) {
                Ok(len) => len,
                Err(stop) => break stop,
            };
            if let Some((rate, now)) = &mut self.rate {
                rate.take(u64::from(len) + HEADER_BYTES as u64, *now);
            }
            frames += 1;
            bytes += u64::from(len);
            charge += LEAST_CHARGE.max(len.into());
        };
        self.delivered = Sums { frames, bytes, charge };
        stop
    }

    /// Delivers a frame. Gives its length.
    #[inline(always)]
    fn frame(
        &mut self,
        sends: &mut impl Ones,
        receives: &mut impl Ones,
        room: &mut Room<'_>,
    ) -> Result<u32, Stop> {
        let [sending, receiving] = self.windows;
        let Some(sent) = sends.take_one::<false>(sending, room.sent, &mut self.taken[0]) else {
            if self.taken[0] != Ok(true) {
                return Err(Stop::Sent);
            }
            return Err(Stop::Pieces(false));
        };
        let Some(front) = room.frame.front() else { return Err(Stop::Enough) };
        let all = sent.bytes();
        let len = all.wrapping_sub(HEADER_BYTES as u32);
        if all < FRONT as u32 || len > self.longest || sent.span().read(0, front).is_err() {
            sends.hold_one(sent, false, room.sent);
            return Err(Stop::Read(0));
        }
        if !goes_as_it_is(front, self.from, self.to) {
            sends.hold_one(sent, false, room.sent);
            return Err(Stop::Read(FRONT));
        }
        if let Some(steers) = &mut self.steers
            && !steers.lead_here(
                room.frame.glance(all, FLOW, |into| sent.span().read(FRONT as u64, into)),
            )
        {
            sends.hold_one(sent, false, room.sent);
            return Err(Stop::Read(FRONT));
        }
        let buffer = receives.take_one::<true>(receiving, room.scratch, &mut self.taken[1]);
        let Some(buffer) = buffer else {
            sends.hold_one(sent, false, room.sent);
            return Err(Stop::Pieces(true));
        };
        if buffer.bytes() < all {
            sends.hold_one(sent, false, room.sent);
            receives.hold_one(buffer, true, room.scratch);
            self.taken[1] = Ok(true);
            return Err(Stop::Received);
        }
        let Some(front) = room.frame.front_to_deliver() else { return Err(Stop::Enough) };
        // There is room for all.
        let _ = put(front, sent.span(), buffer.span());
        receives.used_one(buffer, all);
        sends.used_one(sent, 0);
        Ok(len)
    }

    /// Delivers the frame of a chain that was taken, or into one, after [`Stop::Pieces`].
    #[inline(never)]
    fn pieces<const RING: usize>(
        &mut self,
        is_read: bool,
        sends: &mut Queue<RING>,
        receives: &mut Queue<RING>,
        room: &mut Room<'_>,
    ) -> Result<(), Stop> {
        let Room { sent, frame, scratch } = room;
        let Some(from) = Parts::of(sent.readable()) else {
            return Err(Stop::Read(if is_read { FRONT } else { 0 }));
        };
        let all = sent.readable_len();
        let len = all.wrapping_sub(HEADER_BYTES as u32);
        if !is_read {
            let Some(front) = frame.front() else { return Err(Stop::Read(0)) };
            if len > self.longest || from.read(front).is_err() {
                return Err(Stop::Read(0));
            }
            if !goes_as_it_is(front, self.from, self.to) {
                return Err(Stop::Read(FRONT));
            }
            if let Some(steers) = &mut self.steers
                && !steers.lead_here(frame.glance(all, FLOW, |into| from.frame.read(BEHIND, into)))
            {
                return Err(Stop::Read(FRONT));
            }
            self.taken[1] = receives.take(self.windows[1], scratch);
        }
        let has_room = self.taken[1] == Ok(true) && is_for_frames(scratch, all);
        let into = Parts::of(scratch.writable()).filter(|_| has_room).ok_or(Stop::Received)?;
        if into.frame.len() < len.into() {
            return Err(Stop::Received);
        }
        let Some(front) = frame.front_to_deliver() else { return Err(Stop::Received) };
        // There is room for all.
        let _ = from.put(front, &into);
        receives.complete(scratch.head(), all);
        sends.complete(sent.head(), 0);
        if let Some((rate, now)) = &mut self.rate {
            rate.take(all.into(), *now);
        }
        self.delivered.frames += 1;
        self.delivered.bytes += u64::from(len);
        self.delivered.charge += price(sent).max(len.into());
        Ok(())
    }
}

/// The two parts of a chain that most drivers make: a header, and a frame in one buffer, together
/// with the header or apart. Both have as much as is in the front.
struct Parts {
    header: Span,
    frame: Span,
}

impl Parts {
    /// None: the chain isn't so.
    fn of(spans: &[Span]) -> Option<Parts> {
        let header = HEADER_BYTES as u64;
        let (header, frame) = match spans {
            [one] => (one.sub(0, header)?, one.sub(header, one.len().checked_sub(header)?)?),
            [first, second] if first.len() == header => (*first, *second),
            _ => return None,
        };
        (frame.len() >= BEHIND).then_some(Parts { header, frame })
    }

    fn read(&self, front: &mut [u8; FRONT]) -> Result<(), Outside> {
        let (header, frame) = front.split_at_mut(HEADER_BYTES);
        self.header.read(0, header)?;
        self.frame.read(0, frame)
    }

    /// Puts the front, and what is behind it here, into other parts, which are as long.
    fn put(&self, front: &[u8; FRONT], into: &Parts) -> Result<(), Outside> {
        let (header, frame) = front.split_at(HEADER_BYTES);
        into.header.write(0, header)?;
        into.frame.write(0, frame)?;
        copy_behind(&self.frame, BEHIND, &into.frame)
    }
}

/// Puts the front of a chain, and the rest of it, into this buffer, which is as long.
#[inline(always)]
fn put(front: &[u8; FRONT], sent: &Span, into: &Span) -> Result<(), Outside> {
    into.write(0, front)?;
    copy_behind(sent, FRONT as u64, into)
}

/// Copies what is behind this place.
#[inline(never)]
fn copy_behind(from: &Span, at: u64, to: &Span) -> Result<(), Outside> {
    let rest = from.sub(at, from.len().saturating_sub(at)).ok_or(Outside)?;
    rest.copy_to(&to.sub(at, rest.len()).ok_or(Outside)?)
}
