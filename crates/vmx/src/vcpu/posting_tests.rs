//! Posted mode, case by case: what is entered passes the manual's checks, and nothing of the mode
//! outlives it.

use crate::controls::{exit, pin, secondary};
use crate::entry::check;
use crate::vcpu::tests::{LONG, posting_vcpu, vcpu};
use crate::{Area, Delivered, Field, Vcpu, area::tests::Model, exits, field};
use delivery::{Event, Mode, VectorSet};
use vendor::Exit;
use vendor::maps::Map;

const NONE: VectorSet = VectorSet::EMPTY;

fn word(vcpu: &Vcpu<Model>, field: Field) -> u32 {
    vcpu.area.read(field) as u32
}

fn status(vcpu: &Vcpu<Model>) -> u64 {
    vcpu.area.read(field::GUEST_INTERRUPT_STATUS)
}

#[test]
fn the_modes_controls_come_and_go_with_it() {
    let mut v = posting_vcpu();
    let all =
        secondary::VIRTUALIZE_X2APIC | secondary::APIC_REGISTERS | secondary::VIRTUAL_DELIVERY;
    for posted in [true, false, true] {
        if posted {
            v.set_posted();
        } else {
            v.set_injection(0x20);
        }
        check(&v.area, &v.capabilities).unwrap();
        assert_eq!(v.in_posted(), posted);
        assert_eq!(word(&v, field::PIN_CONTROLS) & pin::POSTED != 0, posted);
        assert_ne!(word(&v, field::PIN_CONTROLS) & pin::EXTERNAL_INTERRUPT, 0);
        let secondary = word(&v, field::SECONDARY_CONTROLS) & all;
        assert_eq!(secondary, if posted { all } else { 0 });
        assert_ne!(word(&v, field::EXIT_CONTROLS) & exit::ACKNOWLEDGE, 0);
        let map = if posted { Map::Posted } else { Map::Injection };
        assert_eq!(v.area.read(field::MSR_BITMAPS), v.setup.maps[map as usize]);
    }
    assert_eq!(v.virtual_priority(), 0x20, "the priority stays");
    assert_eq!(v.area.read(field::POSTED_VECTOR), 0xF4);
}

#[test]
fn who_may_not_post_never_acknowledges() {
    let mut v = vcpu(LONG, false);
    assert_eq!(word(&v, field::EXIT_CONTROLS) & exit::ACKNOWLEDGE, 0);
    v.area.write(field::EXIT_INTERRUPTION, 0x8000_0051);
    assert_eq!((v.acknowledged(), v.kept()), (None, None));
    v.keep(&VectorSet::of(&[0x51]), &NONE, &NONE);
    assert!(!v.area.0.contains_key(&field::GUEST_INTERRUPT_STATUS));
}

#[test]
fn an_exit_for_an_interrupt_tells_which() {
    let mut v = posting_vcpu();
    for (info, vector) in [(0x8000_0051, Some(0x51)), (0x8000_0202, None), (0x51, None)] {
        v.area.write(field::EXIT_INTERRUPTION, info);
        assert_eq!(v.acknowledged(), vector, "{info:#x}");
    }
}

#[test]
fn what_is_kept_is_added_up_and_forgotten_with_the_mode() {
    let mut v = posting_vcpu();
    let [a, b, c] = [0x41, 0x51, 0x61].map(|vector| VectorSet::of(&[vector]));
    assert_eq!(v.kept(), None);
    v.set_posted();
    assert_eq!(v.kept(), Some([NONE; 2]));
    v.keep(&a, &b, &NONE);
    assert_eq!(status(&v), 0x5141);
    v.keep(&c, &NONE, &NONE);
    assert_eq!((v.kept(), status(&v)), (Some([a.union(&c), b]), 0x5161));
    v.set_injection(0);
    assert_eq!((v.kept(), status(&v)), (None, 0));
    v.set_posted();
    assert_eq!(v.kept(), Some([NONE; 2]));
    v.keep(&a, &b, &a);
    v.reset(LONG);
    assert_eq!((v.in_posted(), status(&v), v.area.read(field::EOI_EXITS1)), (false, 0, 0));
    v.set_posted();
    assert_eq!(v.kept(), Some([NONE; 2]));
}

#[test]
fn a_completion_that_is_watched_is_told_once() {
    let mut v = posting_vcpu();
    v.set_posted();
    let watched = VectorSet::of(&[0x3F, 0x40, 0xE1]);
    v.keep(&watched, &NONE, &watched);
    let bits = [field::EOI_EXITS0, field::EOI_EXITS1, field::EOI_EXITS2, field::EOI_EXITS3];
    let read = |v: &Vcpu<Model>| bits.map(|field| v.area.read(field));
    assert_eq!(read(&v), [1 << 63, 1, 0, 1 << 33]);
    v.area.write(field::EXIT_REASON, exits::reason::VIRTUALIZED_EOI.into());
    v.area.write(field::QUALIFICATION, 0xE1);
    assert_eq!(v.exit(), Exit::Completed(0xE1));
    assert_eq!(read(&v), [1 << 63, 1, 0, 0]);
    v.keep(&NONE, &NONE, &NONE);
    assert_eq!(read(&v), [1 << 63, 1, 0, 0]);
    v.area.write(field::EXIT_REASON, exits::reason::APIC_WRITE.into());
    assert_eq!(v.exit(), Exit::SentItself);
}

#[test]
fn nobody_is_entered_asleep_with_what_he_would_take() {
    use crate::controls::primary;
    use crate::vcpu::{ACTIVE, SLEEPS};
    // Pending, in service, task priority, IF: is he awake?
    for (pending, serves, priority, flags, awake) in [
        (0x51, 0, 0, 0x202, true),
        (0x51, 0, 0, 2, false),
        (0x51, 0x52, 0, 0x202, false),
        (0x51, 0x4F, 0x4F, 0x202, true),
        (0x51, 0, 0x50, 0x202, false),
        (0, 0, 0, 0x202, false),
    ] {
        let activity = if awake { ACTIVE } else { SLEEPS };
        let set = |vector| if vector == 0 { NONE } else { VectorSet::of(&[vector]) };
        for asleep in [false, true] {
            let mut v = posting_vcpu();
            v.set_posted();
            assert_ne!(word(&v, field::PRIMARY_CONTROLS) & primary::HLT, 0);
            v.set_virtual_priority(priority);
            v.area.write(field::GUEST_RFLAGS, flags);
            v.area.write(field::EXIT_REASON, exits::reason::HLT.into());
            v.area.write(field::INSTRUCTION_LENGTH, 1);
            // It comes behind HLT, or before.
            if asleep {
                assert_eq!((v.exit(), v.area.read(field::GUEST_ACTIVITY)), (Exit::Slept, SLEEPS));
            }
            v.keep(&set(pending), &set(serves), &NONE);
            if !asleep {
                assert_eq!(v.exit(), Exit::Slept);
            }
            let found = v.area.read(field::GUEST_ACTIVITY);
            assert_eq!(found, activity, "{pending:#x} {serves:#x} {priority:#x} {asleep}");
            v.set_injection(0);
            assert_eq!(word(&v, field::PRIMARY_CONTROLS) & primary::HLT, 0);
        }
    }
}

#[test]
fn an_offer_ends_where_the_cpu_delivers() {
    let mut v = posting_vcpu();
    v.offer(Some(0x51));
    v.prepare(|| 0);
    v.entered();
    v.set_posted();
    v.prepare(|| 0);
    assert_eq!((v.offered(), Delivered::pending(&v.area)), (None, None));
    assert_eq!(word(&v, field::PRIMARY_CONTROLS) & crate::controls::primary::INTERRUPT_WINDOW, 0);
    v.inject(Event::nmi());
    check(&v.area, &v.capabilities).unwrap();
    assert_eq!(Map::of(Mode::Posted, true, false, false), Map::Hidden);
}

#[test]
fn each_rule_of_an_entry_is_one() {
    let clear = |field, bit| {
        move |v: &mut Vcpu<Model>| {
            let word = v.area.read(field) & !u64::from(bit);
            v.area.write(field, word);
        }
    };
    let set = |field, value| move |v: &mut Vcpu<Model>| v.area.write(field, value);
    type Change = Box<dyn Fn(&mut Vcpu<Model>)>;
    let wrong: [(Field, Change); 6] = [
        (
            field::PIN_CONTROLS,
            Box::new(clear(field::SECONDARY_CONTROLS, secondary::VIRTUAL_DELIVERY)),
        ),
        (field::PIN_CONTROLS, Box::new(clear(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPT))),
        (field::EXIT_CONTROLS, Box::new(clear(field::EXIT_CONTROLS, exit::ACKNOWLEDGE))),
        (field::POSTED_VECTOR, Box::new(set(field::POSTED_VECTOR, 0x100))),
        (field::POSTED_DESCRIPTOR, Box::new(set(field::POSTED_DESCRIPTOR, 0x10_5020))),
        (field::POSTED_DESCRIPTOR, Box::new(set(field::POSTED_DESCRIPTOR, 1 << 46))),
    ];
    for (field, change) in wrong {
        let mut v = posting_vcpu();
        v.set_posted();
        change(&mut v);
        let refused = check(&v.area, &v.capabilities).unwrap_err();
        assert_eq!(refused.field, field, "{refused}");
    }
}
