//! I/O ports as the hypervisor serves them: every access goes to one device, and only those
//! writes that the guest's ACPI tables or a PC's custom name end the VM.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::ports::{Ports, unclaimed};
use virtual_pc::power::{self, PowerEvent};
use virtual_pc::{pci, rtc, uart};

#[derive(Arbitrary, Debug)]
struct Input {
    time: u64,
    accesses: Vec<(u16, u8, Option<u32>)>,
}

struct Machine {
    uart: uart::Uart,
    rtc: rtc::Rtc,
    bus: pci::Bus,
}

/// The devices, by their ports.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Uart,
    Rtc,
    Pci,
    Power,
}

/// Who has an access: at most one device.
fn owner(port: u16, size: u8) -> Option<Of> {
    let has = |ports: &Ports| ports.contain(port, size);
    let owners = [
        (has(&uart::PORTS), Of::Uart),
        (has(&rtc::PORTS), Of::Rtc),
        (pci::PORTS.iter().any(has), Of::Pci),
        (power::ports().any(|ports| has(&ports)), Of::Power),
    ];
    let mut owners = owners.into_iter().filter(|(has, _)| *has).map(|(_, of)| of);
    let owner = owners.next();
    assert!(owners.next().is_none(), "{port:#x} {size}");
    owner
}

impl Machine {
    fn read(&mut self, of: Option<Of>, port: u16, size: u8) -> u32 {
        match of {
            Some(Of::Uart) => self.uart.read((port - uart::BASE) as u8).into(),
            Some(Of::Rtc) if port == rtc::DATA => self.rtc.read_data().into(),
            Some(Of::Pci) if port == pci::ADDRESS => self.bus.read_address(),
            Some(Of::Pci) => {
                let access = self.bus.by_port((port - pci::DATA) as u8, size);
                access.map_or(unclaimed(size), |access| self.bus.read(access))
            }
            _ => power::read(port, size),
        }
    }

    fn write(&mut self, of: Option<Of>, port: u16, size: u8, value: u32) {
        match of {
            Some(Of::Uart) => _ = self.uart.write((port - uart::BASE) as u8, value as u8),
            Some(Of::Rtc) if port == rtc::INDEX => self.rtc.write_index(value as u8),
            Some(Of::Pci) if port == pci::ADDRESS => self.bus.write_address(value),
            Some(Of::Pci) => {
                let access = self.bus.by_port((port - pci::DATA) as u8, size);
                access.map(|access| self.bus.write(access, value));
            }
            _ => {}
        }
    }
}

/// The ways to end a VM, by number.
fn end(number: u16, size: u8, value: u32) -> Option<PowerEvent> {
    match (number, size) {
        (0x600, 1) if value & 0x3C == 0x34 => Some(PowerEvent::Off),
        (0x604, 1) if value == 1 => Some(PowerEvent::Reset),
        (0x604, 1) if value == 2 => Some(PowerEvent::Service),
        (0xCF9, 1) if value & 4 != 0 => Some(PowerEvent::Reset),
        (0x64, 1) if value == 0xFE => Some(PowerEvent::Reset),
        (0xF4, _) => Some(PowerEvent::DebugExit(value)),
        _ => None,
    }
}

fuzz_target!(|input: Input| {
    let (uart, bus) = (uart::Uart::new(), pci::Bus::new());
    let mut machine = Machine { uart, rtc: rtc::Rtc::new(input.time), bus };
    for (port, size, written) in input.accesses {
        let size = 1 << (size % 3);
        let of = owner(port, size);
        if let Some(value) = written {
            let value = value & unclaimed(size);
            let event = power::write(port, size, value);
            assert_eq!(event, end(port, size, value));
            assert!(event.is_none() || of == Some(Of::Power));
            machine.write(of, port, size, value);
        } else {
            let value = machine.read(of, port, size);
            assert_eq!(value & !unclaimed(size), 0, "{port:#x}");
            assert!(of.is_some() || value == unclaimed(size));
        }
    }
});
