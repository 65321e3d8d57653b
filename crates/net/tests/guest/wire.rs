//! Guests at a switch that has a port to the wire.
use super::{Lan, parameters};
use net::header::Header;
use net::{
    Features, Finish, LONG_UPLINK_MEMORY, Mac, Outcome, Plan, PortNumber, Task, UPLINK_MEMORY, Vlan,
};
use window::Memory;

/// Somebody on the wire.
pub const FAR: Mac = Mac([2, 0xFA, 0, 0, 0, 1]);

/// A switch with one.
pub struct Wire {
    pub lan: Lan,
    pub port: PortNumber,
    /// What is left to do for the frame that left last, and its Ethernet header's bytes.
    pub last: Option<(Task, u16)>,
    /// The headers of the frames that left.
    pub headers: Vec<Header>,
    _memory: Memory,
}

impl Wire {
    /// Guests in these VLANs, and an uplink whose link is up.
    pub fn new(vlans: &[u16]) -> Wire {
        Wire::finished(vlans, Finish::Here)
    }

    /// The same; what goes out is finished so.
    pub fn finished(vlans: &[u16], finish: Finish) -> Wire {
        let mut lan = Lan::new();
        for (number, vlan) in (0..).zip(vlans) {
            let plan = Plan { vlan: Vlan::Access(*vlan), ..Plan::default() };
            let guest = lan.add(parameters(number), plan, Features::empty());
            lan.post_many(guest, 100, 2048);
        }
        let bytes = match finish {
            Finish::ByHeader { .. } => LONG_UPLINK_MEMORY,
            _ => UPLINK_MEMORY,
        };
        let memory = Memory::new(&[(0, bytes)], 0);
        let span = memory.window().span(0, bytes).unwrap();
        let port = lan.switch.add_uplink(span, finish).unwrap();
        lan.switch.set_link(port, true);
        Wire { lan, port, last: None, headers: Vec::new(), _memory: memory }
    }

    /// The frames that go out.
    pub fn out(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(leaving) = self.lan.switch.leaving(self.port) {
            let mut frame = Vec::new();
            for part in leaving.parts {
                let at = frame.len();
                frame.resize(at + part.len() as usize, 0);
                part.read(0, &mut frame[at..]).unwrap();
            }
            self.last = Some((leaving.task, leaving.ethernet));
            self.headers.push(Header::parse(&leaving.header));
            frames.push(frame);
        }
        frames
    }

    /// This comes in, with its header if it has one.
    pub fn arrives(&mut self, frame: &[u8]) -> Outcome {
        self.lan.switch.inbox(self.port).unwrap().write(0, frame).unwrap();
        let outcome = self.lan.switch.arrived(self.port, frame.len() as u32, self.lan.now);
        while let Some(touched) = self.lan.switch.touched() {
            assert_ne!(touched.port, self.port);
            let queue = self.lan.switch.queue(touched.port, touched.queue).unwrap();
            queue.publish();
        }
        outcome
    }
}
