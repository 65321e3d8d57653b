//! The bus of a guest's PC: accesses to I/O ports and to guest-physical addresses that aren't
//! memory are dispatched to devices by address.
//!
//! A device says in [`Device::claims`] what it answers and what an exit for that counts as; the bus
//! finds it ([`BusMap`](crate::vm::devices::bus_map::BusMap)). A new kind of device is a file with
//! that trait, and a line in [`devices::emulated`](crate::vm::devices::emulated).

use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Stop;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub use crate::vm::devices::bus_map::Claim;

/// A device of a guest's PC. The VM's lock is held in every call but `claims`.
pub trait Device: Send {
    /// What it answers: the same at every call.
    fn claims(&self) -> Vec<Claim>;

    /// The guest's read of a port that it claims.
    fn read_port(&mut self, _: &mut Board, _: &mut ExitContext, _port: u16, size: u8) -> u32 {
        virtual_pc::ports::unclaimed(size)
    }

    /// The guest's write of a port that it claims.
    fn write_port(
        &mut self,
        _: &mut Board,
        _: &mut ExitContext,
        _port: u16,
        _size: u8,
        _value: u32,
    ) -> Result<(), Stop> {
        Ok(())
    }

    /// The guest's load from an address that it claims; `None`: nothing is there.
    fn load(
        &mut self,
        _: &mut Board,
        _: &mut ExitContext,
        _address: u64,
        _size: u8,
    ) -> Option<u64> {
        None
    }

    /// The guest's store to an address that it claims; `None`: nothing is there.
    fn store(
        &mut self,
        _: &mut Board,
        _: &mut ExitContext,
        _address: u64,
        _size: u8,
        _value: u64,
    ) -> Option<Result<(), Stop>> {
        None
    }

    /// Input for the guest has arrived.
    fn input(&mut self, _: &mut Board, _: &mut ExitContext) {}

    /// As after power on.
    fn restart(&mut self) {}
}

/// The devices of a PC that aren't assigned, in the order of their places.
pub type Emulated = Vec<Box<dyn Device>>;
