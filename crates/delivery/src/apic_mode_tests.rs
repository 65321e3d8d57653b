//! The modes of the virtual local APIC: what each keeps, forgets, accepts and refuses.

use super::tests::{Bare, enabled};
use super::*;
use proptest::prelude::*;

const BITS: u8 = 40;
const X2APIC: u64 = 0xFEE0_0D00;
const XAPIC: u64 = 0xFEE0_0900;
const OFF: u64 = 0xFEE0_0100;

fn nowhere(_: u64) -> bool {
    false
}

fn set(a: &mut LocalApic, value: u64) -> Result<WriteEffect, Refused> {
    a.write_base(value, BITS, nowhere)
}

/// In xAPIC mode and enabled by software.
pub fn xapic() -> LocalApic {
    let mut a = LocalApic::new(0);
    set(&mut a, OFF).unwrap();
    set(&mut a, XAPIC).unwrap();
    a.store(0xF0, 4, 0x1FF, &mut Bare::default());
    a
}

#[test]
fn it_starts_in_x2apic_mode_disabled_by_software() {
    let (first, other) = (LocalApic::new(0), LocalApic::new(5));
    assert_eq!((first.base(), other.base()), (0xFEE0_0D00, 0xFEE0_0C00));
    assert_eq!((first.mode(), first.page()), (ApicMode::X2apic, None));
    assert!(!first.exitless() && enabled().exitless());
}

/// SDM vol. 3, table 11-6, by its numbers; what is only written, and what isn't there, faults.
#[test]
fn each_register_of_x2apic_mode_reads_as_after_reset_or_faults() {
    let (a, mut core) = (LocalApic::new(0x25), Bare::default());
    core.set_task_priority(0x34);
    for register in 0..=0xFF {
        let value = match register {
            0x02 => Ok(0x25),
            0x03 => Ok(0x5_0014),
            0x08 | 0x0A => Ok(0x34),
            0x0D => Ok(2 << 16 | 1 << 5),
            0x0F => Ok(0xFF),
            0x10..=0x28 | 0x30 | 0x38 | 0x3E => Ok(0),
            0x32..=0x37 => Ok(0x1_0000),
            0x39 => Ok(core.timer_count().into()),
            _ => Err(Refused),
        };
        assert_eq!(a.read(register, &core), value, "{register:#x}");
    }
}

#[test]
fn what_is_written_in_x2apic_mode_reads_back() {
    let (mut a, mut core) = (enabled(), Bare::default());
    for (register, written) in [
        (0x08, 0x45),
        (0x0F, 0x1AB),
        (0x30, 0x12_0000_0841),
        (0x32, 0x2_00EC),
        (0x33, 0x0_0241),
        (0x34, 0x1_0442),
        (0x35, 0x0_0743),
        (0x36, 0x0_0044),
        (0x37, 0x1_0045),
        (0x38, 0xFFFF_FFFF),
        (0x3E, 0xB),
    ] {
        a.write(register, written, &mut core).unwrap();
        assert_eq!(a.read(register, &core), Ok(written), "{register:#x}");
    }
    // Nothing is ever on its way: delivery status isn't kept.
    a.write(ICR, 0x12_0000_1841, &mut core).unwrap();
    assert_eq!(a.read(ICR, &core), Ok(0x12_0000_0841));
}

#[test]
fn to_disable_it_forgets_everything_and_stops_the_timer() {
    for from in [enabled(), xapic()] {
        let mut a = from;
        a.request(0x41);
        a.accepted(0x41);
        a.request(0x51);
        let stopped = TimerSetup { divide: 0, periodic: false, masked: true, initial: Some(0) };
        assert_eq!(set(&mut a, OFF), Ok(WriteEffect::Timer(stopped)));
        assert!(a.quiet() && !a.exitless() && a.page().is_none());
        assert_eq!(a.mode(), ApicMode::Disabled);
        a.request(0x61);
        assert!(a.quiet(), "nothing is accepted");
        assert!(!a.addressing().present());
        assert_eq!(set(&mut a, OFF), Ok(WriteEffect::None), "it is off already");
        assert_eq!(set(&mut a, X2APIC), Err(Refused));
        assert_eq!(set(&mut a, XAPIC), Ok(WriteEffect::None));
        assert_eq!(a.load(0xF0, 4, &Bare::default()), 0xFF, "as after reset");
        a.request(0x61);
        assert!(a.quiet(), "software has to enable it first");
    }
}

#[test]
fn xapic_mode_keeps_what_it_has_when_x2apic_mode_comes() {
    let (mut a, mut core) = (xapic(), Bare::default());
    a.store(0x320, 4, 0x2_00EC, &mut core);
    a.request(0x41);
    a.accepted(0x41);
    a.request(0x51);
    assert!(!a.exitless());
    assert_eq!(set(&mut a, X2APIC), Ok(WriteEffect::None));
    assert!(a.exitless() && !a.quiet());
    assert_eq!(a.read(LVT_TIMER, &core), Ok(0x2_00EC));
    assert_eq!(a.read(ISR + 2, &core), Ok(1 << 1));
    assert_eq!(a.read(IRR + 2, &core), Ok(1 << 17));
    assert_eq!(set(&mut a, XAPIC), Err(Refused));
    assert_eq!(a.mode(), ApicMode::X2apic);
}

#[test]
fn msrs_are_there_in_x2apic_mode_alone() {
    let mut core = Bare::default();
    for mut a in [xapic(), {
        let mut a = xapic();
        set(&mut a, OFF).unwrap();
        a
    }] {
        for register in 0..=255 {
            assert_eq!(a.read(register, &core), Err(Refused), "{register:#x}");
            assert_eq!(a.write(register, 0, &mut core), Err(Refused), "{register:#x}");
        }
    }
}

#[test]
fn init_resets_the_registers_and_leaves_the_mode() {
    for (mut a, base) in [(enabled(), X2APIC), (xapic(), XAPIC)] {
        a.request(0x41);
        a.init();
        assert_eq!(a.base(), base);
        assert!(a.quiet() && !a.accepts());
        assert_eq!(a.timer_vector(), None);
    }
    let mut off = xapic();
    set(&mut off, OFF).unwrap();
    off.init();
    assert_eq!(off.base(), OFF);
}

#[test]
fn the_page_moves_where_there_is_room() {
    let mut a = xapic();
    let free = |at| at == 0xFED4_0000;
    assert_eq!(a.write_base(0xFED4_0900, BITS, free), Ok(WriteEffect::None));
    assert_eq!(a.page(), Some(0xFED4_0000));
    assert_eq!(a.write_base(0x10_0900, BITS, free), Err(Refused));
    assert_eq!(a.page(), Some(0xFED4_0000), "what is refused has changed nothing");
    assert_eq!(a.write_base(XAPIC, BITS, nowhere), Ok(WriteEffect::None), "home is always free");
    // Without a page there is nothing to make room for.
    assert_eq!(a.write_base(0, BITS, nowhere).map(|_| a.base()), Ok(0x100));
    assert_eq!(a.write_base(0x800, BITS, nowhere), Err(Refused));
}

#[test]
fn disabled_by_software_it_keeps_what_it_has_and_accepts_no_more() {
    let mut core = Bare::default();
    for page in [false, true] {
        let mut a = if page { xapic() } else { enabled() };
        let mut svr = |a: &mut LocalApic, value: u64| match page {
            true => a.store(0xF0, 4, value, &mut core),
            false => a.write(SVR, value, &mut core).unwrap(),
        };
        a.request(0x41);
        assert!(matches!(svr(&mut a, 0xFF), WriteEffect::Timer(TimerSetup { masked: true, .. })));
        a.request(0x51);
        assert_eq!(a.deliverable(), Some(0x41), "what was pending stays");
        a.accepted(0x41);
        assert_eq!(a.deliverable(), None, "what came later is lost");
        assert!(!a.exitless());
        svr(&mut a, 0x1FF);
        a.request(0x51);
        assert_eq!(a.deliverable(), Some(0x51));
    }
}

#[test]
fn the_timers_vector_is_none_while_it_is_masked_or_the_apic_disabled() {
    let (mut a, mut core) = (LocalApic::new(0), Bare::default());
    assert_eq!(a.timer_vector(), None);
    a.write(LVT_TIMER, 0xEC, &mut core).unwrap();
    assert_eq!(a.timer_vector(), None, "disabled by software: the entry stays masked");
    assert_eq!(a.read(LVT_TIMER, &core), Ok(0x1_00EC));
    a.write(SVR, 0x1FF, &mut core).unwrap();
    assert_eq!(a.timer_vector(), None, "masked since");
    a.write(LVT_TIMER, 0xEC, &mut core).unwrap();
    assert_eq!(a.timer_vector(), Some(0xEC));
    // Only reachable together by a register file that was put together wrongly.
    a.svr = 0xFF;
    assert_eq!(a.timer_vector(), None);
}

#[test]
fn ids_and_logical_ids_of_x2apic_mode() {
    let core = Bare::default();
    for (id, logical) in [(0, 1), (1, 2), (15, 0x8000), (16, 0x1_0001), (35, 0x2_0008)] {
        let a = LocalApic::new(id);
        assert_eq!((a.read(ID, &core), a.read(LDR, &core)), (Ok(id.into()), Ok(logical)));
        assert!(Destination::Logical(logical as u32).includes(id, 99, a.addressing()));
    }
}

#[test]
fn nothing_was_ever_level_triggered() {
    let mut a = enabled();
    (16..=255).for_each(|v| a.request(v));
    for register in TMR..IRR {
        assert_eq!(a.read(register, &Bare::default()), Ok(0));
    }
    assert_eq!(a.read(IRR, &Bare::default()), Ok(0xFFFF_0000));
    assert_eq!(a.read(IRR + 7, &Bare::default()), Ok(0xFFFF_FFFF));
}

#[test]
fn an_error_is_told_of_once_until_it_is_looked_at() {
    let (mut a, mut core) = (enabled(), Bare::default());
    a.write(LVT_ERROR, 0xE1, &mut core).unwrap();
    let told = WriteEffect::Interrupt { destination: Destination::Itself, vector: 0xE1 };
    assert_eq!(a.write(ICR, 3, &mut core), Ok(told));
    assert_eq!(a.write(ICR, 3, &mut core), Ok(WriteEffect::None));
    a.request(4);
    assert!(a.quiet());
    a.write(ESR, 0, &mut core).unwrap();
    assert_eq!(a.read(ESR, &core), Ok((ERROR_SEND_VECTOR | ERROR_RECEIVE_VECTOR).into()));
    a.request(4);
    assert_eq!(a.deliverable(), Some(0xE1));
    a.write(ESR, 0, &mut core).unwrap();
    for silent in [0x1_00E1, 0x4E1, 0x0F] {
        a.write(LVT_ERROR, silent, &mut core).unwrap();
        assert_eq!(a.write(SELF_IPI, 0, &mut core), Ok(WriteEffect::None), "{silent:#x}");
        a.write(ESR, 0, &mut core).unwrap();
    }
}

/// Words of vectors are as each of them by itself: what isn't received is reported then, too.
#[test]
fn vectors_come_by_the_word_as_they_come_one_by_one() {
    let mut core = Bare::default();
    let mut told = enabled();
    told.write(0x37, 0xE3, &mut core).unwrap();
    for apic in [enabled(), told, LocalApic::new(0)] {
        for (index, bits) in [(0, 1 << 15), (0, 1 << 3 | 1 << 16 | 1 << 63), (1, 3), (3, 1 << 63)] {
            let (mut one, mut word) = (apic.clone(), apic.clone());
            let vectors = (0..64).filter(|bit| bits >> bit & 1 != 0);
            vectors.for_each(|bit| one.request((64 * index + bit) as u8));
            word.request_word(index, bits);
            for register in 0x20..=0x28 {
                let of = |a: &LocalApic| a.read(register, &core);
                assert_eq!(of(&word), of(&one), "{register:#x} by {bits:#x} of {index}");
            }
        }
    }
}

#[test]
fn the_timers_registers_are_taken_over() {
    let (mut a, core) = (enabled(), Bare::default());
    a.adopt_timer(1000, 0xFFFF_FFFF);
    assert_eq!((a.read(TIMER_INITIAL, &core), a.read(TIMER_DIVIDE, &core)), (Ok(1000), Ok(0b1011)));
}

proptest! {
    /// A walk through the modes against a model of what the manuals say.
    #[test]
    fn any_walk(steps in proptest::collection::vec((0u8..8, 0u64..4, any::<u8>()), 0..200)) {
        let (mut a, mut core) = (LocalApic::new(0), Bare::default());
        let (mut mode, mut on, mut pending) = (ApicMode::X2apic, false, VectorSet::EMPTY);
        for (step, bits, vector) in steps {
            match step {
                0..3 => {
                    use ApicMode::*;
                    let to = [Disabled, Disabled, Xapic, X2apic][bits as usize];
                    let allowed = bits != 1 && !matches!((mode, to), (Disabled, X2apic) | (X2apic, Xapic));
                    prop_assert_eq!(set(&mut a, OFF | bits << 10).is_ok(), allowed);
                    if allowed {
                        if to == Disabled {
                            (on, pending) = (false, VectorSet::EMPTY);
                        }
                        mode = to;
                    }
                }
                3 => {
                    let value = u64::from(vector) | (bits & 1) << 8;
                    let done = match mode {
                        ApicMode::Xapic => { a.store(0xF0, 4, value, &mut core); true }
                        _ => a.write(SVR, value, &mut core).is_ok(),
                    };
                    prop_assert_eq!(done, mode != ApicMode::Disabled);
                    if done {
                        on = bits & 1 != 0;
                    }
                }
                4 => {
                    a.init();
                    (on, pending) = (false, VectorSet::EMPTY);
                }
                _ => {
                    a.request(vector);
                    if on && vector >= 16 {
                        pending.insert(vector);
                    }
                }
            }
            prop_assert_eq!(a.mode(), mode);
            prop_assert_eq!(a.exitless(), on && mode == ApicMode::X2apic);
            prop_assert_eq!(a.page().is_some(), mode == ApicMode::Xapic);
            prop_assert_eq!(a.addressing().present(), mode != ApicMode::Disabled);
            prop_assert_eq!(a.requested, pending);
        }
    }
}
