//! Which receive queue a flow goes to (5.1.6.5.6.1, automatic receive steering): that of the pair
//! which the driver used last to send in the same flow. Flows with the same hash go together.
use crate::frame::ETHERNET;
use crate::port::MAX_PAIRS;

/// Hashes.
const FLOWS: usize = 256;
/// The bytes of a frame that say which flow it is of: addresses of IP, ports of TCP and UDP.
pub const FLOW: usize = ETHERNET + 60 + 4;
/// An odd number without a pattern: the highest bits of a product depend on all of the other one.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// No frame of the flow was sent.
const NONE: u8 = u8::MAX;

/// The pair of each flow.
#[derive(Debug)]
pub struct Steering([u8; FLOWS]);

impl Steering {
    /// Nothing was sent yet.
    pub const fn new() -> Steering {
        Steering([NONE; FLOWS])
    }

    /// A frame of this flow was sent by this pair.
    pub fn sent(&mut self, flow: u8, pair: u16) {
        if let Some(place) = self.0.get_mut(usize::from(flow)) {
            *place = u8::try_from(pair).unwrap_or(NONE);
        }
    }

    /// The pair that receives, of those with a bit here; pair 0 of none.
    pub fn pair(&self, flow: u8, active: u64) -> u16 {
        let pair = self.0.get(usize::from(flow)).copied().unwrap_or(NONE);
        if pair != NONE && active & bit(pair.into()) != 0 {
            return pair.into();
        }
        let before = u32::from(flow) % active.count_ones().max(1);
        first((0..before).fold(active, |left, _| left & left.wrapping_sub(1)))
    }
}

/// The pairs that receive: those whose receive queue is there, as far as the driver uses them.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// A bit for each receive queue that is there.
    attached: u64,
    /// A bit for each pair that the driver uses.
    used: u64,
    /// It can say which. Else those are used that are there.
    is_said: bool,
}

impl Pairs {
    /// Without a queue.
    pub const fn new() -> Pairs {
        Pairs { attached: 0, used: u64::MAX, is_said: false }
    }

    /// A bit for each that receives.
    #[inline(always)]
    pub fn active(self) -> u64 {
        self.attached & self.used
    }

    /// The receive queue of this pair comes or goes.
    pub fn attach(&mut self, pair: u16, there: bool) {
        let bit = bit(pair);
        self.attached = if there { self.attached | bit } else { self.attached & !bit };
    }

    /// The driver can say how many it uses: one before it does (5.1.6.5.5).
    pub fn has_control(&mut self) {
        if !self.is_said {
            self.set_used(1);
        }
    }

    /// It uses so many.
    pub fn set_used(&mut self, pairs: u16) {
        let unused = u64::BITS - u32::from(pairs).min(u64::BITS);
        (self.used, self.is_said) = (u64::MAX.checked_shr(unused).unwrap_or(0), true);
    }

    /// Without queues, as many are used as before.
    pub fn detached(self) -> Pairs {
        Pairs { attached: 0, ..self }
    }
}

/// The bit of a pair: no port has more than there are bits.
#[inline(always)]
pub fn bit(pair: u16) -> u64 {
    const { assert!(MAX_PAIRS as u32 == u64::BITS) };
    1u64.wrapping_shl(pair.into())
}

/// The first of these pairs; of none pair 0, which drops what it gets then.
#[inline(always)]
pub fn first(pairs: u64) -> u16 {
    (pairs.trailing_zeros() % u64::BITS) as u16
}

/// Whether there is more than one.
#[inline(always)]
pub fn are_several(pairs: u64) -> bool {
    pairs & pairs.wrapping_sub(1) != 0
}

/// The flow of a frame that begins with these bytes, [`FLOW`] of them if it is as long: the same in
/// both directions. It is of IP addresses, and of the ports of TCP and UDP if the packet is whole;
/// of the Ethernet addresses if it is something else.
pub fn flow(head: &[u8]) -> u8 {
    let word = |at: usize| -> u32 {
        let bytes = head.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    // What two words have in common is lost: it is the same if they are exchanged.
    let both = |a: usize, b: usize| u64::from(word(a) ^ word(b));
    let ip = ETHERNET;
    let (kind, version) = (word(12) >> 16, word(ip) >> 28);
    let (addresses, protocol, ports) = match (kind, version) {
        (0x0800, 4) => {
            let whole = word(ip + 4) & 0x3fff == 0;
            let ports = ip + (word(ip) >> 24 & 15) as usize * 4;
            (both(ip + 12, ip + 16), word(ip + 8) >> 16 & 0xff, whole.then_some(ports))
        }
        (0x86dd, 6) => {
            let part =
                |at: usize| both(ip + at, ip + at + 16) | both(ip + at + 4, ip + at + 20) << 32;
            let addresses = part(8).wrapping_mul(MIX) ^ part(16);
            ((addresses.wrapping_mul(MIX)) >> 32, word(ip + 4) >> 8 & 0xff, Some(ip + 40))
        }
        _ => (both(0, 6) ^ u64::from(word(2) ^ word(8)) << 16, 0, None),
    };
    let ports = match (protocol, ports) {
        (6 | 17, Some(at)) => {
            let ports = word(at);
            (ports >> 16 ^ ports) & 0xffff
        }
        _ => 0,
    };
    let hash = addresses ^ u64::from(ports) << 32 ^ u64::from(protocol) << 48;
    (hash.wrapping_mul(MIX) >> 56) as u8
}
