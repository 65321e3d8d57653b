//! A frame on behalf of a station that has moved here from another host, and doesn't say so itself:
//! whoever keeps what is behind which port learns it from that. It is RARP's question for the
//! station's own address, which nobody answers.
//!
//! Guarantees: it is forwarded as if the port's driver had sent it, from an address that the port
//! may have, and counts for the port's limit.
use crate::Mac;
use crate::config::Features;
use crate::frame::ETHERNET;
use crate::header::HEADER_BYTES;
use crate::switch::{Outcome, PortNumber, Switch};
use window::Span;

/// Bytes of memory that it takes.
pub const ANNOUNCE_BYTES: u64 = HEADER_BYTES as u64 + FRAME as u64;
/// The shortest frame, without its checksum.
const FRAME: usize = 60;
/// Ethernet's type of RARP; what it asks of what: Ethernet, IPv4, lengths of their addresses, a
/// question.
const RARP: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];
/// Where the addresses are that it tells and asks for.
const SENDER: usize = ETHERNET + 8;
const TARGET: usize = ETHERNET + 18;

/// The header, which asks for nothing, and the frame.
fn bytes(mac: Mac) -> [u8; ANNOUNCE_BYTES as usize] {
    let mut bytes = [0; ANNOUNCE_BYTES as usize];
    let mut put = |at: usize, part: &[u8]| {
        let place = bytes.get_mut(HEADER_BYTES + at..).unwrap_or_default();
        place.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
    };
    put(0, &Mac::BROADCAST.0);
    put(6, &mac.0);
    put(12, &RARP);
    put(SENDER, &mac.0);
    put(TARGET, &mac.0);
    bytes
}

impl<const RING: usize> Switch<RING> {
    /// Tells the network that this station is at this port. `memory`: [`ANNOUNCE_BYTES`] of the
    /// host's own.
    pub fn announce(&mut self, number: PortNumber, mac: Mac, memory: Span, now: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(memory) = memory.sub(0, ANNOUNCE_BYTES) else { return outcome };
        if memory.write(0, &bytes(mac)).is_err() {
            return outcome;
        }
        self.sent.set_readable(memory);
        let port = self.ports.get_mut(usize::from(number.0)).and_then(Option::as_mut);
        let Some(port) = port.filter(|port| port.rate.ready_at() <= now) else { return outcome };
        port.rate.take(ANNOUNCE_BYTES, now);
        let mtu = port.config.parameters().mtu;
        if self.frame.take(&self.sent, 0, Features::empty(), mtu).is_ok() {
            self.forward(number, now, &mut outcome);
        }
        outcome
    }
}
