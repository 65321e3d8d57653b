//! IA32_FEATURE_CONTROL (SDM vol. 3, 24.7): does firmware let VMX be used, and who locks it.

use thiserror::Error;

const LOCK: u64 = 1 << 0;
const OUTSIDE_SMX: u64 = 1 << 2;

/// What is to be done with the register before VMXON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureControl {
    /// Nothing.
    Ready,
    /// It has to be written with this value, which locks it: VMXON wants that.
    Write(u64),
}

/// Firmware locked VMX off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "VMX is locked off by the firmware (IA32_FEATURE_CONTROL, MSR 0x3A, is locked with bit 2 \
     clear): enable virtualisation in its setup"
)]
pub struct Locked;

impl FeatureControl {
    /// The register's number.
    pub const MSR: u32 = 0x3A;

    /// By what the register reads. It is one for each core: firmware may have left out some.
    pub fn of(value: u64) -> Result<FeatureControl, Locked> {
        match (value & LOCK != 0, value & OUTSIDE_SMX != 0) {
            (true, true) => Ok(FeatureControl::Ready),
            (true, false) => Err(Locked),
            (false, _) => Ok(FeatureControl::Write(value | LOCK | OUTSIDE_SMX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_decides_and_none_is_set_twice() {
        // What else is in it stays: SMX, SGX, local machine checks.
        for more in [0, 1 << 1, 0x6_0000, 0x10_0000] {
            assert_eq!(FeatureControl::of(more | 0b101), Ok(FeatureControl::Ready));
            assert_eq!(FeatureControl::of(more | 0b001), Err(Locked));
            for open in [0, 0b100] {
                let write = FeatureControl::of(more | open);
                assert_eq!(write, Ok(FeatureControl::Write(more | 0b101)));
            }
        }
        assert!(Locked.to_string().contains("0x3A"));
    }

    #[test]
    fn what_is_written_makes_it_ready() {
        let Ok(FeatureControl::Write(value)) = FeatureControl::of(0) else { unreachable!() };
        assert_eq!(FeatureControl::of(value), Ok(FeatureControl::Ready));
    }
}
