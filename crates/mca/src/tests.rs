//! A core's banks as a model: what isn't there mustn't be touched.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Core {
    registers: BTreeMap<u32, u64>,
    written: Vec<u32>,
}

impl Core {
    /// Banks by their status.
    fn new(banks: &[u64]) -> Core {
        let mut registers =
            BTreeMap::from([(MCG_CAP, banks.len() as u64 | 0xFF00), (MCG_STATUS, MCIP | 1)]);
        for (i, status) in banks.iter().enumerate() {
            let first = FIRST_BANK + 4 * i as u32;
            registers.insert(first + STATUS, *status);
            if status & HAS_ADDRESS != 0 {
                registers.insert(first + ADDRESS, 0xA000 + i as u64);
            }
            if status & HAS_MISCELLANEOUS != 0 {
                registers.insert(first + MISCELLANEOUS, 0xB000 + i as u64);
            }
        }
        Core { registers, written: Vec::new() }
    }
}

impl Registers for Core {
    fn read(&self, register: u32) -> u64 {
        *self.registers.get(&register).unwrap_or_else(|| panic!("#GP: read of {register:#x}"))
    }

    fn write(&mut self, register: u32, value: u64) {
        assert_eq!(value, 0, "all else is #GP");
        assert!(self.registers.insert(register, 0).is_some(), "#GP: write of {register:#x}");
        self.written.push(register);
    }
}

/// As firmware may leave a core: finished with an error in a bank, or with none, unfinished.
#[test]
fn what_is_left_is_told() {
    let mut finished = Core::new(&[VALID]);
    finished.write(MCG_STATUS, 0);
    assert!(take(&mut finished).tells_something());
    let mut unfinished = Core::new(&[0]);
    assert!(take(&mut unfinished).tells_something());
    assert!(!take(&mut unfinished).tells_something());
}

#[test]
fn an_error_is_told_whole() {
    let status = VALID | UNCORRECTED | CONTEXT_CORRUPT | HAS_ADDRESS | HAS_MISCELLANEOUS | 0x135;
    let mut core = Core::new(&[0, status, VALID | OVERFLOW]);
    assert!(in_progress(&core));
    let report = take(&mut core);
    assert!(report.tells_something());
    let text = report.to_string();
    assert!(!in_progress(&core));
    assert_eq!(
        text,
        "machine check, global status 0x5; bank 1, status 0xae00000000000135, uncorrected, the \
         processor's state is corrupt, address 0xa001, more 0xb001; bank 2, status \
         0xc000000000000000, corrected, others are lost"
    );
    let nothing = take(&mut core);
    assert!(!nothing.tells_something());
    let text = "errors that raised no machine check: no bank tells of an error";
    assert_eq!(nothing.to_string(), text);
}

#[test]
fn only_what_was_corrected_is_harmless() {
    let of = |banks: &[u64], finished| {
        let mut core = Core::new(banks);
        if finished {
            core.write(MCG_STATUS, 0);
        }
        take(&mut core)
    };
    let corrected = of(&[0, VALID | 0x135], true);
    assert!(corrected.tells_something() && corrected.is_harmless());
    let text = "errors that raised no machine check; bank 1, status 0x8000000000000135, corrected";
    assert_eq!(corrected.to_string(), text);
    let deferred = of(&[VALID | DEFERRED], true);
    assert!(!deferred.is_harmless() && deferred.to_string().ends_with(", deferred"));
    assert!(!of(&[VALID | UNCORRECTED], true).is_harmless());
    assert!(!of(&[VALID], false).is_harmless());
    assert!(!of(&[VALID; 5], true).is_harmless(), "not all of them were looked at");
}

proptest! {
    #[test]
    fn every_bank_is_read_and_cleared_before_the_end(banks in proptest::collection::vec(any::<u64>(), 0..40)) {
        let mut core = Core::new(&banks);
        let report = take(&mut core);
        let looked = banks.iter().take(MOST_BANKS as usize).enumerate();
        let valid: Vec<_> = looked.filter(|(_, s)| *s & VALID != 0).collect();
        prop_assert_eq!(report.errors.len(), valid.len().min(MOST_ERRORS));
        prop_assert_eq!(report.errors.len() + report.more as usize, valid.len());
        for (error, (bank, status)) in report.errors.iter().zip(&valid) {
            prop_assert_eq!((error.bank as usize, error.status), (*bank, **status));
            let told = |flag, value| (*status & flag != 0).then_some(value);
            prop_assert_eq!(error.address, told(HAS_ADDRESS, 0xA000 + *bank as u64));
            prop_assert_eq!(error.miscellaneous, told(HAS_MISCELLANEOUS, 0xB000 + *bank as u64));
        }
        for (bank, _) in &valid {
            prop_assert_eq!(core.read(FIRST_BANK + 4 * *bank as u32 + STATUS), 0);
        }
        prop_assert_eq!(core.written.last(), Some(&MCG_STATUS));
        prop_assert_eq!(core.written.len(), valid.len() + 1);
    }
}
