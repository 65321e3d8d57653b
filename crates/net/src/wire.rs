//! What a switch has to do with the wire: a port to it, frames that came in, frames that go out.
//!
//! Guarantees: a frame that comes in is forwarded as one of a port whose stations are learned: not
//! from an address that another port has for its own, to ports of its VLAN alone, and to nobody
//! that doesn't have its address. What nobody here has for its address goes out, and is no more.
use crate::config::Config;
use crate::error::BadPort;
use crate::port::{Plan, Sources};
use crate::switch::{Outcome, PortNumber, Switch};
use crate::uplink::{Finish, Leaving, Uplink};
use crate::vlan::Vlan;
use window::Span;

impl<const RING: usize> Switch<RING> {
    /// A port to the wire, with [`crate::UPLINK_MEMORY`] bytes of memory that is for nothing else
    /// ([`crate::LONG_UPLINK_MEMORY`] if frames have headers), and who finishes what goes there.
    /// The link is down.
    ///
    /// # Errors
    ///
    /// [`BadPort`] if the switch has one, or no port left; or the memory is too short.
    pub fn add_uplink(&mut self, memory: Span, finish: Finish) -> Result<PortNumber, BadPort> {
        let plan = Plan { vlan: Vlan::All, sources: Sources::Any, ..Plan::default() };
        let uplink = Uplink::new(memory, finish).ok_or(BadPort::Memory)?;
        let number = self.add(Config::of_uplink(), plan)?;
        if let Some(port) = self.port_mut(number) {
            (port.uplink, port.link_up) = (Some(uplink), false);
        }
        Ok(number)
    }

    /// Where a frame from the wire is to be put, before [`Self::arrived`]; with its header, if it
    /// is [`Finish::ByHeader`].
    pub fn inbox(&self, number: PortNumber) -> Option<Span> {
        self.port(number)?.uplink.as_ref()?.inbox()
    }

    /// This many bytes came in: the frame goes to its receivers.
    pub fn arrived(&mut self, number: PortNumber, bytes: u32, now: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let port = self.ports.get_mut(usize::from(number.0)).and_then(Option::as_mut);
        let Some(port) = port else { return outcome };
        let placed = port.uplink.as_ref().and_then(|it| it.arrived(bytes, &mut self.sent));
        let Some(accepted) = placed else { return outcome };
        port.statistics.sent += 1;
        let mtu = port.config.parameters().mtu;
        match self.frame.take(&self.sent, 0, accepted, mtu) {
            Ok(()) => {
                port.statistics.sent_bytes += u64::from(self.frame.len);
                outcome.sent = self.frame.len.into();
                let forwarded = self.forward(number, now, &mut outcome);
                outcome.dropped = u32::from(!forwarded);
            }
            Err(fault) => {
                port.fault(fault);
                outcome.dropped = 1;
            }
        }
        outcome
    }

    /// The oldest frame that is to go out, if any. It stays as it is until the switch is used
    /// again.
    pub fn leaving(&mut self, number: PortNumber) -> Option<Leaving> {
        self.port_mut(number)?.uplink.as_mut()?.take()
    }
}
