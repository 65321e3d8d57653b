//! The guest's console: a UART at COM1, fed from and read by core 0.

use crate::console;
use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Stop;
use alloc::vec;
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::uart::{BASE, PORTS, Uart};

/// IOAPIC pin of the console.
const PIN: usize = 4;

/// The console.
#[derive(Default)]
pub struct Console {
    uart: Uart,
    /// A byte that the UART had no room for yet.
    waiting: Option<u8>,
}

impl Console {
    /// Turns an edge of the interrupt line into an interrupt. To be called after whatever may have
    /// moved the line.
    fn follow_line(&mut self, board: &mut Board, cx: &ExitContext) {
        if self.uart.take_edge() {
            board.pulse(cx.guest, PIN);
        }
    }

    /// Gives the UART what has arrived for it, as far as it has room.
    fn feed(&mut self, board: &mut Board, cx: &ExitContext) {
        while let Some(byte) = self.waiting.take().or_else(|| console::guest_input(cx.guest.index))
        {
            if !self.uart.push_input(byte) {
                self.waiting = Some(byte);
                break;
            }
        }
        self.follow_line(board, cx);
    }
}

impl Device for Console {
    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Ports(PORTS, Reason::ConsoleIo)]
    }

    fn read_port(&mut self, board: &mut Board, cx: &mut ExitContext, port: u16, _: u8) -> u32 {
        let value = self.uart.read((port - BASE) as u8);
        self.feed(board, cx);
        value.into()
    }

    fn write_port(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        port: u16,
        _: u8,
        value: u32,
    ) -> Result<(), Stop> {
        if let Some(byte) = self.uart.write((port - BASE) as u8, value as u8) {
            console::guest_output(cx.guest.index, &[byte]);
        }
        self.follow_line(board, cx);
        Ok(())
    }

    fn input(&mut self, board: &mut Board, cx: &mut ExitContext) {
        self.feed(board, cx);
    }

    fn restart(&mut self) {
        self.uart = Uart::default();
    }
}
