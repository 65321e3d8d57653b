//! For each rule something that breaks it alone is refused by that field's name.

use super::*;

/// One bit that no rule leaves open: whichever it is, the field is named.
#[test]
fn a_bit_that_is_reserved_is_refused() {
    for (field, reserved) in RESERVED {
        for bit in (0..64).filter(|n| reserved >> n & 1 != 0) {
            let mut area = built(LONG);
            area.write(*field, area.read(*field) ^ 1 << bit);
            let named = checked(&area).map_err(|refusal| refusal.field);
            assert_eq!(named, Err(*field), "{field:?}, bit {bit}");
        }
    }
}

/// Bits that can't be other than they are, in a guest in long mode.
const RESERVED: &[(Field, u64)] = &[
    (field::PIN_CONTROLS, 0xFFFF_FF16),
    (field::EXIT_CONTROLS, 0xFE03_6FF8),
    (field::ENTRY_CONTROLS, 0xFFFC_1DFB),
    (field::IO_BITMAP_A, 0xFFFF_C000_0000_0FFF),
    (field::IO_BITMAP_B, 0xFFFF_C000_0000_0FFF),
    (field::MSR_BITMAPS, 0xFFFF_C000_0000_0FFF),
    (field::VIRTUAL_APIC_ADDRESS, 0xFFFF_C000_0000_0FFF),
    (field::EPT_POINTER, 0xFFFF_C000_0000_0FFF),
    (field::HOST_CR0, 0xFFFF_FFFF_8000_0021),
    (field::HOST_CR3, 0xFFFF_C000_0000_0000),
    (field::HOST_CR4, 0xFFFF_FFFF_FEC8_A020),
    (field::HOST_EFER, 0xFFFF_FFFF_FFFF_F7FE),
    (field::HOST_CS_SELECTOR, 7),
    (field::HOST_TR_SELECTOR, 7),
    (field::HOST_RIP, 0xFFFF_8000_0000_0000),
    (field::HOST_GS_BASE, 0xFFFF_8000_0000_0000),
    (field::GUEST_CR0, 0xFFFF_FFFF_8000_0021),
    (field::GUEST_CR3, 0xFFFF_C000_0000_0000),
    (field::GUEST_CR4, 0xFFFF_FFFF_FEC8_A020),
    (field::GUEST_EFER, 0xFFFF_FFFF_FFFF_F7FE),
    (field::GUEST_DR7, 0xFFFF_FFFF_0000_0000),
    (field::GUEST_DEBUGCTL, 0xFFFF_FFFF_FFFF_003C),
    (field::GUEST_RFLAGS, 0xFFFF_FFFF_FFC0_802A),
    (field::GUEST_RIP, 0xFFFF_0000_0000_0000),
    (field::GUEST_INTERRUPTIBILITY, 0xFFFF_FFF5),
    (field::GUEST_ACTIVITY, 0xFFFF_FFFE),
    (field::GUEST_PENDING_DEBUG, 0xFFFF_FFFF_FFFF_AFF0),
    (field::GUEST_CS_RIGHTS, 0xFFFE_4FF1),
    (field::GUEST_SS_RIGHTS, 0xFFFE_0F9B),
    (field::GUEST_DS_RIGHTS, 0xFFFE_0F91),
    (field::GUEST_TR_RIGHTS, 0xFFFF_0F9F),
    (field::GUEST_LDTR_RIGHTS, 0xFFFE_0F9F),
    (field::GUEST_CS_BASE, 0xFFFF_FFFF_0000_0000),
    (field::GUEST_ES_BASE, 0xFFFF_FFFF_0000_0000),
    (field::GUEST_FS_BASE, 0xFFFF_8000_0000_0000),
    (field::GUEST_CS_LIMIT, 0xFFF),
    (field::GUEST_TR_LIMIT, 0xFFF0_0000),
    (field::GUEST_GDTR_LIMIT, 0xFFFF_0000),
    (field::GUEST_IDTR_BASE, 0xFFFF_8000_0000_0000),
    (field::VMCS_LINK_POINTER, u64::MAX),
];

#[test]
fn controls_go_with_each_other() {
    let can = capabilities();
    let made = Controls::fit(&can).unwrap();
    let less = |word: u32, bit: u32| u64::from(word & !bit);
    let more = |word: u32, bit: u32| u64::from(word | bit);
    for (field, value, at) in [
        (field::PIN_CONTROLS, less(made.pin, pin::NMI), field::PIN_CONTROLS),
        (field::VPID, 0, field::VPID),
        (field::TPR_THRESHOLD, 0x10, field::TPR_THRESHOLD),
        (field::CR3_TARGET_COUNT, 5, field::CR3_TARGET_COUNT),
        (
            field::SECONDARY_CONTROLS,
            less(made.secondary, secondary::EPT),
            field::SECONDARY_CONTROLS,
        ),
        (
            field::SECONDARY_CONTROLS,
            more(made.secondary, secondary::VIRTUALIZE_APIC | secondary::VIRTUALIZE_X2APIC),
            field::SECONDARY_CONTROLS,
        ),
        // Posted and direct at once, which Bochs refuses, too.
        (
            field::SECONDARY_CONTROLS,
            more(made.secondary, secondary::VIRTUAL_DELIVERY),
            field::PIN_CONTROLS,
        ),
        (field::EXIT_CONTROLS, more(made.exit, exit::SAVE_TIMER), field::EXIT_CONTROLS),
        (field::ENTRY_CONTROLS, more(made.entry, entry::TO_SMM), field::ENTRY_CONTROLS),
    ] {
        assert_eq!(refused(LONG, &[(field, value)]), Some(at), "{field:?} {value:#x}");
    }
    let window = more(made.primary, primary::NMI_WINDOW);
    let without = less(made.pin, pin::VIRTUAL_NMIS);
    let both = [(field::PRIMARY_CONTROLS, window), (field::PIN_CONTROLS, without)];
    assert_eq!(refused(LONG, &both), Some(field::PRIMARY_CONTROLS));
    let shadow = less(made.primary, primary::TPR_SHADOW);
    let registers = more(made.secondary, secondary::APIC_REGISTERS);
    let both = [(field::PRIMARY_CONTROLS, shadow), (field::SECONDARY_CONTROLS, registers)];
    assert_eq!(refused(LONG, &both), Some(field::SECONDARY_CONTROLS));
    for (count, list) in [
        (field::EXIT_MSR_STORE_COUNT, field::EXIT_MSR_STORE_ADDRESS),
        (field::EXIT_MSR_LOAD_COUNT, field::EXIT_MSR_LOAD_ADDRESS),
        (field::ENTRY_MSR_LOAD_COUNT, field::ENTRY_MSR_LOAD_ADDRESS),
    ] {
        assert_eq!(refused(LONG, &[(count, 1), (list, 0x1008)]), Some(list));
        assert_eq!(refused(LONG, &[(count, 1), (list, 0x1010)]), None);
        assert_eq!(refused(LONG, &[(list, 0x1008)]), None, "none is read");
    }
}

#[test]
fn events_are_what_the_manual_has() {
    let raise = |info: u64, code: u64, length: u64| {
        refused(
            FLAT,
            &[
                (field::GUEST_RFLAGS, 0x202),
                (field::ENTRY_INTERRUPTION, info),
                (field::ENTRY_ERROR_CODE, code),
                (field::ENTRY_INSTRUCTION_LENGTH, length),
            ],
        )
    };
    let info = Some(field::ENTRY_INTERRUPTION);
    assert_eq!(raise(0x8000_0102, 0, 0), info, "a reserved type");
    assert_eq!(raise(0x8000_0203, 0, 0), info, "an NMI's vector");
    assert_eq!(raise(0x8000_0320, 0, 0), info, "no exception");
    assert_eq!(raise(0x8000_030E, 0, 0), info, "no error code");
    assert_eq!(raise(0x8000_0B06, 0, 0), info, "one too many");
    assert_eq!(raise(0x8000_1051, 0, 0), info, "reserved bits");
    assert_eq!(raise(0x8000_0B0D, 0x1_0000, 0), Some(field::ENTRY_ERROR_CODE));
    for length in [0, 16] {
        assert_eq!(raise(0x8000_0450, 0, length), Some(field::ENTRY_INSTRUCTION_LENGTH));
    }
    for good in [0x8000_0450, 0x8000_0603, 0x8000_0501, 0x8000_0B0D, 0x8000_0306] {
        assert_eq!(raise(good, 0, 2), None, "{good:#x}");
    }
    let mut newer = capabilities_tests::registers();
    *newer.get_mut(&0x480).unwrap() |= 1 << 56;
    *newer.get_mut(&0x485).unwrap() |= 1 << 30;
    let newer = capabilities_tests::read(&newer);
    for (info, entered) in
        [(0x8000_030E, true), (0x8000_0B06, true), (0x8000_0A02, false), (0x8000_0450, true)]
    {
        let mut area = built(FLAT);
        area.write(field::ENTRY_INTERRUPTION, info);
        assert_eq!(check(&area, &newer).is_ok(), entered, "{info:#x}");
    }
    // In real mode an exception pushes none.
    let real = |info| refused(REAL, &[(field::ENTRY_INTERRUPTION, info)]);
    assert_eq!((real(0x8000_0B0D), real(0x8000_030D)), (info, None));
    let software = Event { kind: EventKind::Software, ..Event::interrupt(3) };
    let mut area = built(FLAT);
    Delivered::new(software, 1).raise(&mut area);
    assert_eq!(checked(&area), Ok(()));
}

#[test]
fn blocking_goes_with_flags_and_events() {
    let blocked = |blocking, flags, info| {
        refused(
            LONG,
            &[
                (field::GUEST_INTERRUPTIBILITY, blocking),
                (field::GUEST_RFLAGS, flags),
                (field::ENTRY_INTERRUPTION, info),
            ],
        )
    };
    let at = Some(field::GUEST_INTERRUPTIBILITY);
    assert_eq!(blocked(1, 0x202, 0), None);
    assert_eq!(blocked(1, 0x002, 0), at, "behind STI, yet closed");
    assert_eq!(blocked(3, 0x202, 0), at);
    for shadow in [1, 2] {
        assert_eq!(blocked(shadow, 0x202, 0x8000_0051), at, "in a shadow");
    }
    assert_eq!(blocked(8, 0x002, 0x8000_0202), at, "an NMI in another's handler");
    assert_eq!(blocked(2, 0x002, 0x8000_0202), at);
    assert_eq!(blocked(8, 0x202, 0x8000_0051), None);
}

#[test]
fn a_step_that_is_held_back_is_pending() {
    let stepping = |flags, blocking, pending| {
        refused(
            LONG,
            &[
                (field::GUEST_RFLAGS, flags),
                (field::GUEST_INTERRUPTIBILITY, blocking),
                (field::GUEST_PENDING_DEBUG, pending),
            ],
        )
    };
    let at = Some(field::GUEST_PENDING_DEBUG);
    assert_eq!((stepping(0x302, 1, 0), stepping(0x302, 1, 0x4000)), (at, None));
    assert_eq!((stepping(0x202, 1, 0), stepping(0x202, 1, 0x4000)), (None, at));
    assert_eq!(stepping(0x302, 0, 0), None, "not in a shadow");
}

#[test]
fn a_sleeper_is_of_level_0_and_in_no_shadow() {
    let asleep = (field::GUEST_ACTIVITY, 1);
    assert_eq!(refused(LONG, &[asleep]), None);
    let shadow = [asleep, (field::GUEST_INTERRUPTIBILITY, 2)];
    assert_eq!(refused(LONG, &shadow), Some(field::GUEST_ACTIVITY));
    let user = |segment: Segment, rights: u64| (segment.rights(), rights | 3 << 5);
    let area = built(LONG);
    let level = [Segment::Cs, Segment::Ss].map(|s| user(s, area.read(s.rights())));
    assert_eq!(refused(LONG, &level), None);
    assert_eq!(refused(LONG, &[asleep, level[0], level[1]]), Some(field::GUEST_ACTIVITY));
}

#[test]
fn modes_go_with_control_registers() {
    let flat = |field, value| refused(FLAT, &[(field, value)]);
    // The other mode's bits.
    assert_eq!(flat(field::GUEST_EFER, 0x500), Some(field::GUEST_EFER));
    assert_eq!(flat(field::GUEST_EFER, 0x100), None, "LME without paging");
    assert_eq!(flat(field::GUEST_CR0, 0x8000_0031), None, "paging of 32 bits");
    assert_eq!(flat(field::GUEST_CR0, 0x8000_0030), Some(field::GUEST_CR0), "not in real mode");
    let both = [(field::GUEST_CR0, 0x8000_0031), (field::GUEST_EFER, 0x100)];
    assert_eq!(refused(FLAT, &both), Some(field::GUEST_EFER));
    assert_eq!(flat(field::GUEST_CR4, 0x2_2000), Some(field::GUEST_CR4), "PCIDs");
    assert_eq!(flat(field::GUEST_RIP, 1 << 32), Some(field::GUEST_RIP));
    let long = |field, value| refused(LONG, &[(field, value)]);
    assert_eq!(long(field::GUEST_CR0, 0x31), Some(field::GUEST_CR0));
    assert_eq!(long(field::GUEST_CR4, 0x2000), Some(field::GUEST_CR4));
    assert_eq!(long(field::GUEST_CR4, 0x20), Some(field::GUEST_CR4), "VMXE");
    assert_eq!(long(field::GUEST_RIP, 0xFFFF_8000_0000_0000), None);
    assert_eq!(long(field::GUEST_RIP, 1 << 47), None, "which faults in the guest");
    assert_eq!(long(field::GUEST_RIP, 1 << 48), Some(field::GUEST_RIP));
    assert_eq!(long(field::GUEST_SYSENTER_EIP, 1 << 47), Some(field::GUEST_SYSENTER_EIP));
    assert_eq!(long(field::GUEST_PAT, 2), Some(field::GUEST_PAT));
}

#[test]
fn segments_are_what_their_mode_allows() {
    let with = |start, segment: Segment, rights: u64| {
        refused(start, &[(segment.rights(), rights)]).map(|field| field == segment.rights())
    };
    let (good, bad) = (None, Some(true));
    let code = built(LONG).read(Segment::Cs.rights());
    assert_eq!(with(LONG, Segment::Cs, code | BIG), bad);
    assert_eq!(with(LONG, Segment::Cs, code & !PRESENT), bad);
    assert_eq!(with(LONG, Segment::Cs, code | 3 << 5), bad, "of another level than SS");
    assert_eq!(with(LONG, Segment::Cs, code | UNUSABLE), good, "CS has no such bit");
    let data = built(LONG).read(Segment::Ds.rights());
    for segment in [Segment::Ds, Segment::Es, Segment::Fs, Segment::Gs] {
        assert_eq!(with(LONG, segment, UNUSABLE), good);
        assert_eq!(with(LONG, segment, data & !1), bad, "not accessed");
        assert_eq!(with(LONG, segment, data | 8), good, "code that is read");
        assert_eq!(with(LONG, segment, data & !2 | 8), bad, "code that isn't");
        assert_eq!(with(LONG, segment, data & !0x10), bad, "the system's");
    }
    assert_eq!(with(LONG, Segment::Ss, data & !2), bad, "a stack that isn't written");
    assert_eq!(with(LONG, Segment::Ss, UNUSABLE), good);
    let real = [(Segment::Cs.rights(), 0xFB), (Segment::Ss.rights(), 0xF3)];
    assert_eq!(refused(REAL, &real), Some(Segment::Ss.rights()), "of level 3 in real mode");
    assert_eq!(with(LONG, Segment::Tr, 0x83), bad, "a task of 16 bits");
    assert_eq!(with(REAL, Segment::Tr, 0x83), good);
    assert_eq!(with(LONG, Segment::Tr, 0x89), bad, "not busy");
    assert_eq!(with(LONG, Segment::Tr, 0x1_008B), bad);
    assert_eq!(with(LONG, Segment::Ldtr, UNUSABLE), good);
    assert_eq!(with(LONG, Segment::Ldtr, 0x8B), bad);
    let tables = [(Segment::Tr.selector(), 0x1C), (Segment::Ldtr.selector(), 0x1C)];
    for (field, value) in tables {
        assert_eq!(refused(LONG, &[(field, value)]), Some(field));
    }
}

#[test]
fn virtual_8086_mode_has_segments_of_its_own() {
    let mut area = built(FLAT);
    area.write(field::GUEST_RFLAGS, 0x2_0002);
    assert_eq!(checked(&area).unwrap_err().field, Segment::Es.base());
    for segment in Segment::USUAL {
        area.write(segment.selector(), 0x100);
        area.write(segment.base(), 0x1000);
        area.write(segment.limit(), 0xFFFF);
        area.write(segment.rights(), 0xF3);
    }
    assert_eq!(checked(&area), Ok(()));
    area.write(field::GUEST_CR0, 0x30);
    assert_eq!(checked(&area).unwrap_err().field, field::GUEST_RFLAGS);
    area.write(field::GUEST_CR0, 0x31);
    area.write(Segment::Gs.base(), 0x1010);
    assert_eq!(checked(&area).unwrap_err().field, Segment::Gs.base());
}

#[test]
fn the_host_is_in_64_bit_mode() {
    for (field, value) in [
        (field::HOST_CS_SELECTOR, 0),
        (field::HOST_TR_SELECTOR, 0),
        (field::HOST_PAT, 2 << 56),
        (field::HOST_DS_SELECTOR, 4),
        (field::HOST_SYSENTER_ESP, 1 << 47),
        (field::HOST_EFER, 0x100),
    ] {
        assert_eq!(refused(LONG, &[(field, value)]), Some(field));
    }
}

#[test]
fn a_refusal_is_a_sentence() {
    let mut area = built(LONG);
    area.write(field::GUEST_RFLAGS, 0);
    let refusal = checked(&area).unwrap_err();
    assert_eq!(refusal.to_string(), "GUEST_RFLAGS is 0x0, and bit 1 must be 1");
}
