//! I/O ports as the hypervisor serves them: every access goes to one device, and only those
//! writes that the guest's ACPI tables or a PC's custom name end the VM.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::ports::{Port, UART_BASE, route, unclaimed};
use virtual_pc::power::{self, PowerEvent};
use virtual_pc::{pci::Bus, rtc::Rtc, uart::Uart};

#[derive(Arbitrary, Debug)]
struct Input {
    time: u64,
    accesses: Vec<(u16, u8, Option<u32>)>,
}

struct Machine {
    uart: Uart,
    rtc: Rtc,
    bus: Bus,
}

impl Machine {
    fn read(&mut self, port: Port, size: u8) -> u32 {
        match port {
            Port::Uart(offset) => self.uart.read(offset).into(),
            Port::RtcData => self.rtc.read_data().into(),
            Port::PciAddress => self.bus.read_address(),
            Port::PciData(offset) => self.bus.read_data(offset, size),
            _ => power::read(port, size),
        }
    }

    fn write(&mut self, port: Port, size: u8, value: u32) {
        match port {
            Port::Uart(offset) => _ = self.uart.write(offset, value as u8),
            Port::RtcIndex => self.rtc.write_index(value as u8),
            Port::PciAddress => self.bus.write_address(value),
            Port::PciData(offset) => _ = self.bus.write_data(offset, size, value),
            _ => {}
        }
    }
}

/// The ways to end a VM, by number.
fn end(number: u16, size: u8, value: u32) -> Option<PowerEvent> {
    match (number, size) {
        (0x600, 1) if value & 0x3C == 0x34 => Some(PowerEvent::Off),
        (0x604, 1) if value == 1 => Some(PowerEvent::Reset),
        (0xCF9, 1) if value & 4 != 0 => Some(PowerEvent::Reset),
        (0x64, 1) if value == 0xFE => Some(PowerEvent::Reset),
        (0xF4, _) => Some(PowerEvent::DebugExit(value)),
        _ => None,
    }
}

fuzz_target!(|input: Input| {
    let mut machine = Machine { uart: Uart::new(), rtc: Rtc::new(input.time), bus: Bus::new() };
    for (number, size, written) in input.accesses {
        let size = 1 << (size % 3);
        let port = route(number, size);
        match port {
            Port::Uart(offset) => assert!(size == 1 && number == UART_BASE + u16::from(offset)),
            Port::PciData(offset) => assert_eq!(number, 0xCFC + u16::from(offset)),
            _ => {}
        }
        if let Some(value) = written {
            let value = value & unclaimed(size);
            assert_eq!(power::write(port, value), end(number, size, value));
            machine.write(port, size, value);
        } else {
            let value = machine.read(port, size);
            assert_eq!(value & !unclaimed(size), 0, "{number:#x}");
            assert!(port != Port::Unclaimed || value == unclaimed(size));
        }
    }
});
