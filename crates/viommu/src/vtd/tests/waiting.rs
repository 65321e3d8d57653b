//! Unmappings that wait, which the guest's tables tell of: the same guests, and what their devices
//! reach besides.

use super::machine::*;
use crate::tests::model::Pages;
use crate::{MOST, PAGE, Teardowns};
use paging::Access;
use proptest::prelude::*;

const LONGEST: u64 = 100;
const TO: u64 = 0x20_0000;

fn machine() -> (Machine, [u64; 3]) {
    Machine::waiting(4096, LONGEST).switched_on()
}

/// Maps pages one after the other, and has them looked at.
fn map(machine: &mut Machine, root: u64, at: u64, all: &[u64]) {
    for (n, word) in (0..).zip(all) {
        machine.map(root, at + n * PAGE, *word);
    }
    machine.ask(&[pages(1, at, all.len().next_power_of_two().trailing_zeros().into())]);
}

fn tear_down(machine: &mut Machine, now: u64) {
    machine.device.set_time(now);
    while machine.device.due().is_some_and(|due| now >= due) {
        machine.device.tear_down(&mut machine.unit);
    }
}

#[test]
fn a_page_that_comes_back_costs_nothing_and_stays() {
    let (mut machine, [root, ..]) = machine();
    map(&mut machine, root, 0x7000, &[TO | 3]);
    let changes = machine.unit.changes;
    for _ in 0..10 {
        map(&mut machine, root, 0x7000, &[0]);
        assert_eq!(machine.mapped(0).len(), 1, "it waits");
        map(&mut machine, root, 0x7000, &[TO | 3]);
    }
    assert_eq!(machine.unit.changes, changes);
    let back = Teardowns { came_back: 10 * PAGE, carried_out: 0 };
    assert_eq!((machine.device.teardowns(), machine.device.due()), (back, None));
    tear_down(&mut machine, 10 * LONGEST);
    assert_eq!(machine.mapped(0).len(), 1, "and isn't torn down later");
}

#[test]
fn it_is_torn_down_at_its_time() {
    let (mut machine, [root, ..]) = machine();
    map(&mut machine, root, 0x7000, &[TO | 3]);
    map(&mut machine, root, 0x7000, &[0]);
    assert_eq!(machine.device.due(), Some(LONGEST));
    machine.device.set_time(LONGEST - 1);
    machine.device.tear_down(&mut machine.unit);
    assert_eq!(machine.mapped(0).len(), 1);
    tear_down(&mut machine, LONGEST);
    assert_eq!(machine.mapped(0), Pages::new());
}

#[test]
fn nothing_waits_of_who_looks_for_nothing() {
    let (mut machine, [root, ..]) = machine();
    machine.device.set_strict(true);
    map(&mut machine, root, 0x7000, &[TO | 3]);
    map(&mut machine, root, 0x7000, &[0]);
    assert_eq!((machine.mapped(0), machine.device.due()), (Pages::new(), None));
}

/// In its place, by a word that is written over the other: the guest is told when the first is
/// gone.
#[test]
fn what_is_mapped_otherwise_is_gone_at_once() {
    let (mut machine, [root, ..]) = machine();
    for words in [[TO | 3, (TO + PAGE) | 3], [TO | 3, TO | 1]] {
        for between in [false, true] {
            map(&mut machine, root, 0x7000, &words[..1]);
            if between {
                map(&mut machine, root, 0x7000, &[0]);
            }
            map(&mut machine, root, 0x7000, &words[1..]);
            assert_eq!(machine.mapped(0), machine.model(root), "{words:x?}");
            assert_eq!(machine.device.due(), None);
        }
    }
}

#[test]
fn a_part_that_comes_back_is_mapped_anew() {
    let (mut machine, [root, ..]) = machine();
    let all = [TO | 3, (TO + PAGE) | 3, (TO + 2 * PAGE) | 3, (TO + 3 * PAGE) | 3];
    map(&mut machine, root, 0x8000, &all);
    map(&mut machine, root, 0x8000, &[0; 4]);
    assert_eq!(machine.mapped(0).len(), 4, "as one run");
    map(&mut machine, root, 0x9000, &all[1..2]);
    assert_eq!(machine.mapped(0), machine.model(root));
    assert_eq!(machine.device.teardowns().carried_out, 4 * PAGE);
    tear_down(&mut machine, 10 * LONGEST);
    assert_eq!(machine.mapped(0).len(), 1);
}

#[test]
fn a_few_wait() {
    let (mut machine, [root, ..]) = machine();
    for n in 0..MOST as u64 + 3 {
        map(&mut machine, root, n * PAGE, &[TO | 3]);
        map(&mut machine, root, n * PAGE, &[0]);
    }
    assert_eq!(machine.mapped(0).len(), MOST);
    tear_down(&mut machine, LONGEST);
    assert_eq!(machine.mapped(0), Pages::new());
}

/// A page of a few in one of two domains, where it leads, how, and the order of what is asked.
fn steps() -> impl Strategy<Value = Vec<(usize, u64, u64, u64, u64, u64)>> {
    // Few of each, so that the same comes back.
    let word = prop_oneof![5 => Just(0_u64), 4 => Just(3_u64), 1 => Just(1_u64)];
    let to = prop_oneof![4 => Just(0_u64), 1 => Just(1_u64)];
    let step = (0..2_usize, 0..4_u64, to, word, 0..3_u64, 0..LONGEST);
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// What the tables map is reached, and besides it what was, for less than the time.
    #[test]
    fn devices_reach_what_they_did_for_a_while(all in steps()) {
        let (mut machine, roots) = machine();
        let mut was = [(); 2].map(|()| std::collections::BTreeMap::<u64, (u64, (u64, Access))>::new());
        let mut now = 0;
        for (d, page, to, rights, order, ticks) in all {
            now += ticks;
            tear_down(&mut machine, now);
            for (d, was) in was.iter_mut().enumerate() {
                was.extend(machine.model(roots[d]).into_iter().map(|(at, to)| (at, (now, to))));
            }
            let word = if rights == 0 { 0 } else { (TO + (page + to) * PAGE) | rights };
            machine.map(roots[d], page * PAGE, word);
            let first = page & !((1 << order) - 1);
            machine.ask(&[pages(d as u16 + 1, first * PAGE, order)]);
            for d in 0..2 {
                let (found, right) = (machine.mapped(d), machine.model(roots[d]));
                for (at, to) in &right {
                    prop_assert_eq!(found.get(at), Some(to));
                }
                for (at, to) in found.iter().filter(|(at, _)| !right.contains_key(at)) {
                    let (then, before) = was[d][at];
                    prop_assert!(before == *to && now - then < LONGEST, "{:#x}", at);
                }
            }
        }
        tear_down(&mut machine, now + LONGEST);
        for (d, root) in roots.into_iter().enumerate() {
            prop_assert_eq!(machine.mapped(d), machine.model(root));
        }
    }
}

/// What waits as one run and is invalidated once more in part doesn't stay beyond that part.
#[test]
fn what_reaches_beyond_a_second_unmapping_is_gone_too() {
    let (mut machine, [root, ..]) = machine();
    let all = [TO | 3, (TO + PAGE) | 3, (TO + 2 * PAGE) | 3, (TO + 3 * PAGE) | 3];
    map(&mut machine, root, 0x8000, &all);
    map(&mut machine, root, 0x8000, &[0; 4]);
    assert_eq!(machine.mapped(0).len(), 4, "as one run");
    map(&mut machine, root, 0x9000, &[0]);
    tear_down(&mut machine, 10 * LONGEST);
    assert_eq!(machine.mapped(0), Pages::new());
    assert_eq!(machine.device.teardowns().carried_out, 4 * PAGE);
}
