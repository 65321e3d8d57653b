//! Which emulated device an I/O port access belongs to.
//!
//! Guarantees that every (port, size) has exactly one answer. Byte-wide devices
//! claim byte accesses only; a wider access to them is unclaimed, not split.

/// First port of the console UART.
pub const UART_BASE: u16 = 0x3F8;

/// The register that a port access reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The UART's register at this offset (0 to 7).
    Uart(u8),
    /// 0x70: index of the CMOS register.
    RtcIndex,
    /// 0x71: the CMOS register chosen.
    RtcData,
    /// 0xCF8: the PCI configuration address; 32-bit accesses only.
    PciAddress,
    /// 0xCFC to 0xCFF: PCI configuration data at this byte offset (0 to 3).
    PciData(u8),
    /// 0x600: ACPI sleep control.
    SleepControl,
    /// 0x601: ACPI sleep status.
    SleepStatus,
    /// 0x604: the FADT's reset register.
    Reset,
    /// 0xCF9: the chipset's reset control; byte accesses only.
    ResetControl,
    /// 0x64: the keyboard controller's command port, of which only "reset" is there.
    KeyboardCommand,
    /// 0xF4: ends the VM with a code, for tests.
    DebugExit,
    /// 0x40 to 0x42: counters of an interval timer that isn't there; they read zero. Ones would
    /// pass for a counter that is just starting, and Linux would wait for it to move.
    AbsentCounter,
    /// 0x80: written by firmware to show how far it is, and by kernels to pass a microsecond.
    Delay,
    /// Nobody's: reads give [`unclaimed`], writes are ignored.
    Unclaimed,
}

impl Port {
    /// Something answers: a guest that reads it again and again, or writes, doesn't wait in vain.
    pub const fn answers(self, read: bool) -> bool {
        match self {
            Self::Unclaimed | Self::AbsentCounter => false,
            Self::KeyboardCommand => !read,
            _ => true,
        }
    }
}

/// Who answers an access of `size` bytes at `port`.
pub const fn route(port: u16, size: u8) -> Port {
    match (port, size) {
        (0x3F8..=0x3FF, 1) => Port::Uart((port - UART_BASE) as u8),
        (0x40..=0x42, 1) => Port::AbsentCounter,
        (0x70, 1) => Port::RtcIndex,
        (0x71, 1) => Port::RtcData,
        (0xCF8, 4) => Port::PciAddress,
        (0xCF9, 1) => Port::ResetControl,
        (0xCFC..=0xCFF, 1 | 2 | 4) => Port::PciData((port - 0xCFC) as u8),
        (0x600, 1) => Port::SleepControl,
        (0x601, 1) => Port::SleepStatus,
        (0x604, 1) => Port::Reset,
        (0x64, 1) => Port::KeyboardCommand,
        (0x80, 1) => Port::Delay,
        (0xF4, 1 | 2 | 4) => Port::DebugExit,
        _ => Port::Unclaimed,
    }
}

/// What a read of `size` bytes gives where nobody answers: all ones.
pub const fn unclaimed(size: u8) -> u32 {
    match size {
        1 => 0xFF,
        2 => 0xFFFF,
        _ => 0xFFFF_FFFF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_register_and_the_reset_control_overlap_by_size() {
        assert_eq!(route(0xCF8, 4), Port::PciAddress);
        assert_eq!(route(0xCF9, 1), Port::ResetControl);
        // Linux writes 1 to 0xCFB before it looks for mechanism 1.
        assert_eq!(route(0xCFB, 1), Port::Unclaimed);
        assert_eq!(route(0xCF9, 4), Port::Unclaimed);
    }

    #[test]
    fn every_port_and_size_is_answered_and_offsets_stay_in_range() {
        for port in 0..=u16::MAX {
            for size in 0..=u8::MAX {
                match route(port, size) {
                    Port::Uart(o) => assert!(size == 1 && o < 8 && port == 0x3F8 + u16::from(o)),
                    Port::PciData(o) => assert!(o < 4 && port == 0xCFC + u16::from(o)),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn each_port_is_where_a_pc_has_it() {
        let named = |port: u16, size: u8| match port {
            0x3F8..=0x3FF if size == 1 => Port::Uart(port as u8 & 7),
            0xCFC..=0xCFF if matches!(size, 1 | 2 | 4) => Port::PciData(port as u8 & 3),
            0xF4 if matches!(size, 1 | 2 | 4) => Port::DebugExit,
            0xCF8 if size == 4 => Port::PciAddress,
            _ if size != 1 => Port::Unclaimed,
            0x40..=0x42 => Port::AbsentCounter,
            0x64 => Port::KeyboardCommand,
            0x70 => Port::RtcIndex,
            0x71 => Port::RtcData,
            0x80 => Port::Delay,
            0x600 => Port::SleepControl,
            0x601 => Port::SleepStatus,
            0x604 => Port::Reset,
            0xCF9 => Port::ResetControl,
            _ => Port::Unclaimed,
        };
        for port in 0..=u16::MAX {
            for size in 0..=8 {
                assert_eq!(route(port, size), named(port, size), "{port:#x} {size}");
            }
        }
    }

    #[test]
    fn what_is_not_there_does_not_answer() {
        for (port, size, read, write) in [
            (0x3F8, 1, true, true),
            (0x3F8, 4, false, false),
            (0x20, 1, false, false),
            (0x40, 1, false, false),
            (0x60, 1, false, false),
            (0x64, 1, false, true),
            (0x80, 1, true, true),
            (0x80, 2, false, false),
            (0x604, 1, true, true),
            (0xCF8, 4, true, true),
            (0xFFFF, 1, false, false),
        ] {
            let port = route(port, size);
            assert_eq!((port.answers(true), port.answers(false)), (read, write), "{port:?}");
        }
    }

    #[test]
    fn nobody_reads_as_ones_of_the_size() {
        assert_eq!([unclaimed(1), unclaimed(2), unclaimed(4)], [0xFF, 0xFFFF, 0xFFFF_FFFF]);
    }
}
