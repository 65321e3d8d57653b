//! The turn of a control queue: one command, carried out or refused.
//!
//! Guarantees: each is answered; an address that is another port's, or that the plan doesn't give,
//! is refused.

use super::{Outcome, PortNumber, Switch, price};
use crate::control::{self, Command};
use crate::error::Broken;
use crate::port::Sources;

impl<const RING: usize> Switch<RING> {
    /// Takes a command of the control queue.
    pub(super) fn control(&mut self, number: PortNumber) -> Result<Outcome, Broken> {
        let at = usize::from(number.0);
        let (Some(Some(port)), Some(queues)) = (self.ports.get_mut(at), self.queues.get_mut(at))
        else {
            return Ok(Outcome::default());
        };
        let Some(running) = &port.running else { return Ok(Outcome::default()) };
        let control = &mut queues.control;
        if !control.take(&running.window, &mut self.sent)? {
            return Ok(Outcome::default());
        }
        if self.sent.writable_len() == 0 {
            control.broken = Some(Broken::NoRoom);
            return Err(Broken::NoRoom);
        }
        let command = Command::read(&self.sent, running.accepted);
        let done = command.is_some_and(|command| self.carry_out(number, command));
        // There is a writable byte.
        let _ = self.sent.write(0, &[if done { control::OK } else { control::ERR }]);
        let head = self.sent.head();
        let Some(port) = self.port_mut(number) else { return Ok(Outcome::default()) };
        let counters = &mut port.statistics;
        *(if done { &mut counters.commands } else { &mut counters.refused }) += 1;
        let queues = self.queues.get_mut(at);
        if let Some(queue) = queues.and_then(|queues| queues.control.queue.as_mut()) {
            queue.complete(head, 1);
        }
        let charge = price(&self.sent);
        Ok(Outcome { charge, completed: 1, more: true, ..Outcome::default() })
    }

    /// Carries out a command, if it may be. An address is checked against the other ports' here.
    fn carry_out(&mut self, number: PortNumber, command: Command) -> bool {
        let owned = match &command {
            Command::Address(mac) => self.owner(*mac, number).is_some() || !mac.is_station(),
            _ => false,
        };
        let Some(port) = self.port_mut(number) else { return false };
        if let Command::Address(mac) = &command {
            let fixed = port.plan.sources == Sources::Planned;
            if owned || (fixed && *mac != port.config.parameters().mac) {
                return false;
            }
        }
        port.command(command)
    }
}
