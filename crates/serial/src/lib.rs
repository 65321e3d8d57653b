//! The host's 16550 (PC16550D data sheet), wherever its registers are.
//!
//! Guarantees: nothing waits for ever. A byte is sent or, when the transmitter is stuck, dropped: a
//! dead port costs one long wait and then output, not the machine. It can be used from any core at
//! any time, which a panic needs: two at once mix their bytes and do no other harm.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};

/// The eight registers of a port.
pub trait Registers {
    /// Reads a register, 0 to 7.
    fn read(&self, register: u8) -> u8;
    /// Writes a register, 0 to 7.
    fn write(&self, register: u8, value: u8);
}

const DATA: u8 = 0;
const DIVISOR_LOW: u8 = 0;
const DIVISOR_HIGH: u8 = 1;
const INTERRUPT_ENABLE: u8 = 1;
const FIFO_CONTROL: u8 = 2;
const LINE_CONTROL: u8 = 3;
const MODEM_CONTROL: u8 = 4;
const LINE_STATUS: u8 = 5;
const SCRATCH: u8 = 7;

const EIGHT_BITS: u8 = 0x03;
const DIVISOR_LATCH: u8 = 0x80;

const DATA_READY: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const ALL_SENT: u8 = 1 << 6;
/// What a register reads as where none is.
const NOTHING: u8 = 0xFF;

/// Polls before a transmitter counts as stuck; a byte takes 87 µs at 115200 baud and 1 ms at 9600,
/// and a poll more than 100 ns.
const PATIENCE: u32 = if cfg!(test) { 1_000 } else { 1_000_000 };

/// The clock of a PC's ports, in Hz.
pub const PC_CLOCK: u32 = 1_843_200;

/// A port.
pub struct Uart<R> {
    registers: R,
    /// The transmitter didn't become empty when it was waited for last.
    stuck: AtomicBool,
}

impl<R: Registers> Uart<R> {
    /// Of these registers; nothing is read or written.
    pub const fn new(registers: R) -> Self {
        Uart { registers, stuck: AtomicBool::new(false) }
    }

    /// Its registers.
    pub fn registers(&self) -> &R {
        &self.registers
    }

    /// Whether something answers.
    pub fn answers(&self) -> bool {
        self.registers.read(LINE_STATUS) != NOTHING
    }

    /// Whether something answers that keeps its scratch register, as every 16450 and 16550 does:
    /// for a place where nobody says that a port is.
    pub fn is_there(&self) -> bool {
        let keeps = |value| {
            self.registers.write(SCRATCH, value);
            self.registers.read(SCRATCH) == value
        };
        self.answers() && keeps(0x5A) && keeps(0xA5)
    }

    /// 8N1 at the rate that the divisor gives or, without one, at the rate it has; FIFOs on, no
    /// interrupts: received bytes are polled.
    pub fn init(&self, divisor: Option<u16>) {
        let write = |register, value| self.registers.write(register, value);
        write(LINE_CONTROL, EIGHT_BITS);
        write(INTERRUPT_ENABLE, 0);
        if let Some([low, high]) = divisor.map(u16::to_le_bytes) {
            write(LINE_CONTROL, EIGHT_BITS | DIVISOR_LATCH);
            write(DIVISOR_LOW, low);
            write(DIVISOR_HIGH, high);
            write(LINE_CONTROL, EIGHT_BITS);
        }
        write(FIFO_CONTROL, 0x07); // enable, clear both, trigger at one byte
        write(MODEM_CONTROL, 0x03); // DTR, RTS
    }

    /// Sends one byte; false if it was dropped.
    pub fn send(&self, byte: u8) -> bool {
        let ready = self.wait(TRANSMITTER_EMPTY);
        if ready {
            self.registers.write(DATA, byte);
        }
        ready
    }

    /// The next received byte, if there is one.
    pub fn receive(&self) -> Option<u8> {
        let status = self.registers.read(LINE_STATUS);
        (status != NOTHING && status & DATA_READY != 0).then(|| self.registers.read(DATA))
    }

    /// Returns when the last byte has left the shift register, or never will.
    pub fn drain(&self) {
        self.wait(ALL_SENT);
    }

    /// Waits for a bit of the line status: with patience, unless there was no use in it last time.
    fn wait(&self, bit: u8) -> bool {
        let polls = if self.stuck.load(Ordering::Relaxed) { 1 } else { PATIENCE };
        for _ in 0..polls {
            let status = self.registers.read(LINE_STATUS);
            if status == NOTHING {
                return false;
            }
            if status & bit != 0 {
                self.stuck.store(false, Ordering::Relaxed);
                return true;
            }
            core::hint::spin_loop();
        }
        self.stuck.store(true, Ordering::Relaxed);
        false
    }
}

/// The divisor for a rate; none if there is none within 3 %, which is what receivers bear.
pub fn divisor(clock: u32, baud: u32) -> Option<u16> {
    let baud = u64::from(baud) * 16;
    let divisor = (u64::from(clock) + baud / 2).checked_div(baud)?;
    let error = (divisor * baud).abs_diff(u64::from(clock));
    u16::try_from(divisor).ok().filter(|d| *d != 0 && error * 100 <= 3 * u64::from(clock))
}
