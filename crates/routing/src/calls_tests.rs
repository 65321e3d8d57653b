//! Calls, state by state. The orders are loom's (`calls_model`).

use crate::calls::{Called, Caller, Entry, PARAVIRTUAL_SEGMENT, Target, Turn, is_paravirtual};
use iommu::Bdf;
use std::cell::RefCell;

const FIRST: Target = Target { destination: 3, vector: 0x41 };
const SECOND: Target = Target { destination: u32::MAX, vector: 0xFF };

fn call(caller: &mut Caller, entry: &Entry) -> (Called, Option<Target>) {
    let mut sent = None;
    (caller.call(entry, |to| sent = Some(to)), sent)
}

fn look(caller: &mut Caller, entry: &Entry) -> (Called, Option<Target>) {
    let mut sent = None;
    (caller.call_waiting(entry, |to| sent = Some(to)), sent)
}

fn settled(turn: &Turn) -> bool {
    turn.settle(|| panic!("no turn goes on"))
}

#[test]
fn a_call_goes_where_its_entry_is_routed_to() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    assert!(turn.caller().is_none(), "one sidecore");
    assert!(!entry.unmask());
    assert_eq!(call(&mut caller, &entry), (Called::Dropped, None));
    for to in [FIRST, SECOND] {
        entry.route(Some(to));
        assert!(settled(&turn));
        assert_eq!(entry.target(), Some(to));
        assert_eq!(call(&mut caller, &entry), (Called::Sent, Some(to)));
        assert_eq!(look(&mut caller, &entry), (Called::None, None));
    }
    entry.route(None);
    assert_eq!(entry.target(), None);
    assert_eq!(call(&mut caller, &entry), (Called::Dropped, None));
    assert!(!entry.pending());
}

#[test]
fn an_entry_that_is_off_drops_calls_and_keeps_its_route() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    entry.route(Some(FIRST));
    assert_eq!(call(&mut caller, &entry), (Called::Dropped, None));
    entry.mask();
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    entry.disable();
    assert!(!entry.pending());
    assert_eq!(call(&mut caller, &entry), (Called::Dropped, None));
    assert!(!entry.unmask(), "what waited is dropped");
    assert_eq!(call(&mut caller, &entry), (Called::Sent, Some(FIRST)));
}

#[test]
fn a_call_that_waits_is_forgotten_with_its_device() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    entry.route(Some(FIRST));
    entry.mask();
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    caller.forget(&entry);
    assert!(!entry.pending() && !entry.unmask());
    assert_eq!(look(&mut caller, &entry), (Called::None, None));
    assert_eq!(call(&mut caller, &entry), (Called::Sent, Some(FIRST)));
}

#[test]
fn a_masked_entry_keeps_calls_until_it_is_unmasked() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    entry.route(Some(FIRST));
    entry.mask();
    assert!(!entry.pending());
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    assert!(entry.pending());
    assert_eq!(look(&mut caller, &entry), (Called::Waits, None), "not yet");
    entry.route(Some(SECOND));
    assert!(entry.pending(), "a route that changes loses nothing");
    assert!(entry.unmask());
    assert!(!caller.asked());
    turn.ask();
    assert!(caller.asked() && !caller.asked());
    assert_eq!(look(&mut caller, &entry), (Called::Sent, Some(SECOND)));
    assert!(!entry.pending());
    assert_eq!(look(&mut caller, &entry), (Called::None, None), "two that wait are one");
}

#[test]
fn a_call_takes_the_one_that_waits_with_it() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    entry.route(Some(FIRST));
    entry.mask();
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    assert!(entry.unmask());
    assert_eq!(call(&mut caller, &entry), (Called::Sent, Some(FIRST)));
    assert_eq!(look(&mut caller, &entry), (Called::None, None));
    // Masked once more before the sidecore looks: it goes on to wait.
    entry.mask();
    assert_eq!(call(&mut caller, &entry), (Called::Waits, None));
    assert!(entry.unmask());
    entry.mask();
    assert_eq!(look(&mut caller, &entry), (Called::Waits, None));
    entry.route(None);
    assert!(entry.unmask());
    assert_eq!(look(&mut caller, &entry), (Called::Dropped, None), "its message leads nowhere");
    assert!(!entry.pending());
}

#[test]
fn who_settles_waits_for_a_turn_that_goes_on_and_for_no_other() {
    let (turn, entry) = (Turn::new(), Entry::new());
    let mut caller = turn.caller().unwrap();
    entry.route(Some(FIRST));
    let _ = entry.unmask();
    let looks = RefCell::new(0);
    let called = caller.call(&entry, |_| {
        let waited = turn.settle(|| {
            *looks.borrow_mut() += 1;
            *looks.borrow() < 5
        });
        assert!(!waited, "the turn is too long");
    });
    assert_eq!((called, looks.take()), (Called::Sent, 5));
    assert!(settled(&turn));
    // Another sidecore takes over: its turns are counted on.
    drop(caller);
    let mut caller = turn.caller().unwrap();
    assert_eq!(call(&mut caller, &entry), (Called::Sent, Some(FIRST)));
    let called = caller.call(&entry, |_| assert!(!turn.settle(|| false)));
    assert_eq!((called, settled(&turn)), (Called::Sent, true));
}

#[test]
fn a_paravirtual_function_is_known_by_its_segment() {
    let function = Bdf::from_requester_id(8);
    assert!(!is_paravirtual(function) && !is_paravirtual(function.in_segment(0xFFFE)));
    assert!(is_paravirtual(function.in_segment(PARAVIRTUAL_SEGMENT)));
}
