//! The registers of the guest's IOAPIC. The board has the IOAPIC itself, since devices use it.

use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Stop;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use ledger::Reason;

const REGISTERS: Range<u64> = 0xFEC0_0000..0xFEC0_1000;

/// The registers.
pub struct IoapicRegisters;

impl Device for IoapicRegisters {
    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Memory(REGISTERS, Reason::Ioapic)]
    }

    fn load(&mut self, board: &mut Board, _: &mut ExitContext, address: u64, _: u8) -> Option<u64> {
        Some(board.read_ioapic((address - REGISTERS.start) as u32).into())
    }

    fn store(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        address: u64,
        _: u8,
        value: u64,
    ) -> Option<Result<(), Stop>> {
        board.write_ioapic(cx.guest, (address - REGISTERS.start) as u32, value as u32);
        Some(Ok(()))
    }
}
