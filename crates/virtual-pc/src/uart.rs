//! The console: a 16550A whose transmitter is always ready.
//!
//! Guarantees what drivers probe and rely on (National PC16550D data sheet): 16
//! bytes of receive FIFO, loopback, modem lines, interrupt priorities, and the
//! transmitter-empty interrupt raised both when a byte has left and when it is
//! enabled on an empty transmitter. No time passes inside: a byte leaves at once,
//! and received bytes below the trigger level count as timed out at once. Baud
//! rate, word length, parity and break are stored, not acted upon.

use crate::ports::{Ports, Sizes};

/// Its first port.
pub const BASE: u16 = 0x3F8;
/// Its ports: one for each register.
pub const PORTS: Ports = Ports::new(BASE..=BASE + 7, Sizes::BYTE);

const DATA: u8 = 0;
const INTERRUPT_ENABLE: u8 = 1;
const INTERRUPT_IDENTIFICATION: u8 = 2;
const FIFO_CONTROL: u8 = 2;
const LINE_CONTROL: u8 = 3;
const MODEM_CONTROL: u8 = 4;
const LINE_STATUS: u8 = 5;
const MODEM_STATUS: u8 = 6;
const SCRATCH: u8 = 7;

const IER_RECEIVED: u8 = 1 << 0;
const IER_TRANSMITTER_EMPTY: u8 = 1 << 1;
const IER_LINE_STATUS: u8 = 1 << 2;
const IER_MODEM_STATUS: u8 = 1 << 3;

const IIR_NONE: u8 = 0x1;
const IIR_MODEM_STATUS: u8 = 0x0;
const IIR_TRANSMITTER_EMPTY: u8 = 0x2;
const IIR_RECEIVED: u8 = 0x4;
const IIR_LINE_STATUS: u8 = 0x6;
const IIR_TIMEOUT: u8 = 0xC;
const IIR_FIFOS: u8 = 0xC0;

const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVER: u8 = 1 << 1;

const LCR_DIVISOR_LATCH: u8 = 1 << 7;

const MCR_DTR: u8 = 1 << 0;
const MCR_RTS: u8 = 1 << 1;
const MCR_OUT1: u8 = 1 << 2;
const MCR_OUT2: u8 = 1 << 3;
const MCR_LOOP: u8 = 1 << 4;

const LSR_DATA_READY: u8 = 1 << 0;
const LSR_OVERRUN: u8 = 1 << 1;
const LSR_TRANSMITTER_EMPTY: u8 = 1 << 5 | 1 << 6;

const MSR_CTS: u8 = 1 << 4;
const MSR_DSR: u8 = 1 << 5;
const MSR_RI: u8 = 1 << 6;
const MSR_DCD: u8 = 1 << 7;

const FIFO_SIZE: usize = 16;

/// One 16550A.
#[derive(Clone, Debug, Default)]
pub struct Uart {
    interrupt_enable: u8,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: [u8; 2],
    /// MSR bits 3:0, what changed since MSR was last read.
    modem_changes: u8,
    overrun: bool,
    fifos: bool,
    /// Bytes in the receiver from which on it counts as full.
    trigger: u8,
    received: [u8; FIFO_SIZE],
    first: u8,
    count: u8,
    /// The transmitter-empty interrupt is due, whether enabled or not.
    transmitter_empty: bool,
    line: bool,
    edge: bool,
}

impl Uart {
    /// A UART after reset, its far end connected and ready.
    pub fn new() -> Self {
        Uart { trigger: 1, ..Self::default() }
    }

    /// The guest reads the register at `offset`; offsets beyond 7 read as ones.
    pub fn read(&mut self, offset: u8) -> u8 {
        let value = match offset {
            DATA if self.divisor_latch() => self.divisor[0],
            INTERRUPT_ENABLE if self.divisor_latch() => self.divisor[1],
            DATA => self.pop(),
            INTERRUPT_ENABLE => self.interrupt_enable,
            INTERRUPT_IDENTIFICATION => {
                let source = self.source();
                if source == IIR_TRANSMITTER_EMPTY {
                    self.transmitter_empty = false;
                }
                source | if self.fifos { IIR_FIFOS } else { 0 }
            }
            LINE_CONTROL => self.line_control,
            MODEM_CONTROL => self.modem_control,
            LINE_STATUS => {
                let ready = if self.count > 0 { LSR_DATA_READY } else { 0 };
                let overrun = if self.overrun { LSR_OVERRUN } else { 0 };
                self.overrun = false;
                LSR_TRANSMITTER_EMPTY | ready | overrun
            }
            MODEM_STATUS => {
                let value = self.modem_lines() | self.modem_changes;
                self.modem_changes = 0;
                value
            }
            SCRATCH => self.scratch,
            _ => 0xFF,
        };
        self.update_line();
        value
    }

    /// The guest writes the register at `offset`. Gives the byte, if any, that
    /// left on the wire.
    pub fn write(&mut self, offset: u8, value: u8) -> Option<u8> {
        let mut sent = None;
        match offset {
            DATA if self.divisor_latch() => self.divisor[0] = value,
            INTERRUPT_ENABLE if self.divisor_latch() => self.divisor[1] = value,
            DATA => sent = self.transmit(value),
            INTERRUPT_ENABLE => {
                let enabled = value & !self.interrupt_enable & IER_TRANSMITTER_EMPTY != 0;
                self.transmitter_empty |= enabled;
                self.interrupt_enable = value & 0xF;
            }
            FIFO_CONTROL => self.control_fifos(value),
            LINE_CONTROL => self.line_control = value,
            MODEM_CONTROL => {
                let before = self.modem_lines();
                self.modem_control = value & 0x1F;
                let after = self.modem_lines();
                // Bit 2 is the trailing edge of RI, the others any change.
                let any = (before ^ after) & !MSR_RI;
                self.modem_changes |= (any | before & !after & MSR_RI) >> 4;
            }
            SCRATCH => self.scratch = value,
            _ => {}
        }
        self.update_line();
        sent
    }

    /// A byte arrives from the far end. False when it can't be taken now: offer
    /// it again later, nothing is lost.
    pub fn push_input(&mut self, byte: u8) -> bool {
        let taken = self.modem_control & MCR_LOOP == 0 && self.push(byte);
        self.update_line();
        taken
    }

    /// The level of the interrupt line. On a PC the OUT2 pin gates it, and
    /// loopback disconnects OUT2.
    pub fn interrupt(&self) -> bool {
        self.source() != IIR_NONE && self.modem_control & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2
    }

    /// True once for each rise of the interrupt line since the last call, several
    /// rises counting as one, as an edge-triggered input would latch them.
    pub fn take_edge(&mut self) -> bool {
        core::mem::take(&mut self.edge)
    }

    fn divisor_latch(&self) -> bool {
        self.line_control & LCR_DIVISOR_LATCH != 0
    }

    /// The pending source of highest priority, as IIR bits 3:0 (data sheet, table 4).
    fn source(&self) -> u8 {
        let enabled = |bit| self.interrupt_enable & bit != 0;
        if enabled(IER_LINE_STATUS) && self.overrun {
            IIR_LINE_STATUS
        } else if enabled(IER_RECEIVED) && self.count > 0 {
            if self.count >= self.trigger { IIR_RECEIVED } else { IIR_TIMEOUT }
        } else if enabled(IER_TRANSMITTER_EMPTY) && self.transmitter_empty {
            IIR_TRANSMITTER_EMPTY
        } else if enabled(IER_MODEM_STATUS) && self.modem_changes != 0 {
            IIR_MODEM_STATUS
        } else {
            IIR_NONE
        }
    }

    fn update_line(&mut self) {
        let line = self.interrupt();
        self.edge |= line && !self.line;
        self.line = line;
    }

    fn transmit(&mut self, byte: u8) -> Option<u8> {
        // The holding register is full for no time: the line falls and rises again.
        self.transmitter_empty = false;
        self.update_line();
        self.transmitter_empty = true;
        if self.modem_control & MCR_LOOP == 0 {
            return Some(byte);
        }
        self.overrun |= !self.push(byte);
        None
    }

    fn control_fifos(&mut self, value: u8) {
        let fifos = value & FCR_ENABLE != 0;
        if fifos != self.fifos || value & FCR_CLEAR_RECEIVER != 0 {
            self.count = 0;
        }
        self.fifos = fifos;
        self.trigger = match (fifos, value >> 6) {
            (false, _) | (true, 0) => 1,
            (true, 1) => 4,
            (true, 2) => 8,
            (true, _) => 14,
        };
    }

    /// MSR bits 7:4. Outside loopback the far end always is there and ready.
    fn modem_lines(&self) -> u8 {
        if self.modem_control & MCR_LOOP == 0 {
            return MSR_CTS | MSR_DSR | MSR_DCD;
        }
        [(MCR_RTS, MSR_CTS), (MCR_DTR, MSR_DSR), (MCR_OUT1, MSR_RI), (MCR_OUT2, MSR_DCD)]
            .iter()
            .filter(|(output, _)| self.modem_control & output != 0)
            .fold(0, |lines, (_, input)| lines | input)
    }

    fn push(&mut self, byte: u8) -> bool {
        let room = if self.fifos { FIFO_SIZE } else { 1 };
        if usize::from(self.count) >= room {
            return false;
        }
        self.received[usize::from(self.first + self.count) % FIFO_SIZE] = byte;
        self.count += 1;
        true
    }

    fn pop(&mut self) -> u8 {
        if self.count == 0 {
            return 0;
        }
        let byte = self.received[usize::from(self.first) % FIFO_SIZE];
        self.first = (self.first + 1) % FIFO_SIZE as u8;
        self.count -= 1;
        byte
    }
}

#[cfg(test)]
mod tests;
