//! What a processor takes for CR0 and the debug controls (APM vol. 2, 3.1.1 and 13.1.1; SDM vol. 3,
//! 2.5 and 17.2), for emulated machines that take more.
//!
//! Guarantees: a value that is taken leaves a state that VMRUN enters. CR4 isn't here: what is
//! reserved in it is the CPU's own to say.

use crate::msr::{EFER_LMA, EFER_LME};

const PE: u64 = 1 << 0;
const ET: u64 = 1 << 4;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
/// CR0: paging.
pub const CR0_PG: u64 = 1 << 31;
/// What there is in CR0: PE, MP, EM, TS, ET, NE, WP, AM, NW, CD, PG. The rest of the lower half is
/// ignored.
const DEFINED: u64 = 0xE005_003F;
const PAE: u64 = 1 << 5;
const PCIDE: u64 = 1 << 17;
/// PE, MP, EM, TS: what LMSW writes.
const MACHINE_STATUS: u64 = 0xF;

/// The other registers that decide whether CR0 takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// CR0 as it is.
    pub cr0: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
    /// The code segment is one of 64 bits (CS.L).
    pub long_code: bool,
}

/// CR0 after MOV to CR0, or nothing: #GP.
pub const fn write_cr0(state: State, value: u64) -> Option<u64> {
    let (paging, long) = (value & CR0_PG != 0, state.efer & EFER_LME != 0);
    let begins = paging && state.cr0 & CR0_PG == 0;
    let refused = value >> 32 != 0
        || paging && value & PE == 0
        || value & NW != 0 && value & CD == 0
        || begins && long && (state.cr4 & PAE == 0 || state.long_code)
        || !paging && (state.cr4 & PCIDE != 0 || state.efer & EFER_LMA != 0 && state.long_code);
    if refused { None } else { Some(value & DEFINED | ET) }
}

/// CR0 after LMSW, which sets PE but never clears it.
pub const fn load_machine_status(cr0: u64, word: u16) -> u64 {
    cr0 & !(MACHINE_STATUS & !PE) | word as u64 & MACHINE_STATUS
}

/// Do DR6 and DR7 take this value, or is it #GP?
pub const fn debug_control_taken(value: u64) -> bool {
    value >> 32 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: State =
        State { cr0: CR0_PG | PE | ET, cr4: PAE, efer: EFER_LME | EFER_LMA, long_code: true };
    const REAL: State = State { cr0: ET, cr4: 0, efer: 0, long_code: false };

    #[test]
    fn long_mode_is_entered_and_left_as_the_manual_says() {
        let protected = State { cr0: PE | ET, cr4: PAE, efer: EFER_LME, long_code: false };
        let on = CR0_PG | PE | ET;
        assert_eq!(write_cr0(protected, CR0_PG | PE), Some(on));
        assert_eq!(write_cr0(State { cr4: 0, ..protected }, on), None, "without PAE");
        assert_eq!(write_cr0(State { long_code: true, ..protected }, on), None, "in 64-bit code");
        assert_eq!(write_cr0(LONG, PE), None, "paging off in 64-bit code");
        assert_eq!(write_cr0(State { long_code: false, ..LONG }, PE), Some(PE | ET));
        let numbered = State { cr4: PAE | PCIDE, long_code: false, ..LONG };
        assert_eq!(write_cr0(numbered, PE), None, "PCIDs are long mode's");
        assert_eq!(write_cr0(numbered, on), Some(on));
        assert_eq!(write_cr0(REAL, PE), Some(PE | ET));
        assert_eq!(write_cr0(REAL, CR0_PG), None, "paging without protection");
        // Paging of 32 bits needs no PAE.
        let legacy = State { cr4: 0, efer: 0, ..protected };
        assert_eq!(write_cr0(legacy, on), Some(on));
        // CS.L means nothing outside long mode, and ET is there whether it is written or not.
        for efer in [0, EFER_LME] {
            let state = State { efer, long_code: true, ..REAL };
            assert_eq!(write_cr0(state, PE), Some(PE | ET), "{efer:#x}");
        }
        assert_eq!(write_cr0(REAL, PE | ET), Some(PE | ET));
    }

    #[test]
    fn reserved_bits_are_refused_above_and_ignored_below() {
        for bit in 32..64 {
            assert_eq!(write_cr0(REAL, 1 << bit), None);
        }
        assert_eq!(write_cr0(REAL, 1 << 17 | 0xFFC0), Some(ET));
        assert_eq!((write_cr0(REAL, NW), write_cr0(REAL, NW | CD)), (None, Some(NW | CD | ET)));
    }

    #[test]
    fn debug_controls_have_32_bits() {
        for (value, taken) in
            [(0, true), (1, true), (0xFFFF_FFFF, true), (1 << 32, false), (1 << 63, false)]
        {
            assert_eq!(debug_control_taken(value), taken, "{value:#x}");
        }
    }

    #[test]
    fn lmsw_never_leaves_protected_mode() {
        assert_eq!(load_machine_status(CR0_PG | PE | ET, 0xFFF0), CR0_PG | PE | ET);
        assert_eq!(load_machine_status(ET, 0xF), ET | 0xF);
        assert_eq!(load_machine_status(ET | 0xE, 1), ET | PE);
    }

    proptest! {
        /// The checks of VMRUN (APM vol. 2, 15.5.1).
        #[test]
        fn what_is_taken_can_be_entered(value: u64, cr0: u32, pae: bool, lme: bool, long_code: bool) {
            let cr4 = if pae { PAE } else { 0 };
            let active = lme && u64::from(cr0) & CR0_PG != 0;
            let efer = if lme { EFER_LME } else { 0 } | if active { EFER_LMA } else { 0 };
            let state = State { cr0: cr0.into(), cr4, efer, long_code };
            for value in [value, value & 0xFFFF_FFFF] {
                let Some(taken) = write_cr0(state, value) else { continue };
                prop_assert!(taken >> 32 == 0 && (taken & NW == 0 || taken & CD != 0));
                prop_assert!(taken & CR0_PG == 0 || taken & PE != 0);
                if !active && lme && taken & CR0_PG != 0 {
                    prop_assert!(pae);
                }
            }
        }
    }
}
