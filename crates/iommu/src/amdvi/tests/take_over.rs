//! Switching on what firmware, or an earlier system, left on. The model panics at a moment when a
//! device could reach something, and at a change of what is in use.

use super::model::{Done, FEATURES, Model, State};
use super::{REMAPS, RUNS, enable};
use crate::Remapping;
use crate::amdvi::registers::*;

/// Switches on a unit that `left` has set up, and gives what its control register held.
fn taken_over(efr: u64, left: impl FnOnce(&mut State)) -> (Model, Vec<u64>) {
    let model = Model::new(efr);
    model.with(left);
    let mut unit = enable(&model, Remapping::On).unwrap();
    model.assert_settled();
    assert!(!unit.faults(|fault| panic!("{fault}")), "an old fault");
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    assert!((0..=u16::MAX).all(|id| model.domain(id).is_none()));
    let controls = model.with(|state| {
        assert_eq!((state.exclusion, state.sticky), ((0, 0), 0));
        state.controls.split_off(0)
    });
    (model, controls)
}

#[test]
fn protection_that_is_on_stays_on() {
    let all = REMAPS | COHERENT | RUNS;
    let other = SEGMENTS | ROUTING | GUEST_LOG | PAGE_REQUESTS | EVENT_INTERRUPT | 1 << 16;
    for left in [0, COHERENT, WIDE_ENTRIES, REMAPS, other, REMAPS | COHERENT | other] {
        let (model, controls) = taken_over(FEATURES, |state| state.left_on(left));
        let kept = left & !(EVENT_INTERRUPT | GUEST_LOG | PAGE_REQUESTS);
        assert_eq!(controls, [kept | ENABLE, kept | RUNS, all], "{left:#x}");
        // All of the old is forgotten before tables are read in another way, and after.
        model.with(|state| assert_eq!(state.done, [Done::All; 2]));
    }
}

/// One that was switched off again has its caches yet.
#[test]
fn what_an_earlier_system_left_cached_is_forgotten() {
    let (_, controls) = taken_over(FEATURES, |state| {
        state.left_on(0);
        (state.control, state.runs) = (0, 0);
    });
    assert_eq!(controls, [0, REMAPS | COHERENT, REMAPS | COHERENT | RUNS]);
}

/// One that has no command for everything.
#[test]
fn everything_is_forgotten_piece_by_piece() {
    for left_on in [false, true] {
        let (model, _) = taken_over(FEATURES & !EFR_INVALIDATE_ALL, |state| {
            if left_on {
                state.left_on(0);
            }
        });
        model.with(|state| {
            let of = |what: fn(&Done) -> bool| state.done.iter().filter(|d| what(d)).count();
            let times = if left_on { 2 << 16 } else { 1 << 16 };
            assert_eq!(of(|d| matches!(d, Done::Device(_))), times);
            assert_eq!(of(|d| matches!(d, Done::Interrupts(_))), times);
            assert_eq!(of(|d| matches!(d, Done::AllPages(_))), times);
        });
    }
}

#[test]
fn without_remapping_its_interrupts_stop_being_remapped() {
    let model = Model::new(FEATURES);
    model.with(|state| state.left_on(WIDE_ENTRIES | X2APIC));
    enable(&model, Remapping::Off).unwrap();
    model.with(|state| assert_eq!(state.control, RUNS | COHERENT | X2APIC_OWN));
}

/// Commands that stand still, of a unit that halted at one: nobody waits for them.
#[test]
fn a_unit_that_halted_is_taken_over() {
    taken_over(FEATURES, |state| {
        state.left_on(0);
        (state.runs, state.command_head) = (EVENT_RUN, 0x20);
    });
}
