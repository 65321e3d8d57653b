//! The 16550 at COM1, by port. One core at a time may use it (core 0; a core
//! that panics takes it, interleaving whatever core 0 was sending).
//!
//! Guarantees: a byte is sent or, when the transmitter has been stuck for a long
//! time, dropped: a missing or dead UART costs output, not the machine.

use crate::cpu::port;
use core::fmt;

const COM1: u16 = 0x3F8;
const INTERRUPT_ENABLE: u16 = COM1 + 1;
const FIFO_CONTROL: u16 = COM1 + 2;
const LINE_CONTROL: u16 = COM1 + 3;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;

const DATA_READY: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const ALL_SENT: u8 = 1 << 6;

/// Polls before a stuck transmitter is given up; a byte takes 87 µs at 115200 baud.
const PATIENCE: u32 = 1_000_000;

/// 115200 baud, 8N1, FIFOs on, no interrupts: received bytes are polled.
pub fn init() {
    port::write8(INTERRUPT_ENABLE, 0);
    port::write8(LINE_CONTROL, 0x80); // divisor latch
    port::write8(COM1, 1);
    port::write8(COM1 + 1, 0);
    port::write8(LINE_CONTROL, 0x03);
    port::write8(FIFO_CONTROL, 0x07); // enable, clear both, trigger at one byte
    port::write8(MODEM_CONTROL, 0x03); // DTR, RTS
}

/// Sends one byte.
pub fn send(byte: u8) {
    wait(TRANSMITTER_EMPTY);
    port::write8(COM1, byte);
}

/// The next received byte, if there is one.
pub fn receive() -> Option<u8> {
    let status = port::read8(LINE_STATUS);
    // All ones: nothing decodes the port.
    (status != 0xFF && status & DATA_READY != 0).then(|| port::read8(COM1))
}

/// Returns when the last byte has left the shift register.
pub fn drain() {
    wait(ALL_SENT);
}

fn wait(bit: u8) {
    for _ in 0..PATIENCE {
        if port::read8(LINE_STATUS) & bit != 0 {
            return;
        }
        core::hint::spin_loop();
    }
}

/// Writes text outside any frame: early boot and panics.
pub fn raw(text: fmt::Arguments) {
    // Writing to the UART can't fail.
    let _ = fmt::write(&mut Raw, text);
}

struct Raw;

impl fmt::Write for Raw {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.bytes().for_each(send);
        Ok(())
    }
}
