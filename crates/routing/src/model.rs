//! The routes under loom, which tries every interleaving of the threads: their own code, beside a
//! unit that goes by old entries for as long as it may, and messages that take their time.
//!
//! As hostile as hardware may be: a unit that knows an entry goes by what it knows until that is
//! invalidated; a message arrives whenever it likes, also after a completed wait, which only says
//! that it has left the unit; but then before the grace period is over.
//!
//! Guarantees: an interrupt that is sent while its source is rebound, and while the vCPUs of a
//! shared core come and go, arrives once, and is taken for what its entry was written for. It is
//! the same for a device behind a unit and for a paravirtual function whose sidecore calls. Every
//! property has variants with one step wrong, which loom must catch.
extern crate std;

mod world;

use crate::unbind;
use loom::sync::Arc;
use loom::thread;
use world::{A, B, C, Meant, PREEMPTIONS, SOURCES, Sender, World, Wrong, device};

/// The shared core goes from A to B, while a device signals by the first source; another core
/// rebinds it `to` elsewhere meanwhile, or nowhere. Afterwards it signals once more.
fn check(wrong: Wrong, aliases: u8, first: Meant, change: Option<Option<Meant>>) {
    check_sender(Sender::Unit, wrong, aliases, first, change);
}

/// The same, with a sidecore that calls by it.
fn check_sidecore(wrong: Wrong, aliases: u8, first: Meant, change: Option<Option<Meant>>) {
    check_sender(Sender::Sidecore, wrong, aliases, first, change);
}

fn check_sender(
    sender: Sender,
    wrong: Wrong,
    aliases: u8,
    first: Meant,
    change: Option<Option<Meant>>,
) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        let world = Arc::new(World::new(aliases, sender, wrong));
        world.begin(first);
        let entry = SOURCES[0];
        let device_signals = {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(number) = world.send(entry) {
                    world.arrive(number);
                }
            })
        };
        let other = change.map(|to| {
            let world = world.clone();
            thread::spawn(move || {
                // What was bound, as `rebind` gave it: the guest's vector, since none is the
                // host's.
                let bound = first;
                match to {
                    Some(to) => assert!(world.rebind(entry, Some(bound), to).is_some()),
                    None => {
                        let (vcpu, bound) = bound;
                        let units = world.driver(None, 0);
                        let source = (device(entry), entry);
                        unbind(&units, source, (&world.routes[vcpu], bound));
                    }
                }
            })
        });
        let (mut taken, mut owns) = world.switch();
        device_signals.join().unwrap();
        other.into_iter().for_each(|other| other.join().unwrap());
        // The grace period is over by now.
        taken += world.serve(B, owns);
        if !owns {
            let drain = || taken += world.hand_over();
            owns = world.core.retarget_to_guest(&world.driver(None, 0), B, drain);
            assert!(owns, "B owns its vectors in the end");
        }
        let wanted = change.unwrap_or(Some(first));
        let last = world.send(entry);
        assert_eq!(last.is_some(), wanted.is_some(), "it signals if it is bound");
        if let Some(number) = last {
            assert_eq!(Some(world.flying()), wanted, "it signals by its new route");
            world.arrive(number);
        }
        taken += world.serve(B, owns) + world.serve_own();
        assert_eq!(taken, world.sent(), "each arrives once");
    });
}

#[test]
fn what_is_sent_at_a_switch_is_its_senders() {
    check(Wrong::Nothing, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_nobody_waits_for_the_unit() {
    check(Wrong::DoesNotWait, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_no_grace_for_late_messages() {
    check(Wrong::NoGrace, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_what_is_pending_is_left_to_the_next() {
    check(Wrong::HandsNothingOver, 5, (A, 0x41), None);
}

#[test]
fn a_source_gets_another_vector_while_its_vcpu_leaves() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_gets_another_vector_where_both_have_one_alias() {
    check(Wrong::Nothing, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_vector_released_while_its_entry_sends_it() {
    check(Wrong::ReleasesFirst, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_goes_to_a_vcpu_with_a_core_of_its_own() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_source_that_is_rebound_is_retargeted() {
    check(Wrong::StaysBound, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_source_that_is_rebound_keeps_its_vector() {
    check(Wrong::KeepsItsVector, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
fn a_source_goes_to_another_vcpu_of_its_core() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((B, 0x42))));
}

#[test]
fn a_source_comes_from_a_vcpu_with_a_core_of_its_own() {
    check(Wrong::Nothing, 5, (C, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_is_unbound_while_its_vcpu_leaves() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(None));
}

#[test]
fn what_a_sidecore_sends_at_a_switch_is_its_senders() {
    check_sidecore(Wrong::Nothing, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_nobody_waits_for_the_sidecore() {
    check_sidecore(Wrong::DoesNotSettle, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_no_grace_for_late_calls() {
    check_sidecore(Wrong::NoGrace, 5, (A, 0x41), None);
}

#[test]
fn a_paravirtual_source_gets_another_vector_while_its_vcpu_leaves() {
    check_sidecore(Wrong::Nothing, 5, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_paravirtual_source_gets_another_vector_where_both_have_one_alias() {
    check_sidecore(Wrong::Nothing, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_vector_released_while_a_sidecore_sends_it() {
    check_sidecore(Wrong::ReleasesFirst, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_paravirtual_source_goes_to_a_vcpu_with_a_core_of_its_own() {
    check_sidecore(Wrong::Nothing, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
fn a_paravirtual_source_goes_to_another_vcpu_of_its_core() {
    check_sidecore(Wrong::Nothing, 5, (A, 0x41), Some(Some((B, 0x42))));
}

#[test]
fn a_paravirtual_source_comes_from_a_vcpu_with_a_core_of_its_own() {
    check_sidecore(Wrong::Nothing, 5, (C, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_paravirtual_source_is_unbound_while_its_vcpu_leaves() {
    check_sidecore(Wrong::Nothing, 5, (A, 0x41), Some(None));
}
