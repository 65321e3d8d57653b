//! Capability MSRs: read as the manual has them, each lack named, and controls that fit.

use super::*;
use crate::area::tests::Model;
use crate::start::{self, Parts};
use crate::{Area, Controls, field};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The registers of a CPU that has all that is needed, and the usual bits that are set for good.
pub fn registers() -> BTreeMap<u32, u64> {
    let range = |must: u32, may: u32| u64::from(must) | u64::from(may) << 32;
    BTreeMap::from([
        (BASIC, 0x00DA_0400_0000_0012),
        // Those for old software have CR3 exits and debug controls set for good.
        (PIN, range(0x16, 0xFF)),
        (PRIMARY, range(0x0401_E172, 0xFFF9_FFFE)),
        (EXIT, range(0x0003_6DFF, 0x01FF_FFFF)),
        (ENTRY, range(0x0000_11FF, 0x0003_FFFF)),
        (MISC, 0x3004_C1E5),
        (CR0_FIXED[0], 0x8000_0021),
        (CR0_FIXED[1], 0xFFFF_FFFF),
        (CR4_FIXED[0], 0x2000),
        (CR4_FIXED[1], 0x0137_7FFF),
        (SECONDARY, range(0, 0x055D_5FFF)),
        (EPT_VPID, 0x0000_0F01_0673_4141),
        (TRUE[0], range(0x16, 0xFF)),
        (TRUE[1], range(0x0400_6172, 0xFFF9_FFFE)),
        (TRUE[2], range(0x0003_6DFB, 0x01FF_FFFF)),
        (TRUE[3], range(0x0000_11FB, 0x0003_FFFF)),
    ])
}

/// What such registers say.
pub fn read(registers: &BTreeMap<u32, u64>) -> Capabilities {
    Capabilities::read(46, |msr| *registers.get(&msr).expect("a register that the CPU has"))
}

/// Of the same CPU.
pub fn capabilities() -> Capabilities {
    read(&registers())
}

#[test]
fn a_usual_cpu_suffices_and_its_controls_are_allowed() {
    let c = capabilities();
    assert_eq!(c.suffice(), Ok(()));
    assert_eq!((c.revision, c.timer_shift(), c.sleeps()), (0x12, 5, true));
    let made = Controls::fit(&c).unwrap();
    assert!(c.pin.allows(made.pin) && c.primary.allows(made.primary));
    assert!(c.secondary.allows(made.secondary));
    assert!(c.exit.allows(made.exit) && c.entry.allows(made.entry));
    assert_eq!(made.pin & 0x29, pin::NMI | pin::VIRTUAL_NMIS, "interrupts don't exit");
    assert_eq!(made.primary & Controls::OPEN.primary, 0);
    assert_eq!(made.secondary & Controls::OFFERED, Controls::OFFERED & 0x055D_5FFF);
}

/// SGX's instructions, which no guest is shown, exit for all they can do.
#[test]
fn what_isnt_shown_exits_where_it_can() {
    assert_eq!(Controls::fit(&capabilities()).unwrap().secondary & Controls::CLOSED, 0);
    let mut with = registers();
    with.insert(SECONDARY, registers()[&SECONDARY] | u64::from(Controls::CLOSED) << 32);
    let c = read(&with);
    let made = Controls::fit(&c).unwrap();
    assert_eq!(made.secondary & Controls::CLOSED, Controls::CLOSED);
    let parts =
        Parts { nested_root: 0x1000, vpid: 1, ports: [0x2000; 2], msrs: 0, virtual_apic: 0 };
    let mut area = Model::default();
    start::set_up(&mut area, &c, &made, &parts);
    assert_eq!(area.read(field::ENCLS_EXITING_BITMAP), u64::MAX);
}

#[test]
fn without_true_controls_cr3_would_exit() {
    let mut old = registers();
    old.insert(BASIC, registers()[&BASIC] & !(1 << TRUE_CONTROLS));
    TRUE.iter().for_each(|msr| {
        old.remove(msr);
    });
    let lack = read(&old).suffice().unwrap_err();
    let sentence =
        "the CPU's VMX always exits for MOV to CR3 (MSR 0x482, bit 15); it must be able not to";
    assert_eq!(lack.to_string(), sentence);
}

#[test]
fn each_bit_that_is_needed_is_named_without_it() {
    let words = [
        (TRUE[0], PIN_WORDS, OPEN_PIN),
        (TRUE[1], PRIMARY_WORDS, OPEN_PRIMARY),
        (SECONDARY, SECONDARY_WORDS, OPEN_SECONDARY),
        (TRUE[2], EXIT_WORDS, OPEN_EXIT),
        (TRUE[3], ENTRY_WORDS, OPEN_ENTRY),
    ];
    for (msr, wanted, open) in words {
        for (bits, what) in wanted {
            let mut without = registers();
            *without.get_mut(&msr).unwrap() &= !(u64::from(*bits) << 32);
            let bit = 32 + bits.trailing_zeros();
            assert_eq!(read(&without).suffice(), Err(Lack { what, msr, bit }));
            assert!(Controls::fit(&read(&without)).is_err());
        }
        for (bits, what) in open {
            let mut set = registers();
            *set.get_mut(&msr).unwrap() |= u64::from(*bits);
            let bit = bits.trailing_zeros();
            assert_eq!(read(&set).suffice(), Err(Lack { what, msr, bit }));
        }
    }
    for (bit, what) in NESTED {
        let mut without = registers();
        *without.get_mut(&EPT_VPID).unwrap() &= !(1 << bit);
        let lack = Lack { what, msr: EPT_VPID, bit: *bit };
        assert_eq!(read(&without).suffice(), Err(lack));
    }
    for (msr, bit, value) in [(MISC, HLT_STATE, 0), (BASIC, WIDTH_32, 1)] {
        let mut other = registers();
        let register = other.get_mut(&msr).unwrap();
        *register = *register & !(1 << bit) | value << bit;
        let lack = read(&other).suffice().unwrap_err();
        assert_eq!((lack.msr, lack.bit), (msr, bit));
    }
}

/// The lists above and the words of controls say the same.
#[test]
fn the_lists_have_what_is_set() {
    let sum = |word: Word| word.iter().fold(0, |sum, (bit, _)| sum | bit);
    let (needed, times, open) = (Controls::NEEDED, Controls::AT_TIMES, Controls::OPEN);
    assert_eq!(sum(PIN_WORDS), needed.pin | times.pin);
    assert_eq!(sum(PRIMARY_WORDS), needed.primary | times.primary);
    assert_eq!(sum(SECONDARY_WORDS), needed.secondary | times.secondary);
    assert_eq!(sum(EXIT_WORDS), needed.exit | times.exit);
    assert_eq!(sum(ENTRY_WORDS), needed.entry | times.entry);
    assert_eq!(sum(OPEN_PIN), open.pin);
    assert_eq!(sum(OPEN_PRIMARY), open.primary);
    assert_eq!(sum(OPEN_SECONDARY), open.secondary);
    assert_eq!((sum(OPEN_EXIT), sum(OPEN_ENTRY)), (open.exit, open.entry));
    assert_eq!(needed.primary & open.primary, 0);
    assert_eq!(needed.secondary & (open.secondary | Controls::OFFERED), 0);
}

#[test]
fn a_cpu_without_secondary_controls_is_asked_for_no_more() {
    let mut old = registers();
    *old.get_mut(&TRUE[1]).unwrap() &= !(u64::from(primary::SECONDARY) << 32);
    old.remove(&SECONDARY);
    old.remove(&EPT_VPID);
    assert_eq!(read(&old).suffice().unwrap_err().what, "has no secondary controls");
}

proptest! {
    /// Whatever the MSRs say: what is made is allowed, has what is needed, and opens what it must.
    #[test]
    fn what_is_made_is_what_the_cpu_allows(
        flips in prop::collection::vec((0usize..5, 0u32..32, any::<bool>()), 0..4)
    ) {
        let mut registers = registers();
        for (word, bit, may) in flips {
            let msr = [TRUE[0], TRUE[1], SECONDARY, TRUE[2], TRUE[3]][word];
            let value = registers.get_mut(&msr).unwrap();
            // A bit that must be 1 may be.
            if may { *value ^= 1 << (32 + bit) } else { *value ^= 1 << bit }
            *value |= (*value & 0xFFFF_FFFF) << 32;
        }
        let c = read(&registers);
        if let Ok(made) = Controls::fit(&c) {
            let (needed, open) = (Controls::NEEDED, Controls::OPEN);
            for (range, word, needed, open) in [
                (c.pin, made.pin, needed.pin, open.pin),
                (c.primary, made.primary, needed.primary, open.primary),
                (c.secondary, made.secondary, needed.secondary, open.secondary),
                (c.exit, made.exit, needed.exit, open.exit),
                (c.entry, made.entry, needed.entry, open.entry),
            ] {
                prop_assert!(range.allows(word));
                prop_assert_eq!((word & needed, word & open), (needed, 0));
            }
        } else {
            prop_assert!(c.suffice().is_err());
        }
    }
}

/// A CPU without one of them does all else.
#[test]
fn what_posted_mode_lacks_is_named() {
    assert_eq!(capabilities().posts(), Ok(()));
    for (msr, bit, what) in [
        (TRUE[0], pin::POSTED, "has no posted interrupts"),
        (SECONDARY, secondary::VIRTUALIZE_X2APIC, "has no virtual MSRs of the local APIC"),
        (SECONDARY, secondary::APIC_REGISTERS, "has no virtual registers of the local APIC"),
        (SECONDARY, secondary::VIRTUAL_DELIVERY, "has no virtual-interrupt delivery"),
        (TRUE[2], exit::ACKNOWLEDGE, "can't acknowledge interrupts at an exit"),
    ] {
        let mut lacking = registers();
        *lacking.get_mut(&msr).unwrap() &= !(u64::from(bit) << 32);
        let c = read(&lacking);
        assert_eq!(c.suffice(), Ok(()));
        let lack = c.posts().unwrap_err().to_string();
        let bit = 32 + bit.trailing_zeros();
        let sentence = format!("the CPU's VMX {what} (MSR {msr:#x}, bit {bit}); that is needed");
        assert_eq!(lack, sentence);
    }
}
