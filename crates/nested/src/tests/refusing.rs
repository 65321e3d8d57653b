//! Each rule of VMRUN, broken alone.

use super::*;
use crate::check::Illegal as I;

/// A block that is taken but for this change.
fn refused(change: impl FnOnce(&mut Vmcb)) -> Option<Illegal> {
    let mut v = taken();
    change(&mut v);
    run(&v).0.err()
}

#[test]
fn what_is_right_is_taken() {
    assert_eq!(refused(|_| ()), None);
    // The lowest and highest that are right.
    assert_eq!(refused(|v| v.cr3 = (1 << BITS) - 1), None);
    assert_eq!(refused(|v| v.nested_cr3 = (1 << BITS) - 1), None);
    assert_eq!(refused(|v| v.msrpm_base = (1 << BITS) - 0x2000), None);
    assert_eq!(refused(|v| v.iopm_base = (1 << BITS) - 0x3000), None);
    assert_eq!(refused(|v| v.cr4 |= CR4), None);
    assert_eq!(refused(|v| v.efer |= EFER), None);
    assert_eq!(refused(|v| v.cr0 |= 0x6000_0000), None, "CD and NW");
    assert_eq!(refused(|v| v.cr0 |= 0x4000_0000), None, "CD alone");
}

#[test]
fn each_rule_is_kept() {
    type Change = fn(&mut Vmcb);
    type Is = fn(&Illegal) -> bool;
    let rules: [(Change, Is); 24] = [
        (|v| v.efer &= !EFER_SVME, |i| matches!(i, I::Efer(_))),
        (|v| v.efer |= 1 << 13, |i| matches!(i, I::Efer(_))),
        (|v| v.efer |= 1 << 63, |i| matches!(i, I::Efer(_))),
        (|v| v.cr0 |= 1 << 29, |i| matches!(i, I::Cr0(_))),
        (|v| v.cr0 |= 1 << 32, |i| matches!(i, I::Cr0(_))),
        (|v| v.cr3 |= 1 << BITS, |i| matches!(i, I::Cr3(_))),
        (|v| v.cr4 |= 1 << 12, |i| matches!(i, I::Cr4(_))),
        (|v| v.cr4 |= 1 << 32, |i| matches!(i, I::Cr4(_))),
        (|v| v.dr6 |= 1 << 32, |i| matches!(i, I::Dr6(_))),
        (|v| v.dr7 |= 1 << 63, |i| matches!(i, I::Dr7(_))),
        (|v| v.cr4 &= !0x20, |i| matches!(i, I::Mode(..))),
        (|v| v.cr0 &= !1, |i| matches!(i, I::Mode(..))),
        (|v| v.cs.attributes |= 0x400, |i| matches!(i, I::Mode(..))),
        (|v| v.intercept_misc2 = !misc2::VMRUN, |i| *i == I::Intercepts),
        (|v| v.asid = 0, |i| *i == I::Asid),
        (|v| v.msrpm_base = (1 << BITS) - 0x1000, |i| matches!(i, I::Map(_))),
        (|v| v.iopm_base = (1 << BITS) - 0x2000, |i| matches!(i, I::Map(_))),
        (|v| v.iopm_base = u64::MAX, |i| matches!(i, I::Map(_))),
        (|v| v.nested_cr3 = 1 << BITS, |i| matches!(i, I::NestedCr3(_))),
        (|v| v.g_pat = 2, |i| matches!(i, I::Pat(2))),
        (|v| v.g_pat = 0xFF << 56, |i| matches!(i, I::Pat(_))),
        (|v| v.event_inj = 0x8000_0120, |i| matches!(i, I::Event(_))),
        (|v| v.event_inj = 0x8000_0302, |i| matches!(i, I::Event(_))),
        (|v| v.event_inj = 0x8000_0320, |i| matches!(i, I::Event(_))),
    ];
    for (at, (change, is)) in rules.into_iter().enumerate() {
        let why = refused(change);
        assert!(why.as_ref().is_some_and(is), "rule {at}: {why:?}");
    }
}

#[test]
fn events_of_every_kind_are_injected() {
    for event in [0x8000_0020, 0x8000_0000, 0x8000_0202, 0x8000_030E, 0x8000_0480, 0x7FFF_FFFF] {
        assert_eq!(refused(|v| v.event_inj = event), None, "{event:#x}");
    }
    for kind in [1, 5, 6, 7] {
        let event = 0x8000_0020 | kind << 8;
        assert_eq!(refused(|v| v.event_inj = event), Some(I::Event(event)));
    }
}

#[test]
fn long_mode_alone_has_its_rules() {
    // 32-bit code, paging on, without PAE: EFER.LME is clear.
    let legacy = |v: &mut Vmcb| {
        (v.efer, v.cr4, v.cs.attributes) = (EFER_SVME, 0, 0xC9B);
        v.cr3 = u64::MAX;
    };
    assert_eq!(refused(legacy), None);
    // Long mode that is enabled, but not on yet.
    assert_eq!(refused(|v| (v.cr0, v.cr4) = (0x11, 0)), None);
}

#[test]
fn the_pat_of_l1_counts_without_nested_paging() {
    let mut v = taken();
    (v.nested_control, v.g_pat, v.nested_cr3) = (0, 2, u64::MAX);
    let (entry, v02) = run(&v);
    assert_eq!(entry.map(|entry| entry.nested_cr3), Ok(None));
    assert_eq!((v02.g_pat, v02.nested_control), (hosts().g_pat, 1));
}

#[test]
fn a_refused_block_is_read_anew() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut block = InMemory::of(&taken());
    let mut enter = |block: &InMemory| nest.enter(&mut v02, &v01, &offer(), (AT, block));
    assert!(enter(&block).is_ok());
    let mut bad = taken();
    bad.cr4 = 1 << 12;
    block = InMemory::of(&bad);
    assert!(enter(&block).is_err());
    // It says that all is clean, and it isn't the last that was taken.
    block.words[0xC0 / 8] = u64::MAX;
    assert!(enter(&block).is_err());
    assert_eq!(block.reads.borrow()[0x548 / 8], 2);
}

proptest! {
    #[test]
    fn any_block_gives_an_answer(v in any_block()) {
        let (entry, v02) = run(&v);
        if entry.is_ok() {
            prop_assert_eq!(v02.cr4 & !CR4, 0);
            prop_assert_eq!(v02.efer & !(EFER | EFER_SVME), 0);
        }
    }

    #[test]
    fn what_vmrun_doesnt_look_at_is_free(v in any_taken()) {
        prop_assert!(run(&v).0.is_ok());
    }
}

/// What is called clean was checked; the rest is.
#[test]
fn a_part_that_isnt_clean_is_checked() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
    (v.clean, v.cr4) = (!(1 << 5), v.cr4 | 1 << 12);
    let why = nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).err();
    assert!(matches!(why, Some(I::Cr4(_))), "{why:?}");
}
