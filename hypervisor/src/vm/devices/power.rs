//! The ports by which a guest ends or resets its machine, and those of an interval timer that isn't
//! there.

use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device, Sizes};
use crate::vm::here::Here;
use crate::vm::stop::Stop;
use alloc::vec;
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::ports::route;
use virtual_pc::power::{self, PowerEvent};

/// The ports.
pub struct PowerRegisters;

impl Device for PowerRegisters {
    fn claims(&self) -> Vec<Claim> {
        let bytes = |ports| Claim::Ports(ports, Sizes::BYTE, Reason::PortIo);
        vec![
            bytes(0x40..=0x42),
            bytes(0x64..=0x64),
            bytes(0x600..=0x601),
            bytes(0x604..=0x604),
            bytes(0xCF9..=0xCF9),
            Claim::Ports(0xF4..=0xF4, Sizes::ALL, Reason::PortIo),
        ]
    }

    fn read_port(&mut self, _: &mut Board, _: &mut Here, port: u16, size: u8) -> u32 {
        power::read(route(port, size), size)
    }

    fn write_port(
        &mut self,
        _: &mut Board,
        _: &mut Here,
        port: u16,
        size: u8,
        value: u32,
    ) -> Result<(), Stop> {
        match power::write(route(port, size), value) {
            Some(PowerEvent::Off) => Err(Stop::PowerOff),
            Some(PowerEvent::Reset) => Err(Stop::Reset),
            Some(PowerEvent::DebugExit(code)) => Err(Stop::DebugExit(code)),
            None => Ok(()),
        }
    }
}
