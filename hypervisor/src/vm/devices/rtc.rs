//! The guest's CMOS clock.

use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Stop;
use alloc::vec;
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::rtc::{DATA, INDEX, PORTS, Rtc};

/// The time of day that the clock shows; nothing keeps the time across boots.
const TIME: u64 = 1_767_225_600;

/// The clock.
pub struct Clock(Rtc);

impl Clock {
    /// As at every start of a VM.
    pub fn new() -> Self {
        Clock(Rtc::new(TIME))
    }
}

impl Device for Clock {
    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Ports(PORTS, Reason::PortIo)]
    }

    fn read_port(&mut self, _: &mut Board, _: &mut ExitContext, port: u16, size: u8) -> u32 {
        match port {
            DATA => self.0.read_data().into(),
            _ => virtual_pc::ports::unclaimed(size),
        }
    }

    fn write_port(
        &mut self,
        _: &mut Board,
        _: &mut ExitContext,
        port: u16,
        _: u8,
        value: u32,
    ) -> Result<(), Stop> {
        if port == INDEX {
            self.0.write_index(value as u8);
        }
        Ok(())
    }
}
