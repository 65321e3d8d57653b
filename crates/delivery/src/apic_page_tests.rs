//! The registers' page of xAPIC mode.

use super::mode_tests::xapic;
use super::tests::Bare;
use super::*;
use proptest::prelude::*;

fn load(a: &mut LocalApic, register: u8) -> u64 {
    a.load(u16::from(register) << 4, 4, &Bare::default())
}

fn store(a: &mut LocalApic, register: u8, value: u64) -> WriteEffect {
    a.store(u16::from(register) << 4, 4, value, &mut Bare::default())
}

const DFR: u8 = 0x0E;
const ICR_HIGH: u8 = 0x31;

#[test]
fn the_id_is_in_the_upper_eight_bits_and_stays() {
    let mut a = LocalApic::new(7);
    a.write_base(0xFEE0_0000, 40, |_| false).unwrap();
    a.write_base(0xFEE0_0800, 40, |_| false).unwrap();
    assert_eq!(load(&mut a, ID), 7 << 24);
    assert_eq!(store(&mut a, ID, 9 << 24), WriteEffect::None);
    assert_eq!(load(&mut a, ID), 7 << 24);
    assert_eq!(load(&mut a, VERSION), VERSION_VALUE.into());
}

#[test]
fn logical_destinations_are_the_guests_to_choose() {
    let mut a = xapic();
    assert_eq!((load(&mut a, LDR), load(&mut a, DFR)), (0, 0xFFFF_FFFF));
    assert!(!Destination::Logical8(0x01).includes(0, 1, a.addressing()));
    store(&mut a, LDR, 0x23FF_FFFF);
    assert_eq!(load(&mut a, LDR), 0x2300_0000);
    assert!(Destination::Logical8(0x02).includes(0, 1, a.addressing()), "flat");
    store(&mut a, DFR, 0);
    assert_eq!(load(&mut a, DFR), 0x0FFF_FFFF);
    assert!(!Destination::Logical8(0x02).includes(0, 1, a.addressing()), "cluster 0");
    assert!(Destination::Logical8(0x22).includes(0, 1, a.addressing()));
    store(&mut a, DFR, 0xF000_0000);
    assert_eq!(load(&mut a, DFR), 0xFFFF_FFFF);
    a.init();
    assert_eq!((load(&mut a, LDR), load(&mut a, DFR)), (0, 0xFFFF_FFFF));
}

#[test]
fn a_command_is_sent_by_its_lower_half() {
    let mut a = xapic();
    assert_eq!(store(&mut a, ICR_HIGH, 0x05FF_FFFF), WriteEffect::None);
    assert_eq!(load(&mut a, ICR_HIGH), 0x0500_0000);
    let (physical, logical) = (Destination::Physical(5), Destination::Logical8(5));
    let vector = 0x50;
    assert_eq!(
        store(&mut a, ICR, 0x1050),
        WriteEffect::Interrupt { destination: physical, vector }
    );
    assert_eq!(load(&mut a, ICR), 0x50, "nothing is ever on its way");
    assert_eq!(store(&mut a, ICR, 0x850), WriteEffect::Interrupt { destination: logical, vector });
    assert_eq!(store(&mut a, ICR, 0x950), WriteEffect::OneOf { destination: logical, vector });
    assert_eq!(store(&mut a, ICR, 0x400), WriteEffect::Nmi(physical));
    assert_eq!(store(&mut a, ICR, 0x4500), WriteEffect::Init(physical));
    assert_eq!(store(&mut a, ICR, 0x8500), WriteEffect::None, "the end of an INIT");
    let destination = physical;
    assert_eq!(store(&mut a, ICR, 0x608), WriteEffect::StartUp { destination, page: 8 });
    for none in [0x250, 0x350, 0x750] {
        assert_eq!(store(&mut a, ICR, none), WriteEffect::None, "{none:#x}");
    }
    store(&mut a, ICR_HIGH, 0xFF00_0000);
    let destination = Destination::All;
    assert_eq!(store(&mut a, ICR, 0x50), WriteEffect::Interrupt { destination, vector });
}

#[test]
fn every_completion_counts_whatever_is_written() {
    let mut a = xapic();
    for value in [0, 1, 0xFFFF_FFFF] {
        a.request(0x41);
        a.accepted(0x41);
        assert_eq!(store(&mut a, EOI, value), WriteEffect::Completed(Some(0x41)));
    }
    assert_eq!(load(&mut a, EOI), 0);
}

#[test]
fn bits_that_mean_nothing_are_dropped() {
    let (mut a, mut core) = (xapic(), Bare::default());
    store(&mut a, SVR, 0xFFFF_FFFF);
    assert_eq!(load(&mut a, SVR), 0x1FF);
    store(&mut a, TIMER_DIVIDE, 0xFFFF_FFFF);
    assert_eq!(load(&mut a, TIMER_DIVIDE), 0b1011);
    let kept = [0x3_00FF, 0x1_07FF, 0x1_07FF, 0x1_A7FF, 0x1_A7FF, 0x1_07FF];
    for (register, kept) in (LVT_TIMER..).zip(kept) {
        store(&mut a, register, 0xFFFF_FFFF);
        assert_eq!(load(&mut a, register), kept, "{register:#x}");
    }
    a.store(0x80, 4, 0x1234, &mut core);
    assert_eq!(a.load(0x80, 4, &core), 0x34);
    let effect = a.store(0x380, 4, 1000, &mut core);
    assert!(matches!(effect, WriteEffect::Timer(TimerSetup { initial: Some(1000), .. })));
    for register in [VERSION, PPR, ISR, TMR, IRR, TIMER_CURRENT, 0x09, 0x0C] {
        let before = load(&mut a, register);
        assert_eq!(store(&mut a, register, 0xFFFF_FFFF), WriteEffect::None);
        assert_eq!(load(&mut a, register), before, "{register:#x}");
    }
    assert_eq!(a.esr_latched, 0, "to write what is only read is no error");
}

#[test]
fn what_is_not_there_is_an_error() {
    for register in [0x00, 0x01, 0x04, 0x07, 0x29, 0x2F, 0x3A, 0x3F, 0x40, 0xFF] {
        let mut a = xapic();
        assert_eq!(load(&mut a, register), 0);
        assert_eq!(load(&mut a, ESR), 0, "not before it is written");
        store(&mut a, ESR, 0xFFFF);
        assert_eq!(load(&mut a, ESR), 0x80, "load {register:#x}");
        store(&mut a, LVT_ERROR, 0xE1);
        assert_eq!(store(&mut a, register, 0x50), WriteEffect::None);
        assert_eq!(a.deliverable(), Some(0xE1), "store {register:#x}");
        store(&mut a, ESR, 0);
        assert_eq!(load(&mut a, ESR), 0x80);
        store(&mut a, ESR, 0);
        assert_eq!(load(&mut a, ESR), 0);
    }
}

#[test]
fn a_register_is_four_bytes_of_sixteen() {
    let (mut a, mut core) = (xapic(), Bare::default());
    assert_eq!(a.load(0x30, 8, &core), VERSION_VALUE.into());
    assert_eq!(a.load(0x30, 1, &core), 0x14);
    assert_eq!(a.load(0x32, 2, &core), 5);
    assert_eq!(a.load(0x33, 4, &core), 0);
    for within in 4..16 {
        assert_eq!(a.load(0x30 + within, 1, &core), 0);
    }
    for (offset, size) in [(0xF0, 1), (0xF0, 2), (0xF0, 8), (0xF1, 4), (0xF4, 4), (0xFC, 4)] {
        assert_eq!(a.store(offset, size, 0, &mut core), WriteEffect::None);
        assert_eq!(a.load(0xF0, 4, &core), 0x1FF, "{size} bytes at {offset:#x}");
    }
    assert_eq!(a.esr_latched, 0);
}

proptest! {
    #[test]
    fn no_access_panics_or_leaves_xapic_mode(
        accesses in proptest::collection::vec((0u16..0x1000, 0u8..9, any::<u64>(), any::<bool>()), 0..200)
    ) {
        let (mut a, mut core) = (xapic(), Bare::default());
        for (offset, size, value, usual) in accesses {
            let (offset, size) = if usual { (offset & 0x3F0, 4) } else { (offset, size) };
            let effect = a.store(offset, size, value, &mut core);
            if let WriteEffect::Interrupt { vector, .. } | WriteEffect::OneOf { vector, .. } = effect {
                prop_assert!(vector >= 16);
            }
            let seen = a.load(offset, size, &core);
            prop_assert!(seen <= 0xFFFF_FFFF);
            if let Some(d) = a.deliverable() {
                a.accepted(d);
            }
            prop_assert_eq!(a.mode(), ApicMode::Xapic);
        }
    }

    /// What both modes have reads the same in both.
    #[test]
    fn both_modes_show_the_same_registers(
        stores in proptest::collection::vec((8u16..0x3F, any::<u32>()), 0..50)
    ) {
        let (mut a, mut core) = (xapic(), Bare::default());
        for (register, value) in stores {
            // Not another's, nor an error.
            if ![0x0D, 0x0E, 0x30, 0x31].contains(&register) {
                a.store(register << 4, 4, value.into(), &mut core);
            }
        }
        let mut x2 = a.clone();
        x2.write_base(0xFEE0_0C00, 40, |_| false).unwrap();
        for register in 0x08..0x3F {
            if let Ok(value) = x2.read(register, &core) && ![LDR, ICR].contains(&register) {
                prop_assert_eq!(a.load(u16::from(register) << 4, 4, &core), value, "{:#x}", register);
            }
        }
    }
}
