//! A guest's devices: on the bus, each in a file of its own.

pub mod assigned;
pub mod bus;
pub mod bus_map;
pub mod ioapic;
pub mod pci_bus;
pub mod power;
pub mod registers;
pub mod rtc;
pub mod uart;
pub mod virtio;

use alloc::boxed::Box;
use alloc::vec;

/// The emulated devices of every guest's PC, but for the PCI bus.
pub fn emulated() -> bus::Emulated {
    vec![
        Box::new(uart::Console::default()),
        Box::new(ioapic::IoapicRegisters),
        Box::new(rtc::Clock::new()),
        Box::new(power::PowerRegisters),
    ]
}
