//! Requests that are refused: what the front end is told, and the log.
//!
//! Guarantees: a request that is refused has changed nothing. The connection goes on where the
//! protocol has an answer, and the log has one sentence of it, however many there are.

use super::{Connection, Hands};
use crate::device::Kind;
use anyhow::{Error, Result};
use vhost_user::{Header, Refusal};

impl Connection {
    /// Answers a request that is refused.
    ///
    /// # Errors
    ///
    /// Why, if there is no answer: the connection is to end.
    pub(super) fn refuse(
        &mut self,
        header: &Header,
        why: vhost_user::Error,
        hands: &Hands<'_>,
    ) -> Result<()> {
        let refusal = self.session.refusal(header);
        let why = self.explained(why, hands);
        if refusal == Refusal::End {
            return Err(why);
        }
        if !self.is_refused {
            self.is_refused = true;
            let device = hands.rings.served.devices.get(self.device);
            let name = device.map_or("", |device| &device.name);
            eprintln!("exitless-io: {name}: the front end is refused what it asks for: {why:#}");
        }
        match refusal {
            Refusal::Reply(payload) => self.socket.reply(header.request, &payload, None),
            Refusal::Silence | Refusal::End => Ok(()),
        }
    }

    /// The same, with what to do against it.
    fn explained(&self, why: vhost_user::Error, hands: &Hands<'_>) -> Error {
        let port = match self.device(hands).map(|device| &device.kind) {
            Ok(Kind::Port(port)) => Some(port),
            _ => None,
        };
        match (why, port) {
            (vhost_user::Error::Ring(ring), Some(port)) if ring < u32::from(u8::MAX) => {
                let (asked, has) = (ring / 2 + 1, port.config.parameters().pairs);
                Error::new(why).context(format!(
                    "the front end asks for {asked} pairs of queues, the network has {has}: \
                     queues = {asked}"
                ))
            }
            _ => why.into(),
        }
    }
}
