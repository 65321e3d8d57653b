//! Guests that keep to the manual, and guests that don't, case by case; in any order (`any`).

mod any;
mod events;
mod interrupts;
mod linux;
mod machine;
mod posted;
mod registers;

use super::at::{CONTROL, ENABLE, FETCHES, LOGS};
use super::*;
use crate::tests::model::{HIGH, LOW, Pages, shape};
use crate::{PAGE, Reach};
use machine::*;
use paging::Access;

#[test]
fn what_an_invalidation_is_of_is_mapped_as_the_tables_say_when_its_word_is_written() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    machine.map(root, 0x7000, 0x20_0000, READ | WRITE);
    machine.map(root, 0x8000, 0x20_5000, READ);
    machine.map(root, 0x9000, 0x20_6000, WRITE);
    assert_eq!(machine.mapped(0), Pages::new(), "nothing before it is invalidated");
    assert!(machine.ask(&[pages(1, 0x7000, 0)]));
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, BOTH))].into());
    // Four pages from 0x8000 on.
    assert!(machine.ask(&[pages(1, 0x8000, 2)]));
    let all = [
        (0x7000, (LOW.host + 0x20_0000, BOTH)),
        (0x8000, (LOW.host + 0x20_5000, Access::READ)),
        (0x9000, (LOW.host + 0x20_6000, Access::WRITE)),
    ];
    assert_eq!(machine.mapped(0), all.into());
    machine.unmap(root, 0x7000);
    machine.ask(&[pages(2, 0x7000, 0)]);
    assert_eq!(machine.mapped(0).len(), 3, "that was another domain's");
    machine.ask(&[pages(1, 0x6000, 0)]);
    assert_eq!(machine.mapped(0).len(), 3, "that was another page");
    machine.ask(&[pages(1, 0x6000, 1)]);
    assert_eq!(machine.mapped(0), all[1..].iter().copied().collect());
    assert_eq!(machine.read(at::COMMAND_HEAD), machine.read(at::COMMAND_TAIL));
}

#[test]
fn ranges_of_invalidations() {
    let range = |address: u64| match command::read([3 << 60 | 7 << 32, address]) {
        Some(Asked::Mappings { domain: 7, first, last }) => (first, last),
        other => panic!("{other:?}"),
    };
    // S is clear, PDE doesn't matter.
    assert_eq!(range(0x1234_5000), (0x1234_5000, 0x1234_5FFF));
    assert_eq!(range(0x1234_5002), (0x1234_5000, 0x1234_5FFF));
    // The manual's examples: 8 KiB, 16 KiB, 2 MiB.
    assert_eq!(range(0x4000 | 1), (0x4000, 0x5FFF));
    assert_eq!(range(0x4000 | 0x1000 | 1), (0x4000, 0x7FFF));
    assert_eq!(range(0x20_0000 | 0xF_F000 | 1), (0x20_0000, 0x3F_FFFF));
    // Half of all that there is, and all: Linux' and our driver's.
    assert_eq!(range(((1 << 50) - 1) & !0xFFF | 1), (0, (1 << 51) - 1));
    assert_eq!(range(0x7FFF_FFFF_FFFF_F003), (0, u64::MAX));
    assert_eq!(range(0xFFFF_FFFF_FFFF_F003), (0, u64::MAX));
    assert_eq!(range(((1 << 51) - 1) & !0xFFF | 1), (0, u64::MAX));
}

#[test]
fn a_device_is_led_to_a_domain_when_its_tables_are_complete() {
    let mut machine = Machine::new(4096);
    let root = machine.table();
    // More than a step reads.
    for n in 0..1500 {
        machine.map(root, n * PAGE, 0x1000 * (n % 2048), READ | WRITE);
    }
    machine.set_device(0, translated(root, 4, 9));
    machine.write64(at::DEVICE_TABLE, DEVICES);
    machine.write64(CONTROL, ENABLE);
    let mut steps = 0;
    while machine.registers().is_news() {
        assert!(!machine.registers().translates());
        if machine.step() == Step::Reroute {
            machine.unit.rerouted();
        }
        steps += 1;
        match machine.real.reach[0] {
            Reach::Nothing => {}
            Reach::Domain(place) => assert_eq!(machine.real.places[place].len(), 1500),
            Reach::Memory => panic!("it isn't translated any more"),
        }
    }
    assert!(steps > 4, "{steps}");
    assert!(machine.registers().translates());
    machine.place(0);
    assert_eq!(machine.real.reach[1], Reach::Memory, "its entry isn't valid: it passes");
    machine.write64(CONTROL, 0);
    machine.run();
    assert_eq!(machine.real.reach[..3], [Reach::Memory; 3]);
    assert!(!machine.registers().translates());
}

#[test]
fn devices_are_in_what_their_entries_say_from_the_invalidation_on() {
    let (mut machine, [root, other, _]) = Machine::on(4096);
    machine.map(other, 0x7000, 0x20_0000, READ | WRITE);
    machine.set_device(0, translated(other, 4, 2));
    machine.ask(&[device(1)]);
    assert_ne!(machine.place(0), machine.place(1), "another one's was invalidated");
    machine.ask(&[device(0), domain(2)]);
    assert_eq!(machine.place(0), machine.place(1));
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, BOTH))].into());
    // The same tables with other rights are another domain.
    machine.set_device(0, [translated(other, 4, 2)[0] & !(WRITE << 61), 2]);
    machine.ask(&[device(0)]);
    assert_ne!(machine.place(0), machine.place(1));
    assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, Access::READ))].into());
    // Memory: an entry that isn't valid, or has mode 0 and both rights.
    for entry in [[0, 0], [0b10, 0], [3 | 3 << 61, 7]] {
        machine.set_device(0, translated(root, 4, 1));
        machine.ask(&[device(0)]);
        machine.place(0);
        machine.set_device(0, entry);
        machine.ask(&[device(0)]);
        assert_eq!(machine.real.reach[0], Reach::Memory, "{entry:x?}");
    }
    // Nothing: no TV, no rights, one right without tables, mode 7, version 2.
    let [low, high] = translated(root, 4, 1);
    let none =
        [low & !2, low & !(3 << 61), 3, 3 | 1 << 61, 3 | 2 << 61, low | 7 << 9, low | 1 << 55];
    for low in none {
        machine.set_device(0, translated(root, 4, 1));
        machine.ask(&[device(0)]);
        machine.place(0);
        machine.set_device(0, [low, high]);
        machine.ask(&[device(0)]);
        assert_eq!(machine.real.reach[0], Reach::Nothing, "{low:x?}");
    }
    machine.set_device(0, translated(root, 4, 1));
    machine.ask(&[ALL]);
    machine.place(0);
    // A table that isn't there.
    machine.write64(at::DEVICE_TABLE, LOW.len);
    machine.ask(&[device(0), device(1)]);
    assert_eq!(machine.real.reach[..2], [Reach::Nothing; 2]);
    machine.place(2);
    machine.write64(at::DEVICE_TABLE, DEVICES);
    machine.ask(&[ALL]);
    machine.place(0);
}

#[test]
fn a_device_table_has_as_many_entries_as_it_says() {
    let machine = Machine::new(1);
    let window = machine.window();
    machine.put(DEVICES + 32 * 128, 0b11);
    assert_eq!(device::dma(&window, DEVICES, 128), Dma::Illegal);
    assert_eq!(device::dma(&window, DEVICES | 1, 128), Dma::Blocked(0));
    assert_eq!(device::dma(&window, DEVICES | 1, 256), Dma::Illegal);
}

#[test]
fn levels() {
    for mode in 1..=6_u64 {
        let (mut machine, _) = Machine::on(1 << 20);
        let root = machine.table();
        let reach = 1_u64 << (12 + 9 * mode).min(48);
        // The first and the last page of it.
        for at in [0, reach - PAGE] {
            let entry = machine.entry_of(root, mode as u32, at, 1);
            machine.put(entry, leaf(0x20_0000 + (at & 0xF_F000), 0, READ | WRITE));
        }
        machine.set_device(0, translated(root, mode, 9));
        machine.ask(&[device(0)]);
        let last = (reach - PAGE, (LOW.host + 0x2F_F000, BOTH));
        let all = [(0, (LOW.host + 0x20_0000, BOTH)), last];
        assert_eq!(machine.mapped(0), all.into(), "{mode}");
    }
}

#[test]
fn levels_may_be_skipped() {
    let (mut machine, [root, ..]) = Machine::on(1 << 20);
    // From level 4 to level 1, and to level 2.
    let [one, two] = [machine.table(), machine.table()];
    machine.put(root, table(one, 1, READ | WRITE));
    machine.put(root + 8, table(two, 2, READ | WRITE));
    machine.put(one + 8 * 511, leaf(0x20_0000, 0, READ | WRITE));
    machine.put(two + 8, leaf(0x40_0000, 0, READ));
    machine.ask(&[ALL]);
    let mut wanted: Pages = [(511 * PAGE, (LOW.host + 0x20_0000, BOTH))].into();
    let at = |n: u64| (1 << 39) + 0x20_0000 + n * PAGE;
    wanted.extend((0..512).map(|n| (at(n), (LOW.host + 0x40_0000 + n * PAGE, Access::READ))));
    assert_eq!(machine.mapped(0), wanted);
    // And back: where the bits of skipped levels aren't 0, nothing is.
    machine.put(root, 0);
    machine.put(root + 8, 0);
    machine.ask(&[domain(1)]);
    assert_eq!(machine.mapped(0), Pages::new());
    // Up, or to where it is.
    let up = machine.table();
    machine.put(up, table(one, 1, READ | WRITE));
    for level in 4..=6 {
        machine.put(root, table(up, level, READ | WRITE));
        machine.ask(&[domain(1)]);
        assert_eq!(machine.mapped(0), Pages::new(), "{level}");
    }
    machine.put(root, table(up, 3, READ | WRITE));
    machine.ask(&[domain(1)]);
    assert_eq!(machine.mapped(0).len(), 1);
}

#[test]
fn leaves_of_any_size() {
    let (mut machine, [root, ..]) = Machine::on(1 << 20);
    // 32 KiB: eight entries of level 1 that are the same.
    for n in 0..8 {
        let entry = machine.entry(root, 0x1_0000 + n * PAGE, 1);
        machine.put(entry, leaf(0x20_0000 | 0x3000, 7, READ | WRITE));
    }
    // 4 MiB: two of level 2, of which one is there.
    let entry = machine.entry(root, 0x60_0000, 2);
    machine.put(entry, leaf(0x40_0000 | 0x1F_F000, 7, READ));
    // 64 KiB isn't one of level 2.
    let entry = machine.entry(root, 0x80_0000, 2);
    machine.put(entry, leaf(0x20_0000 | 0x7000, 7, READ));
    machine.ask(&[ALL]);
    let mut wanted = Pages::new();
    wanted.extend((0..8).map(|n| (0x1_0000 + n * PAGE, (LOW.host + 0x20_0000 + n * PAGE, BOTH))));
    let at = |n: u64| (0x60_0000 + n * PAGE, (LOW.host + 0x60_0000 + n * PAGE, Access::READ));
    wanted.extend((0..512).map(at));
    assert_eq!(machine.mapped(0), wanted);
}

#[test]
fn rights_are_those_of_all_levels() {
    let (mut machine, [root, ..]) = Machine::on(1 << 20);
    machine.map(root, 0x7000, 0x20_0000, READ | WRITE);
    let above = machine.entry(root, 0x7000, 3);
    let word = machine.get(above);
    for (rights, access) in [(READ, Access::READ), (WRITE, Access::WRITE)] {
        machine.put(above, word & !(3 << 61) | rights << 61);
        machine.ask(&[domain(1)]);
        assert_eq!(machine.mapped(0), [(0x7000, (LOW.host + 0x20_0000, access))].into());
    }
    for none in [word & !(3 << 61), word & !1] {
        machine.put(above, none);
        machine.ask(&[domain(1)]);
        assert_eq!(machine.mapped(0), Pages::new());
    }
}

#[test]
fn what_leads_out_of_memory_or_into_interrupts_is_not_mapped() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    let outside = [LOW.len, HIGH.guest - PAGE, HIGH.guest + HIGH.len, 1 << 51];
    for (n, to) in outside.into_iter().enumerate() {
        machine.map(root, n as u64 * PAGE, to, READ | WRITE);
    }
    machine.map(root, 0xFEE0_1000, 0x1000, READ | WRITE);
    machine.map(root, 0xFD_0000_0000, 0x1000, READ | WRITE);
    machine.map(root, 0x20_0000, LOW.len - PAGE, READ | WRITE);
    // A gigabyte of which a part is memory.
    let huge = machine.entry(root, 1 << 40, 3);
    machine.put(huge, leaf(0, 0, READ));
    machine.ask(&[ALL]);
    let only = [(0x20_0000, (LOW.host + LOW.len - PAGE, BOTH))];
    assert_eq!(machine.mapped(0), only.into());
}

#[test]
fn a_domain_that_does_not_fit_is_blocked_until_it_does() {
    let (mut machine, [root, ..]) = Machine::on(600);
    for n in 0..700 {
        machine.map(root, n * PAGE, n * PAGE, READ | WRITE);
    }
    machine.ask(&[ALL]);
    assert_eq!(machine.real.reach[0], Reach::Nothing);
    assert!(machine.real.places.iter().all(Pages::is_empty), "its tables are given back");
    machine.place(1);
    for n in 100..700 {
        machine.unmap(root, n * PAGE);
    }
    machine.ask(&[pages(1, 0, 0)]);
    assert_eq!(machine.real.reach[0], Reach::Nothing, "a page is not all of it");
    machine.ask(&[domain(1)]);
    assert_eq!(machine.mapped(0).len(), 100);
}

#[test]
fn a_walk_ends_whatever_the_tables_are() {
    let (mut machine, [root, ..]) = Machine::on(1 << 20);
    // One table at each level, in all places, and none of the pages is the guest's.
    let all = [root, machine.table(), machine.table(), machine.table()];
    for (level, pair) in (1..).zip(all.windows(2)) {
        (0..512).for_each(|n| machine.put(pair[0] + 8 * n, table(pair[1], 4 - level, 3)));
    }
    (0..512).for_each(|n| machine.put(all[3] + 8 * n, leaf(1 << 50, 0, 3)));
    machine.unit.take_words();
    assert!(machine.ask(&[domain(1)]));
    assert!(machine.unit.take_words() < 4 * machine.device.shape().pages + 100_000);
    assert_eq!(machine.real.reach[0], Reach::Nothing);
}

#[test]
fn what_stays_as_it_was_is_not_touched() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    for n in 0..8 {
        machine.map(root, 0x1_0000 + n * PAGE, 0x20_0000 + n * PAGE, READ | WRITE);
    }
    machine.ask(&[pages(1, 0x1_0000, 3)]);
    machine.ask(&[pages(1, 0x1_0000, 3), domain(1), ALL]);
    assert_eq!(machine.real.taken, Default::default(), "no page was taken away");
    machine.unmap(root, 0x1_2000);
    machine.ask(&[pages(1, 0x1_2000, 0)]);
    assert_eq!(machine.real.taken, [0x1_2000].into());
}

#[test]
fn a_buffer_wraps_where_it_is_as_long_as_it_says() {
    let (mut machine, [root, ..]) = Machine::on(4096);
    for n in 0..600 {
        machine.map(root, n * PAGE, n * PAGE, READ);
        assert!(machine.ask(&[pages(1, n * PAGE, 0)]), "{n}");
    }
    assert_eq!(machine.mapped(0).len(), 600);
    // A longer one, elsewhere: 512 commands.
    machine.write64(CONTROL, ENABLE | LOGS);
    machine.run();
    machine.write64(at::COMMANDS, 0x40_0000 | 9 << 56);
    (machine.tail, machine.buffer) = (0, (0x40_0000, 8192));
    machine.write64(at::COMMAND_HEAD, 0);
    machine.write64(at::COMMAND_TAIL, 0);
    machine.write64(CONTROL, ENABLE | LOGS | FETCHES);
    machine.run();
    for n in 0..600 {
        machine.unmap(root, n * PAGE);
        assert!(machine.ask(&[pages(1, n * PAGE, 0)]), "{n}");
    }
    assert_eq!(machine.mapped(0).len(), 0);
}

#[test]
fn the_shape_is_not_narrowed() {
    assert_eq!(narrowed(shape()).last, shape().last);
}
