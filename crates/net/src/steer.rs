//! Which receive queue a flow goes to (5.1.6.5.6.1, automatic receive steering): that of the pair
//! which the driver used last to send in the same flow. Flows with the same hash go together.
use crate::frame::{ETHERNET, Frame};

/// Hashes.
const FLOWS: usize = 256;
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

    /// The pair that receives, of the first `active` ones.
    pub fn pair(&self, flow: u8, active: u16) -> u16 {
        let pair = self.0.get(usize::from(flow)).copied().unwrap_or(NONE);
        if u16::from(pair) < active { pair.into() } else { u16::from(flow) % active.max(1) }
    }
}

/// The flow of a frame: the same in both directions. It is of IP addresses, and of the ports of TCP
/// and UDP if the packet is whole; of the Ethernet addresses if it is something else.
pub fn flow(frame: &Frame) -> u8 {
    let head: &[u8] = &frame.head;
    let ip = head.get(ETHERNET..).unwrap_or(&[]);
    let byte = |at: usize| ip.get(at).copied().unwrap_or(0);
    let (addresses, len, protocol, ports) = match (head.get(12..14), byte(0) >> 4) {
        (Some([0x08, 0x00]), 4) => {
            let whole = byte(6) & 0x3f == 0 && byte(7) == 0;
            let ports = usize::from(byte(0) & 15) * 4;
            (ip.get(12..20), 4, byte(9), whole.then_some(ports))
        }
        (Some([0x86, 0xdd]), 6) => (ip.get(8..40), 16, byte(6), Some(40)),
        _ => (head.get(..12), 6, 0, None),
    };
    let addresses = addresses.unwrap_or(&[]);
    let mut hash = u64::from(protocol);
    let mut mix = |a: u8, b: u8| {
        hash = hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(a ^ b);
    };
    for (a, b) in addresses.iter().zip(addresses.iter().skip(len)) {
        mix(*a, *b);
    }
    if let (6 | 17, Some(at)) = (protocol, ports) {
        mix(byte(at), byte(at + 2));
        mix(byte(at + 1), byte(at + 3));
    }
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
