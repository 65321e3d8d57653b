//! The host's serial port: COM1, or the one that [`choose`] was told of. One core at a time may use
//! it (core 0; a core that panics takes it, interleaving whatever core 0 was sending).
//!
//! Guarantees: as `serial` has it, nothing waits for ever. Without a port, output goes nowhere and
//! no input comes.

use crate::cpu::port;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use serial::{PC_CLOCK, Registers, Uart, divisor};
use spin::Once;

/// The rate of a port that firmware says nothing of.
pub const BAUD: u32 = 115_200;
const COM1: u16 = 0x3F8;

/// Where a port's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Eight I/O ports.
    Ports(u16),
    /// In memory.
    Memory(Mmio),
}

/// Registers in memory that is mapped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmio {
    address: u64,
    stride: u8,
    width: u8,
}

impl Mmio {
    /// Eight registers from `address` on, `stride` bytes apart, `width` bytes wide.
    ///
    /// # Safety
    /// They are a serial port's, aligned, and mapped as device registers for good.
    pub const unsafe fn new(address: u64, stride: u8, width: u8) -> Mmio {
        Mmio { address, stride, width }
    }

    fn at(&self, register: u8) -> u64 {
        self.address + u64::from(register) * u64::from(self.stride)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Port::Ports(base) => write!(f, "at port {base:#x}"),
            Port::Memory(m) => write!(f, "at {:#x}", m.address),
        }
    }
}

impl Registers for Port {
    fn read(&self, register: u8) -> u8 {
        match self {
            Port::Ports(base) => port::read8(base.wrapping_add(register.into())),
            // SAFETY: one of the registers that `Mmio::new` was told of.
            Port::Memory(m) => unsafe {
                match m.width {
                    4 => (m.at(register) as *const u32).read_volatile() as u8,
                    2 => (m.at(register) as *const u16).read_volatile() as u8,
                    _ => (m.at(register) as *const u8).read_volatile(),
                }
            },
        }
    }

    fn write(&self, register: u8, value: u8) {
        match self {
            Port::Ports(base) => port::write8(base.wrapping_add(register.into()), value),
            // SAFETY: as in `read`; a 16550 doesn't master memory.
            Port::Memory(m) => unsafe {
                match m.width {
                    4 => (m.at(register) as *mut u32).write_volatile(value.into()),
                    2 => (m.at(register) as *mut u16).write_volatile(value.into()),
                    _ => (m.at(register) as *mut u8).write_volatile(value),
                }
            },
        }
    }
}

static FIRST: Uart<Port> = Uart::new(Port::Ports(COM1));
static FIRST_IS_THERE: AtomicBool = AtomicBool::new(false);
static CHOSEN: Once<Uart<Port>> = Once::new();

/// Uses COM1, if it is there.
pub fn init() {
    if FIRST.is_there() {
        FIRST.init(divisor(PC_CLOCK, BAUD));
        FIRST_IS_THERE.store(true, Ordering::Relaxed);
    }
}

/// Uses another port from now on, once; false if it doesn't answer.
pub fn choose(port: Port, divisor: Option<u16>) -> bool {
    let uart = Uart::new(port);
    let answers = uart.answers();
    if answers {
        uart.init(divisor);
        CHOSEN.call_once(|| uart);
    }
    answers
}

fn current() -> Option<&'static Uart<Port>> {
    CHOSEN.get().or(FIRST_IS_THERE.load(Ordering::Relaxed).then_some(&FIRST))
}

/// The port in use.
pub fn port() -> Option<Port> {
    current().map(|uart| *uart.registers())
}

/// Sends one byte.
pub fn send(byte: u8) {
    if let Some(uart) = current() {
        uart.send(byte);
    }
}

/// The next received byte, if there is one.
pub fn receive() -> Option<u8> {
    current()?.receive()
}

/// Returns when the last byte has left the shift register.
pub fn drain() {
    if let Some(uart) = current() {
        uart.drain();
    }
}
