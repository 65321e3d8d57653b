//! The rules one by one.

use super::*;

const HOST: VectorSet = VectorSet::of(&[0xF1, 0xF2, 0xFE, 0xFF]);

const fn of(slot: usize, vectors: &[u8]) -> Arrived {
    Arrived::Of { slot, vectors: VectorSet::of(vectors) }
}

/// The owner leaves, as the protocol has it.
fn switch(v: &mut CoreVectors, next: usize) {
    v.leave();
    v.left();
    v.enter(next);
}

#[test]
fn the_owner_by_its_own_vector_and_others_by_an_alias() {
    let mut v = CoreVectors::new(HOST, 2);
    let alias = v.claim(0, 0x41).unwrap();
    assert!(alias >= FIRST_RESERVED && !HOST.contains(alias));
    assert_eq!((v.physical(0, 0x41), v.arrived(0x41)), (Some(alias), Arrived::Nobody));
    v.enter(0);
    assert_eq!((v.physical(0, 0x41), v.arrived(0x41)), (Some(0x41), of(0, &[0x41])));
    assert_eq!(v.arrived(alias), of(0, &[0x41]), "what was in flight when it came");
    v.leave();
    assert_eq!((v.physical(0, 0x41), v.arrived(0x41)), (Some(alias), of(0, &[0x41])));
    v.left();
    assert_eq!((v.owner(), v.arrived(0x41)), (None, Arrived::Nobody));
}

#[test]
fn the_same_vector_of_two_guests_has_two_aliases() {
    let mut v = CoreVectors::new(HOST, 2);
    let (a, b) = (v.claim(0, 0x41).unwrap(), v.claim(1, 0x41).unwrap());
    assert_eq!((v.arrived(a), v.arrived(b)), (of(0, &[0x41]), of(1, &[0x41])));
    v.enter(1);
    assert_eq!((v.physical(0, 0x41), v.physical(1, 0x41)), (Some(a), Some(0x41)));
}

#[test]
fn class_f_and_the_hosts_vectors_never_arrive_by_themselves() {
    let mut v = CoreVectors::new(HOST, 2);
    v.enter(0);
    for guest in [0xF1, 0xF3, 0xFF] {
        let alias = v.claim(0, guest).unwrap();
        assert_eq!((v.physical(0, guest), v.arrived(alias)), (Some(alias), of(0, &[guest])));
        v.release(0, guest);
        switch(&mut v, 0);
    }
    assert_eq!((v.arrived(0xF1), v.arrived(0xFF)), (Arrived::Host, Arrived::Host));
    for exception in [0, 14, 31] {
        assert_eq!((v.claim(0, exception), v.arrived(exception)), (None, Arrived::Nobody));
    }
}

#[test]
fn claims_are_counted() {
    let mut v = CoreVectors::new(HOST, 2);
    let alias = v.claim(0, 0x41);
    assert_eq!(v.claim(0, 0x41), alias);
    v.release(0, 0x41);
    assert_eq!(v.alias(0, 0x41), alias);
    v.release(0, 0x41);
    v.release(0, 0x41);
    assert_eq!((v.alias(0, 0x41), v.physical(0, 0x41)), (None, None));
    assert_eq!(v.arrived(alias.unwrap()), of(0, &[0x41]), "a late one is still its");
    assert_eq!(v.claim(0, 0x41), alias);
}

#[test]
fn an_alias_is_reused_late_and_remembers_until_its_owner_left() {
    // Two aliases each: class F less four of the host's and 0xF3 to 0xF9.
    let host = VectorSet::of(&[0xF0, 0xF1, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFE]);
    let mut v = CoreVectors::new(host, 2);
    let a = v.claim(0, 0x41).unwrap();
    v.release(0, 0x41);
    let b = v.claim(0, 0x42).unwrap();
    assert_ne!(a, b, "one never used comes first");
    assert_eq!(v.claim(0, 0x43), Some(a));
    assert_eq!(v.arrived(a), of(0, &[0x41, 0x43]), "one for 0x41 may be on its way");
    v.enter(0);
    switch(&mut v, 1);
    assert_eq!(v.arrived(a), of(0, &[0x43]));
    // Released while it leaves: not before the next time.
    v.release(0, 0x43);
    switch(&mut v, 0);
    v.leave();
    v.release(0, 0x42);
    v.left();
    assert_eq!(v.claim(0, 0x44), Some(a), "the one released longest ago");
    assert_eq!(v.arrived(a), of(0, &[0x43, 0x44]));
}

/// A slot that leaves settles its own aliases, and leaves those of others to their turn.
#[test]
fn each_slot_forgets_what_it_released_when_it_has_left_itself() {
    // One alias each.
    let host = VectorSet::of(&[
        0xF0, 0xF1, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA, 0xFB, 0xFC,
    ]);
    let mut v = CoreVectors::new(host, 2);
    let aliases = [0, 1].map(|slot| v.claim(slot, 0x41).unwrap());
    [0, 1].into_iter().for_each(|slot| v.release(slot, 0x41));
    v.enter(0);
    switch(&mut v, 1);
    for slot in [0, 1] {
        assert_eq!(v.claim(slot, 0x42), Some(aliases[slot]));
    }
    assert_eq!(v.arrived(aliases[0]), of(0, &[0x42]));
    assert_eq!(v.arrived(aliases[1]), of(1, &[0x41, 0x42]), "its turn comes");
    switch(&mut v, 0);
    assert_eq!(v.arrived(aliases[1]), of(1, &[0x42]));
}

#[test]
fn beyond_its_quota_a_place_shares_its_last_alias_and_no_other_place_suffers() {
    let mut v = CoreVectors::new(HOST, 8);
    let first = v.claim(0, 0x40).unwrap();
    for guest in 0x41..0x60 {
        assert_eq!(v.claim(0, guest), Some(first));
    }
    let all: Vec<u8> = (0x40..0x60).collect();
    assert_eq!(v.arrived(first), of(0, &all));
    let mut taken = vec![first];
    for slot in 1..8 {
        let alias = v.claim(slot, 0x40).unwrap();
        assert!(!taken.contains(&alias));
        taken.push(alias);
    }
    assert_eq!((v.claim(8, 0x40), v.alias(8, 0x40)), (None, None));
}

#[test]
fn quotas_are_equal() {
    for slots in 1..=8 {
        let mut v = CoreVectors::new(HOST, slots);
        for slot in 0..slots {
            let mut mine: Vec<u8> = (0x40..0x4D).filter_map(|g| v.claim(slot, g)).collect();
            mine.dedup();
            assert_eq!(mine.len(), 12 / slots);
        }
    }
    let none = CoreVectors::new(HOST, 0);
    assert_eq!(none.arrived(0xF0), Arrived::Nobody);
}

#[test]
fn a_slot_that_is_not_there_owns_and_claims_nothing() {
    for slots in 0..=9 {
        for slot in 0..=9 {
            let mut v = CoreVectors::new(HOST, slots);
            v.enter(slot);
            let there = slot < slots.min(8);
            assert_eq!(v.owner(), there.then_some(slot), "slot {slot} of {slots}");
            assert_eq!(v.claim(slot, 0x41).is_some(), there, "slot {slot} of {slots}");
            let meaning = if there { of(slot, &[0x41]) } else { Arrived::Nobody };
            assert_eq!(v.arrived(0x41), meaning, "slot {slot} of {slots}");
        }
    }
}

#[test]
fn own_vectors_are_those_between_the_exceptions_and_class_f() {
    let mut v = CoreVectors::new(HOST, 1);
    v.enter(0);
    for guest in 0..=0xEF {
        let meaning = if guest < 32 { Arrived::Nobody } else { of(0, &[guest]) };
        assert_eq!((v.arrives_itself(guest), v.arrived(guest)), (guest >= 32, meaning));
        assert_eq!(v.claim(0, guest).is_some(), guest >= 32, "{guest:#x}");
    }
    assert!((0xF0..=0xFF).all(|guest| !v.arrives_itself(guest)));
}
