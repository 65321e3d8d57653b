//! Memory type range registers: stored for the guest, acted upon by nobody.
//!
//! Guarantees valid contents (SDM vol. 3, 12.11; APM vol. 2, 7.7): a type or
//! reserved bit that hardware refuses gets #GP here too. Firmware's state: on, all
//! memory write-back, VGA uncached. The memory types that take effect are the
//! guest's PAT and the nested page tables', not these.

use crate::msr::MsrResult;

const CAPABILITIES: u32 = 0xFE;
const VARIABLE_FIRST: u32 = 0x200;
const VARIABLE_LAST: u32 = VARIABLE_FIRST + 2 * VARIABLE as u32 - 1;
const DEFAULT_TYPE: u32 = 0x2FF;

/// Pairs of variable range registers.
const VARIABLE: usize = 8;
/// The eleven fixed range registers, in order of address.
const FIXED: [u32; 11] =
    [0x250, 0x258, 0x259, 0x268, 0x269, 0x26A, 0x26B, 0x26C, 0x26D, 0x26E, 0x26F];

/// Fixed ranges and write-combining are there.
const CAPABILITIES_VALUE: u64 = VARIABLE as u64 | 1 << 8 | 1 << 10;
const FIXED_ENABLE: u64 = 1 << 10;
const ENABLE: u64 = 1 << 11;
const MASK_VALID: u64 = 1 << 11;
const WRITE_BACK: u64 = 6;
/// Eight ranges of one type.
const ALL_WRITE_BACK: u64 = 0x0606_0606_0606_0606;
/// 0xA0000 to 0xBFFFF.
const VGA: usize = 2;

/// One vCPU's registers.
#[derive(Clone, Debug)]
pub struct Mtrrs {
    reserved: u64,
    default_type: u64,
    fixed: [u64; FIXED.len()],
    variable: [u64; 2 * VARIABLE],
}

/// UC, WC, WT, WP, WB.
const fn is_type(value: u64) -> bool {
    matches!(value, 0 | 1 | 4 | 5 | 6)
}

impl Mtrrs {
    /// As firmware leaves them, for this many physical address bits.
    pub fn new(physical_bits: u8) -> Self {
        let mut fixed = [ALL_WRITE_BACK; FIXED.len()];
        fixed[VGA] = 0;
        Mtrrs {
            reserved: u64::MAX.checked_shl(physical_bits.into()).unwrap_or(0),
            default_type: ENABLE | FIXED_ENABLE | WRITE_BACK,
            fixed,
            variable: [0; 2 * VARIABLE],
        }
    }

    /// RDMSR; `None` when the register isn't one of these.
    pub fn read(&self, msr: u32) -> Option<MsrResult> {
        let value = match msr {
            CAPABILITIES => CAPABILITIES_VALUE,
            DEFAULT_TYPE => self.default_type,
            VARIABLE_FIRST..=VARIABLE_LAST => {
                *self.variable.get((msr - VARIABLE_FIRST) as usize)?
            }
            _ => *self.fixed.get(fixed_index(msr)?)?,
        };
        Some(MsrResult::Value(value))
    }

    /// WRMSR; `None` when the register isn't one of these.
    pub fn write(&mut self, msr: u32, value: u64) -> Option<MsrResult> {
        let (slot, valid) = match msr {
            CAPABILITIES => return Some(MsrResult::GeneralProtection),
            DEFAULT_TYPE => {
                let known = value & !(ENABLE | FIXED_ENABLE | 0xFF) == 0;
                (&mut self.default_type, known && is_type(value & 0xFF))
            }
            VARIABLE_FIRST..=VARIABLE_LAST => {
                let known = value & self.reserved == 0;
                let valid = if msr.is_multiple_of(2) {
                    value & 0xF00 == 0 && is_type(value & 0xFF)
                } else {
                    value & (MASK_VALID - 1) == 0
                };
                (self.variable.get_mut((msr - VARIABLE_FIRST) as usize)?, known && valid)
            }
            _ => {
                let valid = value.to_le_bytes().iter().all(|t| is_type((*t).into()));
                (self.fixed.get_mut(fixed_index(msr)?)?, valid)
            }
        };
        if !valid {
            return Some(MsrResult::GeneralProtection);
        }
        *slot = value;
        Some(MsrResult::Ignore)
    }
}

fn fixed_index(msr: u32) -> Option<usize> {
    FIXED.iter().position(|fixed| *fixed == msr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn firmware_left_them_on_and_write_back() {
        let m = Mtrrs::new(40);
        assert_eq!(m.read(0xFE), Some(MsrResult::Value(0x508)));
        assert_eq!(m.read(0x2FF), Some(MsrResult::Value(0xC06)));
        assert_eq!(m.read(0x259), Some(MsrResult::Value(0)));
        assert_eq!(m.read(0x250), Some(MsrResult::Value(ALL_WRITE_BACK)));
        for other in [0xFD, 0x1FF, 0x210, 0x251, 0x25A, 0x277, 0x300] {
            assert_eq!(m.read(other), None, "{other:#x}");
            assert_eq!(m.clone().write(other, 0), None, "{other:#x}");
        }
    }

    #[test]
    fn what_hardware_refuses_is_refused() {
        let mut m = Mtrrs::new(40);
        for (msr, value) in [
            (0xFE, 0x508),
            (0x2FF, 2),
            (0x2FF, 1 << 9),
            (0x2FF, 1 << 12),
            (0x200, 7),
            (0x200, 0x106),
            (0x200, 1 << 40),
            (0x201, 0x400),
            (0x201, 1 << 63),
            (0x250, 0x0200_0000_0000_0000),
        ] {
            assert_eq!(m.write(msr, value), Some(MsrResult::GeneralProtection), "{msr:#x}");
        }
        for bit in (8..64).filter(|bit| ![10, 11].contains(bit)) {
            let value = 6 | 1 << bit;
            assert_eq!(m.write(0x2FF, value), Some(MsrResult::GeneralProtection), "{value:#x}");
        }
        assert_eq!(m.write(0x2FF, 0x402), Some(MsrResult::GeneralProtection), "no such type");
        assert_eq!(m.read(0x2FF), Some(MsrResult::Value(0xC06)));
        for value in [0x806, 0x400, 0xC04, 1, 0xC06] {
            assert_eq!(m.write(0x2FF, value), Some(MsrResult::Ignore), "{value:#x}");
            assert_eq!(m.read(0x2FF), Some(MsrResult::Value(value)));
        }
        assert_eq!(m.write(0x200, 0xC000_0000), Some(MsrResult::Ignore));
        assert_eq!(m.write(0x201, 0xFF_C000_0800), Some(MsrResult::Ignore));
        assert_eq!(m.read(0x201), Some(MsrResult::Value(0xFF_C000_0800)));
    }

    #[test]
    fn each_register_keeps_its_own_value() {
        let mut m = Mtrrs::new(40);
        let types = [0_u64, 1, 4, 5, 6];
        let variable = (0x200..0x210_u32).map(|msr| {
            let low = if msr % 2 == 0 { 6 } else { 0x800 };
            (msr, u64::from(msr) << 12 | low)
        });
        let fixed = (0..11).map(|i| (FIXED[i], types[i % 5] << 8 | types[i / 5] << 56));
        let all: Vec<_> = variable.chain(fixed).chain([(0x2FF, 0xC01)]).collect();
        for (msr, value) in &all {
            assert_eq!(m.write(*msr, *value), Some(MsrResult::Ignore), "{msr:#x}");
        }
        for (msr, value) in all {
            assert_eq!(m.read(msr), Some(MsrResult::Value(value)), "{msr:#x}");
        }
    }

    /// SDM vol. 3, table 12-8.
    #[test]
    fn the_types_are_the_five_that_there_are() {
        for kind in 0..=0xFF {
            let taken = Some(match kind {
                0 | 1 | 4 | 5 | 6 => MsrResult::Ignore,
                _ => MsrResult::GeneralProtection,
            });
            let write = |msr, value| Mtrrs::new(40).write(msr, value);
            assert_eq!((write(0x200, kind), write(0x2FF, kind)), (taken, taken), "{kind}");
            for range in 0..8 {
                assert_eq!(write(0x26F, kind << (8 * range)), taken, "{kind} in {range}");
            }
        }
    }

    proptest! {
        #[test]
        fn an_accepted_write_reads_back_and_a_refused_one_changes_nothing(
            msr in 0x1F0u32..0x310, value: u64, small in 0u64..0x1000, bits: u8,
        ) {
            for value in [value, small] {
                let mut m = Mtrrs::new(bits);
                let before = m.read(msr);
                match m.write(msr, value) {
                    Some(MsrResult::Ignore) => prop_assert_eq!(m.read(msr), Some(MsrResult::Value(value))),
                    _ => prop_assert_eq!(m.read(msr), before),
                }
            }
        }
    }
}
