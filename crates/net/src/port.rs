//! A device at the switch: what the plan allows there, what its driver has set up, what it counts.
use crate::config::{Config, Features, QueueKind};
use crate::control::Command;
use crate::deliver::{Delivered, To, charge, plain};
use crate::filter::Filter;
use crate::frame::{ETHERNET, Fault, Frame};
use crate::queues::Queues;
use crate::rate::{Bucket, Rate};
use crate::receive::Filling;
use crate::steer::{Pairs, Steering, are_several, bit, first, flow};
use crate::uplink::Uplink;
use crate::{Mac, Vlan};
use virtqueue::Chain;
use window::Window;

/// The most pairs of queues of a port.
pub const MAX_PAIRS: u16 = 64;

/// What the switch allows at a port.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The VLANs that it is in.
    pub vlan: Vlan,
    /// Which addresses frames may come from.
    pub sources: Sources,
    /// Bytes that it may send, as a wire would have them: segments with their headers. It waits
    /// when there were more.
    pub rate: Option<Rate>,
    /// Bytes of frames to several receivers, once for each: what is more is dropped.
    pub flood: Option<Rate>,
}

impl Default for Plan {
    /// Without a VLAN and without limits, of the one address that the device has.
    fn default() -> Plan {
        Plan { vlan: Vlan::Access(0), sources: Sources::Planned, rate: None, flood: None }
    }
}

/// Which addresses frames may come from at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The address of its [`Config`] alone.
    Planned,
    /// Or the one that its driver has set: any that no other port has. Such a port can take the
    /// address of a station behind a port of [`Sources::Any`].
    Settable,
    /// Any that no other port has. They are learned, and are where they were seen last: another
    /// such port can take them. Frames to addresses that nobody knows go to such ports, and to no
    /// others.
    Any,
}

/// What a port counts, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames taken from its transmit queues.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames put into its receive buffers, segments one by one.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Of them, segments that were made here.
    pub segments: u64,
    /// Checksums that were made here, for frames that it received.
    pub checksums: u64,
    /// Sent, and dropped: shorter than its headers.
    pub short: u64,
    /// Sent, and dropped: longer than allowed.
    pub long: u64,
    /// Sent, and dropped: the header is wrong, or asks for what wasn't negotiated.
    pub bad_header: u64,
    /// Sent, and dropped: from an address that the port may not have.
    pub spoofed: u64,
    /// Sent, and dropped: of a VLAN that the port isn't in, or of tags that aren't forwarded.
    pub bad_vlan: u64,
    /// Sent, and dropped: beyond the limit of frames to several receivers, or of their copies.
    pub flooded: u64,
    /// Sent, and dropped: for nobody here.
    pub unknown: u64,
    /// Neither sent nor received: the link is down; or not received for want of a driver.
    pub down: u64,
    /// Not received: the driver doesn't want it.
    pub filtered: u64,
    /// Not received: longer than its MTU, or too many segments.
    pub oversized: u64,
    /// Not received: no buffers, or too small ones.
    pub no_room: u64,
    /// Commands that were carried out.
    pub commands: u64,
    /// Commands that were refused.
    pub refused: u64,
}

impl Statistics {
    fn delivered(&mut self, delivered: &Delivered) {
        self.received += u64::from(delivered.frames);
        self.received_bytes += delivered.bytes;
        self.segments += u64::from(delivered.segments);
        self.checksums += u64::from(delivered.checksums);
        self.no_room += u64::from(delivered.no_room);
        self.oversized += u64::from(delivered.too_many);
    }
}

/// What there is while a driver runs the device, besides its queues.
#[derive(Debug)]
pub struct Running {
    /// The guest's memory.
    pub window: Window,
    /// What its driver accepted.
    pub accepted: Features,
    /// Pairs that receive.
    pub pairs: Pairs,
    /// By which of them.
    pub steering: Steering,
    /// A bit for each pair whose frames are taken and go nowhere.
    pub discards: u64,
}

/// What the driver has set, while the device has neither memory nor queues.
#[derive(Clone, Copy, Debug)]
struct Kept {
    accepted: Features,
    pairs: Pairs,
}

/// A port, but for its queues.
#[derive(Debug)]
pub struct Port {
    pub config: Config,
    pub plan: Plan,
    /// The address that it has now.
    pub mac: Mac,
    pub link_up: bool,
    pub running: Option<Running>,
    /// It isn't running, and is the same device when it does again.
    kept: Option<Kept>,
    /// What its driver wants to receive.
    pub filter: Filter,
    /// It is no device's port, but one to the wire.
    pub uplink: Option<Uplink>,
    pub rate: Bucket,
    pub flood: Bucket,
    pub statistics: Statistics,
    /// The receive queues, by pairs, that something was done with.
    pub touched: u64,
    /// The port that a frame from here went to last, if it was one: nothing more than a guess
    /// where the next one goes.
    pub last: u8,
    /// The pair that received last.
    pub last_pair: u16,
}

impl Port {
    pub fn new(config: Config, plan: Plan) -> Port {
        Port {
            config,
            plan,
            mac: config.parameters().mac,
            link_up: true,
            running: None,
            kept: None,
            filter: Filter::new(Features::empty()),
            uplink: None,
            rate: Bucket::new(plan.rate),
            flood: Bucket::new(plan.flood),
            statistics: Statistics::default(),
            touched: 0,
            last: u8::MAX,
            last_pair: 0,
        }
    }

    pub fn start(&mut self, window: Window, accepted: Features) {
        self.stop();
        self.filter = Filter::new(accepted);
        self.run(window, accepted, Pairs::new());
    }

    fn run(&mut self, window: Window, accepted: Features, pairs: Pairs) {
        let steering = Steering::new();
        self.running = Some(Running { window, accepted, pairs, steering, discards: 0 });
    }

    pub fn stop(&mut self) {
        (self.running, self.kept) = (None, None);
        self.mac = self.config.parameters().mac;
        self.touched = 0;
    }

    /// It has no memory and no queues; what its driver has set holds.
    pub fn pause(&mut self) {
        self.touched = 0;
        if let Some(Running { accepted, pairs, .. }) = self.running.take() {
            self.kept = Some(Kept { accepted, pairs: pairs.detached() });
        }
    }

    /// It goes on. False: it was stopped, or its driver accepted other features, so it is to begin.
    pub fn resume(&mut self, window: Window, accepted: Features) -> bool {
        match self.kept.take() {
            Some(kept) if kept.accepted == accepted => {
                self.run(window, accepted, kept.pairs);
                true
            }
            _ => false,
        }
    }

    /// The queue of this purpose comes or goes.
    pub fn attach(&mut self, kind: QueueKind, there: bool) {
        let Some(running) = &mut self.running else { return };
        match kind {
            QueueKind::Receive(pair) => running.pairs.attach(pair, there),
            QueueKind::Transmit(pair) => running.discards &= !bit(pair),
            QueueKind::Control if there => running.pairs.has_control(),
            QueueKind::Control => {}
        }
    }

    /// Whether frames of this pair go nowhere.
    #[inline(always)]
    pub fn discards(&self, pair: u16) -> bool {
        let discards = self.running.as_ref().map_or(0, |running| running.discards);
        discards != 0 && discards & bit(pair) != 0
    }

    /// What the queue of this index is for, while a driver runs the device.
    pub fn kind(&self, index: u16) -> Option<QueueKind> {
        self.config.queue(index, self.running.as_ref()?.accepted)
    }

    /// Whether this address is its own, now or after a reset.
    pub fn owns(&self, mac: Mac) -> bool {
        self.mac == mac || self.config.parameters().mac == mac
    }

    /// Counts a frame that isn't forwarded.
    pub fn fault(&mut self, fault: Fault) {
        let counters = &mut self.statistics;
        let counter = match fault {
            Fault::Short => &mut counters.short,
            Fault::Long => &mut counters.long,
            Fault::NotAccepted | Fault::Header => &mut counters.bad_header,
            Fault::Tag => &mut counters.bad_vlan,
        };
        *counter += 1;
    }

    /// Puts the frame of this VLAN into its receive buffers, if it is ready for it. Gives the
    /// bytes that arrived, and what that cost.
    pub fn receive<const RING: usize>(
        &mut self,
        queues: &mut Queues<RING>,
        frame: &Frame,
        sent: &Chain,
        vlan: u16,
        scratch: &mut Chain,
    ) -> (u64, u64) {
        if self.uplink.is_some() {
            let Delivered { bytes, charge, .. } = self.leave(frame, sent, vlan);
            return (bytes, charge);
        }
        let counters = &mut self.statistics;
        let running = self.running.as_mut().filter(|_| self.link_up);
        let (Some(running), Some(tagged)) = (running, self.plan.vlan.egress(vlan)) else {
            counters.down += 1;
            return (0, 0);
        };
        let tag = tagged.then_some(vlan);
        if !self.filter.accepts(frame.destination(), tag, self.mac) {
            counters.filtered += 1;
            return (0, 0);
        }
        if frame.longest > ETHERNET as u32 + u32::from(self.config.parameters().mtu) {
            counters.oversized += 1;
            return (0, 0);
        }
        let active = running.pairs.active();
        let pair = match are_several(active) {
            true => running.steering.pair(flow(&frame.head), active),
            false => first(active),
        };
        self.last_pair = pair;
        let Some(receive) = queues.receive.get_mut(usize::from(pair)) else {
            counters.no_room += 1;
            return (0, 0);
        };
        self.touched |= bit(pair);
        let (window, accepted) = (&running.window, running.accepted);
        let mergeable = accepted.contains(Features::MRG_RXBUF);
        let buffers = &mut Filling { receive: &mut *receive, window, mergeable, scratch };
        let delivered = match tag {
            None => plain(buffers, frame),
            Some(_) => Ok(false),
        };
        if delivered == Ok(true) {
            let bytes = frame.len.into();
            receive.counts.frames = receive.counts.frames.saturating_add(1);
            receive.counts.bytes = receive.counts.bytes.saturating_add(bytes);
            counters.received += 1;
            counters.received_bytes += bytes;
            return (bytes, charge(frame.len));
        }
        let mut to = To { buffers, accepted, tag };
        let delivered = delivered.and_then(|_| to.deliver_otherwise(frame, sent));
        let counts = &mut receive.counts;
        let Ok(delivered) = delivered else {
            counters.no_room += 1;
            counts.dropped = counts.dropped.saturating_add(1);
            return (0, 0);
        };
        counts.frames = counts.frames.saturating_add(delivered.frames);
        counts.bytes = counts.bytes.saturating_add(delivered.bytes);
        let dropped = delivered.no_room + delivered.too_many;
        counts.dropped = counts.dropped.saturating_add(dropped);
        counters.delivered(&delivered);
        (delivered.bytes, delivered.charge)
    }

    /// Puts the frame of this VLAN among those that are to go to the wire.
    fn leave(&mut self, frame: &Frame, sent: &Chain, vlan: u16) -> Delivered {
        let counters = &mut self.statistics;
        let uplink = self.uplink.as_mut().filter(|_| self.link_up);
        let (Some(buffers), Some(tagged)) = (uplink, self.plan.vlan.egress(vlan)) else {
            counters.down += 1;
            return Delivered::default();
        };
        if frame.longest > ETHERNET as u32 + u32::from(self.config.parameters().mtu) {
            counters.oversized += 1;
            return Delivered::default();
        }
        let (tag, accepted) = (tagged.then_some(vlan), buffers.begin(frame));
        // These buffers don't break. The controller's driver copies what is in them once more.
        let mut delivered = To { buffers, accepted, tag }.deliver(frame, sent).unwrap_or_default();
        delivered.charge = delivered.charge.saturating_mul(2);
        counters.delivered(&delivered);
        delivered
    }

    /// Carries out a command; an address has been checked. False if it is refused.
    pub fn command(&mut self, command: Command) -> bool {
        let Some(running) = &mut self.running else { return false };
        match command {
            Command::Mode(mode, on) => self.filter.set_mode(mode, on),
            Command::Tables(unicast, multicast) => self.filter.set_tables(unicast, multicast),
            Command::Address(mac) => self.mac = mac,
            Command::Vlan(vlan, within) => return self.filter.set_vlan(vlan, within),
            Command::Announced => {}
            Command::Pairs(pairs) => {
                if !(1..=self.config.parameters().pairs).contains(&pairs) {
                    return false;
                }
                running.pairs.set_used(pairs);
            }
        }
        true
    }
}
