//! Guests that keep to the manual, and guests that don't, case by case; in any order (`any`).

mod any;
mod attack;
mod bounds;
mod faults;
mod machine;
mod real;
mod waiting;

use super::at::{
    ADDRESS, BUSY, COMMAND, CONTEXT_COMMAND, FAULT_STATUS, QUEUE_ERROR, QUEUE_HEAD, QUEUE_TAIL,
    QUEUED, REMAPPING, REMAPS, ROOT, SET_REMAPPING, SET_ROOT, STATUS, TLB, TRANSLATES,
};
use super::*;
use crate::tests::model::{ENDPOINTS, HIGH, LOW, Pages, shape};
use crate::unit::{Blocked, Remapped};
use crate::{PAGE, Reach};
use machine::*;
use paging::Access;

#[test]
fn what_an_invalidation_is_of_is_mapped_as_the_tables_say_when_its_word_is_written() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    machine.map(root, 0x7000, 0x20_0000 | 3);
    machine.map(root, 0x8000, 0x20_5000 | 1);
    assert_eq!(machine.mapped(0), Pages::new(), "nothing before it is invalidated");
    assert_eq!(machine.ask(&[pages(1, 0x7000, 0)]), 0x77);
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, BOTH))].into());
    assert_eq!(machine.ask(&[pages(1, 0x8000, 3)]), 0x77);
    let read_only = (0x8000, (LOW.host + 0x20_5000, Access::READ));
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, BOTH)), read_only].into());
    machine.map(root, 0x7000, 0);
    machine.ask(&[pages(2, 0x7000, 0)]);
    assert_eq!(machine.mapped(0).len(), 2, "that was another domain's");
    machine.ask(&[pages(1, 0x7000, 0)]);
    assert_eq!(machine.mapped(0), [read_only].into());
    assert_eq!(machine.read(QUEUE_HEAD), machine.read(QUEUE_TAIL));
}

#[test]
fn what_stays_as_it_was_is_not_touched() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    for n in 0..8 {
        machine.map(root, 0x1_0000 + n * PAGE, (0x20_0000 + n * PAGE) | 3);
    }
    machine.ask(&[pages(1, 0x1_0000, 3)]);
    machine.ask(&[pages(1, 0x1_0000, 3), domain(1), ALL]);
    // Ranges with nothing in them are unmapped, which is nothing to the real unit.
    let taken = machine.unit.taken.clone();
    assert_eq!(taken, Default::default(), "no page was taken away");
    machine.map(root, 0x1_2000, 0);
    machine.ask(&[pages(1, 0x1_2000, 0)]);
    assert_eq!(machine.unit.taken, [0x1_2000].into());
}

#[test]
fn a_device_is_led_to_a_domain_when_its_tables_are_complete() {
    let mut machine = Machine::new(4096);
    let root = machine.table();
    // More than a step reads.
    for n in 0..1500 {
        machine.map(root, n * PAGE, (0x1000 * (n % 2048)) | 3);
    }
    machine.put(ROOT_TABLE, CONTEXT_TABLE | 1);
    machine.set_context(0, root | 1, 9 << 8 | 2);
    machine.write64(ROOT, ROOT_TABLE);
    machine.command(SET_ROOT);
    machine.registers().write(COMMAND as u64, 4, TRANSLATES.into());
    let mut steps = 0;
    while machine.registers().is_news() {
        machine.step();
        steps += 1;
        match machine.unit.reach[0] {
            Reach::Nothing => assert_eq!(machine.read(STATUS) & TRANSLATES, 0),
            Reach::Domain(place) => assert_eq!(machine.unit.places[place].len(), 1500),
            Reach::Memory => panic!("it isn't translated any more"),
        }
    }
    assert!(steps > 4, "{steps}");
    assert_eq!((machine.read(STATUS), machine.place(0)), (TRANSLATES, 0));
    assert_eq!(machine.unit.reach[1], Reach::Nothing, "no context: nothing");
    machine.command(0);
    assert_eq!(machine.unit.reach[..3], [Reach::Memory; 3]);
}

#[test]
fn contexts_are_as_the_tables_say_from_their_invalidation_on() {
    let (mut machine, [root, other, _]) = Machine::on(4096);
    machine.map(other, 0x7000, 0x20_0000 | 3);
    machine.set_context(0, other | 1, 2 << 8 | 2);
    machine.set_context(1, 2 << 2 | 1, 7 << 8 | 2);
    machine.ask(&[]);
    assert_ne!(machine.place(0), machine.place(1));
    machine.ask(&[CONTEXTS, domain(2)]);
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, BOTH))].into());
    assert_eq!(machine.unit.reach[1], Reach::Memory, "it passes through");
    // Not present, of another width, of a type that isn't offered, outside.
    let wrong = [(root, 1 << 8 | 2), (root | 1, 1 << 8 | 1), (root | 5, 1 << 8 | 2)];
    for (low, high) in wrong {
        machine.set_context(2, root | 1, 1 << 8 | 2);
        machine.ask(&[CONTEXTS]);
        machine.place(2);
        machine.set_context(2, low, high);
        machine.ask(&[CONTEXTS]);
        assert_eq!(machine.unit.reach[2], Reach::Nothing, "{low:#x} {high:#x}");
    }
    machine.put(ROOT_TABLE, LOW.len | 1);
    machine.ask(&[CONTEXTS]);
    assert_eq!(machine.unit.reach[..3], [Reach::Nothing; 3]);
}

#[test]
fn what_leads_out_of_memory_or_into_interrupts_is_not_mapped() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    let outside = [LOW.len, HIGH.guest - PAGE, HIGH.guest + HIGH.len, 1 << 51, !0xFFF & 1 << 50];
    for (n, to) in outside.into_iter().enumerate() {
        machine.map(root, n as u64 * PAGE, to | 3);
    }
    machine.map(root, 0xFEE0_1000, 0x1000 | 3);
    machine.map(root, 0x20_0000, (LOW.len - PAGE) | 3);
    // A large page that is in memory but for its end; one that is, and one that is too large.
    let [large, inside] = [0x4000_0000, 0x4020_0000].map(|at| machine.entry(root, at, 1));
    machine.put(large, LOW.len | 1 << 7 | 3);
    machine.put(inside, 0x40_0000 | 1 << 7 | 3);
    let huge = machine.entry(root, 0x80_0000_0000, 2);
    machine.put(huge, 1 << 7 | 3);
    machine.ask(&[ALL]);
    let mapped = machine.mapped(0);
    assert_eq!(mapped.len(), 1 + 512, "{mapped:x?}");
    assert_eq!(mapped[&0x20_0000].0, LOW.host + LOW.len - PAGE);
    assert_eq!(mapped[&0x403F_F000].0, LOW.host + 0x5F_F000);
}

#[test]
fn a_domain_that_does_not_fit_is_blocked_until_it_does() {
    let (mut machine, [root, ..]) = Machine::on(600);
    for n in 0..700 {
        machine.map(root, n * PAGE, (n * PAGE) | 3);
    }
    machine.ask(&[ALL]);
    assert_eq!(machine.unit.reach[0], Reach::Nothing);
    assert!(machine.unit.places.iter().all(Pages::is_empty), "its tables are given back");
    machine.place(1);
    for n in 100..700 {
        machine.map(root, n * PAGE, 0);
    }
    machine.ask(&[pages(1, 0, 0)]);
    assert_eq!(machine.unit.reach[0], Reach::Nothing, "a page is not all of it");
    machine.ask(&[domain(1)]);
    assert_eq!(machine.mapped(0).len(), 100);
}

#[test]
fn a_walk_ends_whatever_the_tables_are() {
    let (mut machine, [root, ..]) = Machine::on(1 << 20);
    // One table at each level, in all places, and none of the pages is the guest's.
    let all = [root, machine.table(), machine.table(), machine.table(), 1 << 50];
    for pair in all.windows(2) {
        (0..512).for_each(|n| machine.put(pair[0] + 8 * n, pair[1] | 3));
    }
    let before = machine.vtd.take_words();
    assert!(before < 4000);
    assert_eq!(machine.ask(&[domain(1)]), 0x77);
    assert!(machine.vtd.take_words() < 4 * machine.device.shape().pages + 100_000);
    assert_eq!(machine.unit.reach[0], Reach::Nothing);
}

#[test]
fn registers_invalidate_too() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    machine.map(root, 0x7000, 0x20_0000 | 3);
    machine.write64(ADDRESS, 0x7000);
    machine.write64(TLB, u64::from(BUSY) << 32 | 3 << 60 | 1 << 32);
    machine.run();
    assert_eq!(machine.registers().get64(TLB), 3 << 60 | 3 << 57 | 1 << 32);
    assert_eq!(machine.mapped(0).len(), 1);
    machine.set_context(0, 0, 0);
    machine.write64(CONTEXT_COMMAND, u64::from(BUSY) << 32 | 1 << 61);
    machine.run();
    assert_eq!(machine.registers().get64(CONTEXT_COMMAND), 1 << 61 | 1 << 59);
    assert_eq!(machine.unit.reach[0], Reach::Nothing);
}

#[test]
fn a_descriptor_that_is_none_stops_the_queue_until_the_error_is_cleared() {
    let (mut machine, _) = Machine::on(4096);
    for wrong in [[3, 0], [2, 0], [0xF, 0], [2 | 3 << 4, 37], [1, 0], [5 | 1 << 9, 0]] {
        let head = machine.read(QUEUE_HEAD);
        assert_eq!(machine.ask(&[wrong]), 0, "{wrong:?}");
        assert_eq!(
            (machine.read(QUEUE_HEAD), machine.read(FAULT_STATUS) & 0xFF),
            (head, QUEUE_ERROR)
        );
        // As Linux does: the wait in its place, and then what it read is cleared.
        let at = QUEUE_PAGE + u64::from(head);
        machine.put(at, 5 | 1 << 5 | 0x78 << 32);
        machine.put(at + 8, STATUS_WORD);
        machine.registers().write(FAULT_STATUS as u64, 4, QUEUE_ERROR.into());
        machine.run();
        assert_eq!(machine.get(STATUS_WORD) as u32, 0x77);
        assert_eq!(machine.read(FAULT_STATUS) & 0xFF, 0);
    }
    machine.registers().write(QUEUE_TAIL as u64, 4, 4096);
    machine.run();
    assert_eq!(machine.read(FAULT_STATUS) & 0xFF, QUEUE_ERROR, "a tail beyond the queue");
}

#[test]
fn what_the_guest_can_only_read_is_put_right() {
    let (mut machine, _) = Machine::on(4096);
    let before: Vec<u32> = (0..256).step_by(4).map(|at| machine.read(at)).collect();
    for at in [0, 8, 12, 16, 20, STATUS, QUEUE_HEAD] {
        machine.page[at / 4].store(!0, std::sync::atomic::Ordering::Relaxed);
    }
    machine.ask(&[]);
    let after: Vec<u32> = (0..256).step_by(4).map(|at| machine.read(at)).collect();
    let differ = |at: &usize| before[at / 4] != after[at / 4];
    let changed: Vec<usize> = (0..256).step_by(4).filter(differ).collect();
    assert_eq!(changed, [QUEUE_HEAD, QUEUE_TAIL]);
    // An exit doesn't even write it.
    machine.registers().write(8, 8, 0);
    assert_eq!(machine.read(8), before[2]);
}

#[test]
fn what_linux_asks_of_the_capabilities() {
    let machine = Machine::new(1);
    let (cap, ecap) = (machine.registers().get64(8), machine.registers().get64(16));
    assert_eq!((cap >> 7 & 1, cap >> 8 & 0x1F, (cap >> 16 & 0x3F) + 1), (1, 4, 48), "CM, 4 levels");
    assert_eq!((cap >> 34 & 0xF, cap >> 39 & 1, cap >> 48 & 0x3F), (1, 1, 36), "2 MiB, PSI, MAMV");
    let (records, more) = ((cap >> 24 & 0x3FF) * 16, cap >> 40 & 0xFF);
    assert_eq!((records, records + 16 * (more + 1)), (0x220, 0x2A0), "records, in the page");
    assert_eq!((ecap & 0x5B, (ecap >> 8 & 0x3FF) * 16), (0x5B, ADDRESS as u64));
    assert_eq!((ecap >> 2 & 1, ecap >> 43 & 1), (0, 0), "no device TLBs, no scalable mode");
    let narrow = narrowed(shape());
    assert_eq!(narrow.last, (1 << 39) - 1, "below HyperTransport's range");
    assert_eq!(narrowed(Shape { reserved: &[MESSAGES], ..shape() }).last, shape().last);
}

#[test]
fn interrupts_go_by_the_guest_s_entries() {
    let (mut machine, _) = Machine::on(4096);
    let source = ENDPOINTS[0] as u16;
    // Vector 0x41 to APIC 0x1234; present; from this device alone.
    let entry = |index: u64| ENTRIES + 16 * index;
    machine.put(entry(2), 0x1234 << 32 | 0x41 << 16 | 1);
    machine.put(entry(2) + 8, 1 << 18 | u64::from(source));
    let message = |index: u64| (0xFEE0_0000 | 1 << 4 | (index & 0x7FFF) << 5 | 1 << 3, 0);
    let off = machine.vtd.remapping();
    assert_eq!(off.of_msi(&machine.window(), source, message(2)), Ok(None));
    machine.write64(REMAPPING, ENTRIES | 1 << 11 | 3);
    machine.command(QUEUED | TRANSLATES | SET_REMAPPING);
    assert_eq!(machine.reroutes, 0);
    machine.command(QUEUED | TRANSLATES | REMAPS);
    assert_eq!(machine.reroutes, 1);
    let (on, window) = (machine.vtd.remapping(), machine.window());
    let there =
        Remapped { data: 0x41, logical: false, hint: false, destination: 0x1234, posted: None };
    assert_eq!(on.of_msi(&window, source, message(2)), Ok(Some(there)));
    // By a handle and an offset; the offset doesn't count without its bit.
    assert_eq!(on.of_msi(&window, source, (message(1).0, 1)), Ok(Some(there)));
    let plain = message(2).0 & !(1 << 3);
    assert_eq!(on.of_msi(&window, source, (plain, 7)), Ok(Some(there)));
    assert_eq!(on.of_msi(&window, source + 8, message(2)), Err(Blocked::Source(2)));
    assert_eq!(on.of_msi(&window, source, message(3)), Err(Blocked::NotPresent(3)));
    assert_eq!(on.of_msi(&window, source, message(16)), Err(Blocked::NoEntry(16)));
    assert_eq!(on.of_msi(&window, source, (0xFEE0_1000, 0x41)), Err(Blocked::Format));
    // The IOAPIC's, with level and logical destination; bits of the source that don't count.
    machine.put(entry(5), 3 << 32 | 0x52 << 16 | 1 << 4 | 1 << 5 | 1 << 3 | 1 << 2 | 1);
    machine.put(entry(5) + 8, 1 << 18 | 2 << 16 | u64::from(IOAPIC ^ 6));
    let wanted = Remapped { data: 0x8152, logical: true, hint: true, destination: 3, posted: None };
    assert_eq!(on.of_redirection(&window, 5 << 49 | 1 << 48 | 4), Ok(Some(wanted)));
    assert_eq!(on.of_redirection(&window, 0x41), Err(Blocked::Format));
    machine.put(entry(5) + 8, 1 << 18 | u64::from(IOAPIC ^ 6));
    assert_eq!(on.of_redirection(&window, 5 << 49 | 1 << 48), Err(Blocked::Source(5)));
    // By buses, and by none.
    machine.put(entry(2) + 8, 2 << 18 | 0x00FF);
    assert_eq!(on.of_msi(&window, source, message(2)), Ok(Some(there)));
    machine.put(entry(2) + 8, 2 << 18 | 0x01FF);
    assert_eq!(on.of_msi(&window, source, message(2)), Err(Blocked::Source(2)));
    machine.put(entry(2) + 8, 0);
    assert_eq!(on.of_msi(&window, source, message(2)), Ok(Some(there)));
    machine.ask(&[INTERRUPTS]);
    assert_eq!(machine.reroutes, 2);
}

#[test]
fn the_word_of_a_wait_is_written_when_the_routes_follow() {
    let (mut machine, _) = Machine::on(4096);
    machine.write64(REMAPPING, ENTRIES | 1 << 11 | 3);
    machine.command(QUEUED | TRANSLATES | SET_REMAPPING);
    machine.command(QUEUED | TRANSLATES | REMAPS);
    machine.put(QUEUE_PAGE, INTERRUPTS[0]);
    machine.put(QUEUE_PAGE + 16, 5 | 1 << 5 | 0x79 << 32);
    machine.put(QUEUE_PAGE + 24, STATUS_WORD);
    machine.registers().write(QUEUE_TAIL as u64, 4, 32);
    assert_eq!(machine.step(), Step::Worked);
    for _ in 0..3 {
        assert_eq!(machine.step(), Step::Reroute);
    }
    assert_eq!(machine.get(STATUS_WORD), 0);
    machine.vtd.rerouted();
    machine.run();
    assert_eq!(machine.get(STATUS_WORD), 0x79);
}
