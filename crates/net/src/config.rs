//! What a device is: its features and its configuration space (virtio 1.2, 5.1.3 and 5.1.4).

use bitflags::bitflags;
use thiserror::Error;

use crate::Mac;
use crate::uplink::MTU;

bitflags! {
    /// Feature bits that concern the device, as in the feature words of the transport.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// VIRTIO_NET_F_CSUM: frames may be sent whose checksum isn't complete.
        const CSUM = 1 << 0;
        /// VIRTIO_NET_F_GUEST_CSUM: frames may be received whose checksum isn't complete.
        const GUEST_CSUM = 1 << 1;
        /// VIRTIO_NET_F_MTU: `mtu` holds.
        const MTU = 1 << 3;
        /// VIRTIO_NET_F_MAC: `mac` holds.
        const MAC = 1 << 5;
        /// VIRTIO_NET_F_GUEST_TSO4: frames may be received that are to be cut into segments.
        const GUEST_TSO4 = 1 << 7;
        /// VIRTIO_NET_F_GUEST_TSO6.
        const GUEST_TSO6 = 1 << 8;
        /// VIRTIO_NET_F_GUEST_ECN: of them, those with CWR set.
        const GUEST_ECN = 1 << 9;
        /// VIRTIO_NET_F_HOST_TSO4: frames may be sent that are to be cut into segments.
        const HOST_TSO4 = 1 << 11;
        /// VIRTIO_NET_F_HOST_TSO6.
        const HOST_TSO6 = 1 << 12;
        /// VIRTIO_NET_F_HOST_ECN: of them, those with CWR set.
        const HOST_ECN = 1 << 13;
        /// VIRTIO_NET_F_MRG_RXBUF: a frame may have several receive buffers.
        const MRG_RXBUF = 1 << 15;
        /// VIRTIO_NET_F_STATUS: `status` holds.
        const STATUS = 1 << 16;
        /// VIRTIO_NET_F_CTRL_VQ: there is a control queue.
        const CTRL_VQ = 1 << 17;
        /// VIRTIO_NET_F_CTRL_RX: it takes receive modes and tables of addresses.
        const CTRL_RX = 1 << 18;
        /// VIRTIO_NET_F_CTRL_VLAN: it takes VLANs to receive.
        const CTRL_VLAN = 1 << 19;
        /// VIRTIO_NET_F_CTRL_RX_EXTRA: it takes four more receive modes.
        const CTRL_RX_EXTRA = 1 << 20;
        /// VIRTIO_NET_F_GUEST_ANNOUNCE: the driver announces itself when it is asked to, and says
        /// by the control queue that it did.
        const GUEST_ANNOUNCE = 1 << 21;
        /// VIRTIO_NET_F_MQ: there are several pairs of queues.
        const MQ = 1 << 22;
        /// VIRTIO_NET_F_CTRL_MAC_ADDR: the control queue takes the device's address.
        const CTRL_MAC_ADDR = 1 << 23;
        /// VIRTIO_F_INDIRECT_DESC (6).
        const INDIRECT_DESC = 1 << 28;
        /// VIRTIO_F_EVENT_IDX (6).
        const EVENT_IDX = 1 << 29;
        /// VIRTIO_F_VERSION_1 (6).
        const VERSION_1 = 1 << 32;
        /// VIRTIO_F_RING_PACKED (6).
        const RING_PACKED = 1 << 34;
        /// VIRTIO_NET_F_GUEST_USO4: frames of UDP may be received that are to be cut into packets.
        const GUEST_USO4 = 1 << 54;
        /// VIRTIO_NET_F_GUEST_USO6.
        const GUEST_USO6 = 1 << 55;
        /// VIRTIO_NET_F_HOST_USO: frames of UDP may be sent that are to be cut into packets.
        const HOST_USO = 1 << 56;
    }
}

/// Which features ask for which (5.1.3.1): the first for one at least of the second.
pub const REQUIREMENTS: [(Features, Features); 15] = [
    (Features::GUEST_TSO4, Features::GUEST_CSUM),
    (Features::GUEST_TSO6, Features::GUEST_CSUM),
    (Features::GUEST_ECN, Features::GUEST_TSO4.union(Features::GUEST_TSO6)),
    (Features::HOST_TSO4, Features::CSUM),
    (Features::HOST_TSO6, Features::CSUM),
    (Features::HOST_ECN, Features::HOST_TSO4.union(Features::HOST_TSO6)),
    (Features::GUEST_USO4, Features::GUEST_CSUM),
    (Features::GUEST_USO6, Features::GUEST_CSUM),
    (Features::HOST_USO, Features::CSUM),
    (Features::CTRL_RX, Features::CTRL_VQ),
    (Features::CTRL_RX_EXTRA, Features::CTRL_VQ),
    (Features::CTRL_VLAN, Features::CTRL_VQ),
    (Features::GUEST_ANNOUNCE, Features::CTRL_VQ),
    (Features::MQ, Features::CTRL_VQ),
    (Features::CTRL_MAC_ADDR, Features::CTRL_VQ),
];

/// Bytes of the configuration space, up to the last field of a feature that can be offered.
pub const CONFIG_BYTES: usize = 12;
/// The smallest MTU (5.1.4.1 recommends it; IPv6 needs it).
pub const LEAST_MTU: u16 = 1280;
/// `status`: VIRTIO_NET_S_LINK_UP.
const LINK_UP: u16 = 1;

/// What is asked of a device.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Its address.
    pub mac: Mac,
    /// The most bytes of a frame or a segment behind the Ethernet header: [`LEAST_MTU`] at least.
    /// It holds for drivers that don't accept MTU, too.
    pub mtu: u16,
    /// Pairs of a receive and a transmit queue, 1 at least. MQ is offered if there are more.
    pub pairs: u16,
    /// Whether packed rings are offered: on two cores they are slower than split ones.
    pub packed: bool,
    /// Whether GUEST_ANNOUNCE is offered: for a front end that moves its guest to another host, and
    /// asks it there. Nobody is asked here.
    pub announces: bool,
    /// Features that aren't offered; nor are those that ask for them.
    pub withheld: Features,
}

impl Default for Parameters {
    /// One pair of queues, 1,500 bytes, and no address: one has to be given.
    fn default() -> Parameters {
        let withheld = Features::empty();
        let (packed, announces) = (false, false);
        Parameters { mac: Mac::default(), mtu: 1500, pairs: 1, packed, announces, withheld }
    }
}

/// Why there can't be such a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// The address is a group's, or zero.
    #[error("its address {0} isn't a station's")]
    Mac(Mac),
    /// The MTU is too small.
    #[error("its MTU is less than {LEAST_MTU}")]
    Mtu,
    /// No pair of queues, or more than 32,768 (5.1.4.1).
    #[error("its number of queue pairs isn't from 1 to 32768")]
    Pairs,
    /// VERSION_1 or MAC is withheld: legacy drivers aren't served, and addresses aren't made up.
    #[error("it would be without VERSION_1 or MAC")]
    Withheld,
}

/// Why what a driver accepted isn't to be served: FEATURES_OK stays clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadFeatures {
    /// These weren't offered.
    #[error("the driver accepted {0:?}, which weren't offered")]
    NotOffered(Features),
    /// VERSION_1 isn't accepted.
    #[error("the driver is a legacy one")]
    Legacy,
    /// The first asks for the second, which isn't accepted (5.1.3.1).
    #[error("the driver accepted {0:?} without {1:?}")]
    Requires(Features, Features),
}

/// What a queue is for, by its index (5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// The receive queue of this pair, from 0.
    Receive(u16),
    /// The transmit queue of this pair.
    Transmit(u16),
    /// The control queue.
    Control,
}

/// A device that can be.
#[derive(Clone, Copy, Debug)]
pub struct Config(Parameters);

impl Config {
    /// Checks what is asked for.
    pub fn new(asked: Parameters) -> Result<Config, BadConfig> {
        if !asked.mac.is_station() {
            return Err(BadConfig::Mac(asked.mac));
        }
        if asked.mtu < LEAST_MTU {
            return Err(BadConfig::Mtu);
        }
        if !(1..=32768).contains(&asked.pairs) {
            return Err(BadConfig::Pairs);
        }
        if asked.withheld.intersects(Features::VERSION_1 | Features::MAC) {
            return Err(BadConfig::Withheld);
        }
        Ok(Config(asked))
    }

    /// Of a port to the wire: no device has it, and no address.
    pub(crate) fn of_uplink() -> Config {
        Config(Parameters { mtu: MTU, pairs: 0, ..Parameters::default() })
    }

    /// What was asked for.
    pub fn parameters(&self) -> &Parameters {
        &self.0
    }

    /// The features to offer. Each has what it asks for.
    pub fn features(&self) -> Features {
        let mut offered = Features::all() - self.0.withheld;
        if self.0.pairs == 1 {
            offered -= Features::MQ;
        }
        if !self.0.announces {
            offered -= Features::GUEST_ANNOUNCE;
        }
        if !self.0.packed {
            offered -= Features::RING_PACKED;
        }
        // What others ask for comes before them in the table.
        for (feature, requirement) in REQUIREMENTS {
            if !offered.intersects(requirement) {
                offered -= feature;
            }
        }
        offered
    }

    /// Checks what a driver has accepted, before FEATURES_OK is confirmed.
    ///
    /// # Errors
    ///
    /// [`BadFeatures`]: the device doesn't work with these.
    pub fn accept(&self, accepted: u64) -> Result<Features, BadFeatures> {
        self.accept_with(accepted, Features::empty())
    }

    /// The same where a front end may keep the control queue to itself, and passes on what else the
    /// driver accepted: what asks for that queue may be accepted without it.
    ///
    /// # Errors
    ///
    /// As for [`Self::accept`].
    pub fn accept_behind_front_end(&self, accepted: u64) -> Result<Features, BadFeatures> {
        self.accept_with(accepted, Features::CTRL_VQ)
    }

    /// `kept`: who is asked doesn't see them, though they may be accepted.
    fn accept_with(&self, accepted: u64, kept: Features) -> Result<Features, BadFeatures> {
        let offered = self.features();
        let accepted = Features::from_bits_retain(accepted);
        if !offered.contains(accepted) {
            return Err(BadFeatures::NotOffered(accepted.difference(offered)));
        }
        if !accepted.contains(Features::VERSION_1) {
            return Err(BadFeatures::Legacy);
        }
        for (feature, requirement) in REQUIREMENTS {
            if accepted.intersects(feature) && !(accepted | kept).intersects(requirement) {
                return Err(BadFeatures::Requires(feature, requirement));
            }
        }
        Ok(accepted)
    }

    /// How many queues the device has, the control queue included.
    pub fn queues(&self) -> u32 {
        2 * u32::from(self.0.pairs) + u32::from(self.features().contains(Features::CTRL_VQ))
    }

    /// What the queue of this index is for, for a driver that accepted these features: without MQ
    /// there is one pair, and the control queue is right behind it.
    pub fn queue(&self, index: u16, accepted: Features) -> Option<QueueKind> {
        let pairs = if accepted.contains(Features::MQ) { self.0.pairs } else { 1 };
        let pair = index / 2;
        if pair < pairs {
            let receive = index.is_multiple_of(2);
            return Some(if receive {
                QueueKind::Receive(pair)
            } else {
                QueueKind::Transmit(pair)
            });
        }
        let control = u32::from(index) == 2 * u32::from(pairs);
        (control && accepted.contains(Features::CTRL_VQ)).then_some(QueueKind::Control)
    }

    /// The configuration space of a device that has this address now. Fields of features that
    /// aren't offered are 0.
    pub fn config_bytes(&self, mac: Mac, link_up: bool) -> [u8; CONFIG_BYTES] {
        let offered = self.features();
        let only = |feature, value: u16| if offered.contains(feature) { value } else { 0 };
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &mac.0);
        put(6, &only(Features::STATUS, if link_up { LINK_UP } else { 0 }).to_le_bytes());
        put(8, &only(Features::MQ, self.0.pairs).to_le_bytes());
        put(10, &only(Features::MTU, self.0.mtu).to_le_bytes());
        bytes
    }
}
