//! The registers by which a guest ends or restarts its machine.
//!
//! They hold no state: a write either is an event or does nothing, and all of
//! them read as zero, save the keyboard controller, which isn't there otherwise.

use crate::ports::{Port, unclaimed};

/// What the guest asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// Entered S5: the VM is off.
    Off,
    /// Asked to be reset.
    Reset,
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
/// What stands there: mov dx, 0x604; mov al, 1; out dx, al; hlt; jmp to the hlt.
pub const RESET_CODE: [u8; 9] = [0xBA, 0x04, 0x06, 0xB0, 0x01, 0xEE, 0xF4, 0xEB, 0xFD];

/// A guest's write of `value` to `port`; `None` also for ports that aren't ours.
pub fn write(port: Port, value: u32) -> Option<PowerEvent> {
    match port {
        Port::SleepControl if value & SLEEP_ENABLE != 0 && value >> 2 & 7 == SLEEP_TYPE_S5 => {
            Some(PowerEvent::Off)
        }
        Port::Reset if value == 1 => Some(PowerEvent::Reset),
        Port::ResetControl if value & RESET_CPU != 0 => Some(PowerEvent::Reset),
        Port::KeyboardCommand if value == PULSE_RESET => Some(PowerEvent::Reset),
        Port::DebugExit => Some(PowerEvent::DebugExit(value)),
        _ => None,
    }
}

/// A guest's read of `size` bytes of `port`, one of this module's.
pub fn read(port: Port, size: u8) -> u32 {
    match port {
        Port::SleepControl | Port::SleepStatus | Port::Reset | Port::ResetControl => 0,
        Port::AbsentCounter => 0,
        _ => unclaimed(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::route;

    #[test]
    fn the_firmware_resets_by_the_reset_register() {
        let [_, low, high, _, value, ..] = RESET_CODE;
        let port = route(u16::from_le_bytes([low, high]), 1);
        assert_eq!(write(port, value.into()), Some(PowerEvent::Reset));
    }

    #[test]
    fn only_s5_with_the_enable_bit_turns_off() {
        for value in 0..=0xFF {
            let off = value & 0x20 != 0 && value & 0x1C == 0x14;
            assert_eq!(write(route(0x600, 1), value), off.then_some(PowerEvent::Off));
        }
    }

    #[test]
    fn the_four_ways_to_reset_and_their_near_misses() {
        for (port, yes, no) in [(0x604, 1, 0), (0xCF9, 0x06, 0x02), (0x64, 0xFE, 0xFD)] {
            assert_eq!(write(route(port, 1), yes), Some(PowerEvent::Reset), "{port:#x}");
            assert_eq!(write(route(port, 1), no), None, "{port:#x}");
        }
        // Linux reads 0xCF9 first and keeps its other bits.
        assert_eq!(read(route(0xCF9, 1), 1) & RESET_CPU, 0);
        assert_eq!(read(route(0x64, 1), 1), 0xFF);
    }

    #[test]
    fn its_registers_hold_nothing() {
        for port in [0x600, 0x601, 0x604, 0xCF9, 0x40, 0x41, 0x42] {
            assert_eq!(read(route(port, 1), 1), 0, "{port:#x}");
        }
        for (size, ones) in [(1, 0xFF), (2, 0xFFFF), (4, 0xFFFF_FFFF)] {
            assert_eq!(read(route(0xF4, size), size), ones);
        }
        for port in [0x40, 0x601, 0x80, 0x70] {
            assert_eq!(write(route(port, 1), 0xFF), None, "{port:#x}");
        }
    }

    #[test]
    fn a_test_ends_with_all_32_bits_of_its_code() {
        assert_eq!(write(route(0xF4, 4), 0xDEAD_BEEF), Some(PowerEvent::DebugExit(0xDEAD_BEEF)));
    }
}
