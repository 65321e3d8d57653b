//! Switching on what firmware, or an earlier system, left on.

use super::model::{CAP, ECAP, Model};
use crate::Remapping;
use crate::vtd::Unit;
use crate::vtd::registers::*;

const ON: u32 = TE | QIE | IRE | CFI | SRTP | SIRTP;

/// Switches on a unit that `left` has set up, and gives the commands for that.
fn taken_over(left: impl FnOnce(&mut super::model::State)) -> (Model, Vec<u32>) {
    let model = Model::new(CAP | 1 << 5, ECAP);
    model.with(left);
    let mut unit = Unit::enable(model.clone(), model.clone(), 256, Remapping::On).unwrap();
    model.assert_settled();
    assert!(!unit.faults(|fault| panic!("{fault}")), "an old fault");
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
    let commands = model.with(|state| {
        assert_eq!((state.pmen, state.fsts), (0, 0));
        state.commands.split_off(0)
    });
    (model, commands)
}

/// What kept devices from memory and processors goes on to, up to the moment when ours does.
#[test]
fn protection_that_is_on_stays_on() {
    let (model, commands) = taken_over(|state| {
        state.gsts = ON | EAFL;
        state.irta = EIME;
        state.pmen = EPM;
        state.records[0] = (0, 1 << 63 | 5 << 32);
    });
    assert_eq!(commands, [EAFL, QIE, SRTP, QIE, SIRTP, CFI]);
    assert!((0..=u16::MAX).all(|source| model.context(source).is_none()));
}

#[test]
fn another_kind_of_table_is_changed_while_it_is_off() {
    let (_, commands) = taken_over(|state| state.gsts = ON);
    assert_eq!(commands, [QIE, IRE, SRTP, QIE, SIRTP, CFI, IRE], "8-bit destinations");
    let (_, commands) = taken_over(|state| {
        (state.gsts, state.irta, state.rtaddr) = (ON, EIME, 1 << 10);
    });
    assert_eq!(commands, [QIE, TE, SRTP, QIE, SIRTP, CFI, TE], "scalable mode");
}

/// Errors of before belong to whoever caused them (VT-d 11.4.9: they survive a warm reset).
#[test]
fn old_errors_dont_fail_the_first_invalidation() {
    for stale in [IQE, ICE, ITE, PFO, FSTS_STICKY] {
        // The queue off, or halted with descriptors in it.
        for (gsts, iqt) in [(0, 0), (QIE, 0), (QIE, 0x40)] {
            taken_over(|state| {
                (state.gsts, state.fsts, state.iqt) = (gsts, stale, iqt);
                // Halted, or it goes on by itself.
                if stale & (IQE | ITE) == 0 {
                    state.iqh = iqt;
                }
            });
        }
    }
}

/// Descriptors of before are waited for.
#[test]
fn a_queue_that_is_busy_is_waited_for() {
    let (_, commands) = taken_over(|state| {
        (state.gsts, state.irta) = (ON, EIME);
        // A global invalidation of contexts.
        (state.iqa, state.iqt) = (0x8000, 0x10);
        state.ram.extend([(0x8000, 1 | 1 << 4), (0x8008, 0)]);
    });
    assert_eq!(commands, [QIE, SRTP, QIE, SIRTP, CFI]);
}

/// As a machine without interrupt remapping was left by a system that could.
#[test]
fn without_remapping_its_interrupts_stop_being_remapped() {
    let model = Model::new(CAP, ECAP);
    model.with(|state| (state.gsts, state.irta) = (TE | IRE | SRTP | SIRTP, EIME));
    Unit::enable(model.clone(), model.clone(), 256, Remapping::Off).unwrap();
    model.with(|state| assert_eq!(state.commands, [IRE, SRTP, QIE]));
}
