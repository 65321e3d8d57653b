//! The ports by which a guest ends or resets its machine, and those of an interval timer that isn't
//! there.

use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{Fault, Stop};
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::power::{self, PowerEvent};

/// The ports.
pub struct PowerRegisters;

impl Device for PowerRegisters {
    fn claims(&self) -> Vec<Claim> {
        power::ports().map(|ports| Claim::Ports(ports, Reason::PortIo)).collect()
    }

    fn read_port(&mut self, _: &mut Board, _: &mut ExitContext, port: u16, size: u8) -> u32 {
        power::read(port, size)
    }

    fn write_port(
        &mut self,
        _: &mut Board,
        _: &mut ExitContext,
        port: u16,
        size: u8,
        value: u32,
    ) -> Result<(), Stop> {
        match power::write(port, size, value) {
            Some(PowerEvent::Off) => Err(Stop::PowerOff),
            Some(PowerEvent::Reset) => Err(Stop::Reset),
            Some(PowerEvent::Service) => Err(Fault::Service.into()),
            Some(PowerEvent::DebugExit(code)) => Err(Stop::DebugExit(code)),
            None => Ok(()),
        }
    }
}
