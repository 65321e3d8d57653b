//! The registers by which a guest ends or restarts its machine.
//!
//! They hold no state: a write either is an event or does nothing, and all of
//! them read as zero, save the keyboard controller, which isn't there otherwise.

use crate::bios_data;
use crate::ports::{Answers, Ports, Sizes, unclaimed};

/// The guest's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// Entered S5: the VM is off.
    Off,
    /// Asked to be reset.
    Reset,
    /// Called a service of the firmware's, of which there is none.
    Service,
    /// A test ended itself with this code.
    DebugExit(u32),
}

/// ACPI 6.5, 4.8.3.7: SLP_EN.
const SLEEP_ENABLE: u32 = 1 << 5;
/// SLP_TYP of S5, as `\_S5` in the DSDT says.
const SLEEP_TYPE_S5: u32 = 5;
/// 0xCF9 bit 2, RST_CPU.
const RESET_CPU: u32 = 1 << 2;
/// 8042 command "pulse output bit 0", the reset line.
const PULSE_RESET: u32 = 0xFE;

/// Where a kernel jumps to, in real mode, to have the firmware reset the machine: what Linux does
/// on hardware-reduced ACPI without EFI.
pub const RESET_VECTOR: u64 = 0xF_FFF0;
/// The code there: mov dx, 0x604; mov al, 1; out dx, al; hlt; jmp to the hlt.
pub const RESET_CODE: [u8; 9] = [0xBA, 0x04, 0x06, 0xB0, 0x01, 0xEE, 0xF4, 0xEB, 0xFD];

/// Where each interrupt of real mode leads, the BIOS' services among them, until a kernel sets its
/// own: to [`SERVICE_AT`], as the table at 0 has it, offset before segment. A table of zeros would
/// have the CPU execute itself, without end.
pub const SERVICE_VECTOR: [u8; 4] = [SERVICE_OFFSET, 0, 0xC0, 0x9F];
/// How many there are.
pub const SERVICES: u64 = 256;
/// In the BIOS' data behind its first bytes, where no kernel puts its own.
pub const SERVICE_AT: u64 = bios_data::EXTENSION_AT + SERVICE_OFFSET as u64;
const SERVICE_OFFSET: u8 = 0x10;
/// The code there: mov dx, 0x604; mov al, 2; out dx, al; hlt; jmp to the hlt.
pub const SERVICE_CODE: [u8; 9] = [0xBA, 0x04, 0x06, 0xB0, 0x02, 0xEE, 0xF4, 0xEB, 0xFD];

/// One of these registers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Register {
    /// ACPI sleep control.
    SleepControl,
    /// ACPI sleep status.
    SleepStatus,
    /// The FADT's reset register; [`SERVICE_CODE`] has another value for it.
    Reset,
    /// The chipset's reset control.
    ResetControl,
    /// The keyboard controller's command port, of which only "reset" is there.
    KeyboardCommand,
    /// Ends the VM with a code, for tests.
    DebugExit,
    /// Counters of an interval timer that isn't there; they read zero. Ones would pass for a
    /// counter that is just starting, and Linux would wait for it to move.
    AbsentCounter,
}

/// Where they are.
const REGISTERS: [(Ports, Register); 7] = [
    (Ports::new(0x600..=0x600, Sizes::BYTE), Register::SleepControl),
    (Ports::new(0x601..=0x601, Sizes::BYTE), Register::SleepStatus),
    (Ports::new(0x604..=0x604, Sizes::BYTE), Register::Reset),
    (Ports::new(0xCF9..=0xCF9, Sizes::BYTE), Register::ResetControl),
    (
        Ports { ports: 0x64..=0x64, sizes: Sizes::BYTE, answers: Answers::Writes },
        Register::KeyboardCommand,
    ),
    (Ports::new(0xF4..=0xF4, Sizes::ALL), Register::DebugExit),
    (
        Ports { ports: 0x40..=0x42, sizes: Sizes::BYTE, answers: Answers::None },
        Register::AbsentCounter,
    ),
];

/// Their ports.
pub fn ports() -> impl Iterator<Item = Ports> {
    REGISTERS.into_iter().map(|(ports, _)| ports)
}

fn register(port: u16, size: u8) -> Option<Register> {
    REGISTERS.iter().find(|(ports, _)| ports.contain(port, size)).map(|(_, register)| *register)
}

/// A guest's write of `value`, which is of `size` bytes; `None` also where none of these ports is.
pub fn write(port: u16, size: u8, value: u32) -> Option<PowerEvent> {
    match register(port, size)? {
        Register::SleepControl if value & SLEEP_ENABLE != 0 && value >> 2 & 7 == SLEEP_TYPE_S5 => {
            Some(PowerEvent::Off)
        }
        Register::Reset if value == 1 => Some(PowerEvent::Reset),
        Register::Reset if value == 2 => Some(PowerEvent::Service),
        Register::ResetControl if value & RESET_CPU != 0 => Some(PowerEvent::Reset),
        Register::KeyboardCommand if value == PULSE_RESET => Some(PowerEvent::Reset),
        Register::DebugExit => Some(PowerEvent::DebugExit(value)),
        _ => None,
    }
}

/// A guest's read of `size` bytes.
pub fn read(port: u16, size: u8) -> u32 {
    match register(port, size) {
        None | Some(Register::KeyboardCommand | Register::DebugExit) => unclaimed(size),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firmware_resets_by_the_reset_register() {
        let [_, low, high, _, value, ..] = RESET_CODE;
        let port = u16::from_le_bytes([low, high]);
        assert_eq!(write(port, 1, value.into()), Some(PowerEvent::Reset));
    }

    #[test]
    fn a_service_that_is_called_ends_the_machine() {
        let [_, low, high, _, value, out, ..] = SERVICE_CODE;
        let port = u16::from_le_bytes([low, high]);
        assert_eq!(write(port, 1, value.into()), Some(PowerEvent::Service));
        assert_eq!(out, 0xEE);
        let [offset, above, low, high] = SERVICE_VECTOR;
        let segment = u64::from(u16::from_le_bytes([low, high]));
        let at = (segment << 4) + u64::from(u16::from_le_bytes([offset, above]));
        assert_eq!(at, SERVICE_AT);
        let first = bios_data::EXTENSION_AT + bios_data::EXTENSION.len() as u64;
        let end = bios_data::EXTENSION_AT + (u64::from(bios_data::EXTENSION[0]) << 10);
        assert!(at >= first && at + SERVICE_CODE.len() as u64 <= end);
        assert!(SERVICES * SERVICE_VECTOR.len() as u64 <= bios_data::AT);
    }

    #[test]
    fn only_s5_with_the_enable_bit_turns_off() {
        for value in 0..=0xFF {
            let off = value & 0x20 != 0 && value & 0x1C == 0x14;
            assert_eq!(write(0x600, 1, value), off.then_some(PowerEvent::Off));
        }
    }

    #[test]
    fn the_four_ways_to_reset_and_their_near_misses() {
        for (port, yes, no) in [(0x604, 1, 0), (0xCF9, 0x06, 0x02), (0x64, 0xFE, 0xFD)] {
            assert_eq!(write(port, 1, yes), Some(PowerEvent::Reset), "{port:#x}");
            assert_eq!(write(port, 1, no), None, "{port:#x}");
        }
        // Linux reads 0xCF9 first and keeps its other bits.
        assert_eq!(read(0xCF9, 1) & RESET_CPU, 0);
        assert_eq!(read(0x64, 1), 0xFF);
    }

    #[test]
    fn its_registers_hold_nothing() {
        for port in [0x600, 0x601, 0x604, 0xCF9, 0x40, 0x41, 0x42] {
            assert_eq!(read(port, 1), 0, "{port:#x}");
        }
        for (size, ones) in [(1, 0xFF), (2, 0xFFFF), (4, 0xFFFF_FFFF)] {
            assert_eq!(read(0xF4, size), ones);
        }
        for port in [0x40, 0x601, 0x80, 0x70] {
            assert_eq!(write(port, 1, 0xFF), None, "{port:#x}");
        }
    }

    #[test]
    fn a_test_ends_with_all_32_bits_of_its_code() {
        assert_eq!(write(0xF4, 4, 0xDEAD_BEEF), Some(PowerEvent::DebugExit(0xDEAD_BEEF)));
    }
}
