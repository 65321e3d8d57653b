//! What a guest is told of faults, read as Linux' driver and Xen's read it.

use super::super::at::{
    FAULT_ADDRESS, FAULT_CONTROL, FAULT_DATA, FAULT_STATUS, FULL, MASKED, OVERFLOW, PENDING,
    QUEUE_ERROR, QUEUED, RECORDS, TRANSLATES, WAITS, record,
};
use super::super::*;
use super::machine::*;
use crate::tests::model::ENDPOINTS;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

const ADDRESS: u64 = 0xFEE0_1000;
const DATA: u32 = 0x31;
/// What Linux clears the status register with.
const LINUX: u32 = OVERFLOW | PENDING | 1 << 7;

/// How a driver's writes reach the page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Exit,
    Store,
}

fn write(machine: &Machine, by: By, at: usize, word: u32) {
    match by {
        By::Exit => machine.registers().write(at as u64, 4, word.into()),
        By::Store => machine.page[at / 4].store(word, Relaxed),
    }
}

fn on(by: By, masked: bool) -> Machine {
    let (machine, _) = Machine::on(4096);
    write(&machine, by, FAULT_ADDRESS, ADDRESS as u32);
    write(&machine, by, FAULT_DATA, DATA);
    write(&machine, by, FAULT_CONTROL, if masked { MASKED } else { 0 });
    machine
}

fn tries(machine: &mut Machine, endpoint: usize, is_write: bool, address: u64) {
    let fault = Fault { endpoint, is_write, address };
    let page = Registers::new(&machine.page);
    machine.vtd.record(&machine.device, page, fault);
}

fn interrupt(machine: &mut Machine) -> Option<(u64, u32)> {
    let page = Registers::new(&machine.page);
    machine.vtd.take_interrupt(page)
}

/// Linux' `dmar_fault`: the records from the first one on, until one is empty, and then the status.
/// `unit` is what the unit does after each write.
fn dmar_fault(
    machine: &mut Machine,
    by: By,
    unit: impl Fn(&mut Machine),
) -> Vec<(u32, u32, u64, u32)> {
    let mut found = Vec::new();
    let status = machine.read(FAULT_STATUS);
    if status & PENDING == 0 {
        return found;
    }
    let mut index = (status >> 8 & 0xFF) as usize;
    for _ in 0..100 {
        let at = record(index);
        let last = machine.read(at + 12);
        if last & FULL == 0 {
            write(machine, by, FAULT_STATUS, LINUX);
            unit(machine);
            return found;
        }
        let (id, address) = (machine.read(at + 8), machine.registers().get64(at));
        found.push((last >> 30 & 1, id & 0xFFFF, address, last & 0xFF));
        write(machine, by, at + 12, FULL);
        unit(machine);
        index = (index + 1) % RECORDS;
    }
    panic!("the driver never ends");
}

#[test]
fn a_fault_is_told_and_forgotten() {
    for by in [By::Exit, By::Store] {
        let mut machine = on(by, false);
        assert_eq!((machine.read(FAULT_STATUS), interrupt(&mut machine)), (0, None));
        tries(&mut machine, 1, true, 0x1234_5678_9ABC);
        assert_eq!(machine.read(FAULT_STATUS), PENDING | 1 << 8);
        assert_eq!(interrupt(&mut machine), Some((ADDRESS, DATA)));
        assert_eq!(interrupt(&mut machine), None, "once");
        tries(&mut machine, 2, false, 0x5000);
        assert_eq!(interrupt(&mut machine), None, "none for what comes while there is something");
        let found = dmar_fault(&mut machine, by, |machine| machine.run());
        let ids = ENDPOINTS.map(|id| id & 0xFFFF);
        assert_eq!(found, [(0, ids[1], 0x1234_5678_9000, 5), (1, ids[2], 0x5000, 6)]);
        assert_eq!((machine.read(FAULT_STATUS), interrupt(&mut machine)), (0, None), "{by:?}");
        tries(&mut machine, 0, true, 0);
        assert_eq!(machine.read(FAULT_STATUS), PENDING | 3 << 8, "the next record");
        assert!(interrupt(&mut machine).is_some());
    }
}

/// VT-d 11.4.9: PPF is whether there is a record. Exitless' driver writes there for sticky bits
/// alone.
#[test]
fn pending_ends_with_the_last_record() {
    for masked in [false, true] {
        let mut machine = on(By::Exit, masked);
        tries(&mut machine, 1, true, 0x4000);
        tries(&mut machine, 1, false, 0x5000);
        for (place, left) in [(1, PENDING | 2 << 8), (2, 0)] {
            write(&machine, By::Exit, record(place) + 12, FULL);
            assert!(machine.registers().is_news());
            machine.run();
            assert_eq!(machine.read(FAULT_STATUS), left, "record {place}");
            assert!(!machine.registers().is_news());
        }
        let sent = interrupt(&mut machine).is_some();
        write(&machine, By::Exit, FAULT_CONTROL, 0);
        machine.run();
        assert_eq!((sent, interrupt(&mut machine)), (!masked, None), "none for what is cleared");
    }
}

#[test]
fn a_masked_interrupt_waits() {
    for (by, unmask) in [(By::Exit, 0), (By::Store, 0), (By::Store, WAITS), (By::Store, WAITS | 1)]
    {
        let mut machine = on(by, true);
        tries(&mut machine, 0, true, 0);
        assert_eq!(interrupt(&mut machine), None);
        assert_eq!(machine.read(FAULT_CONTROL) & (MASKED | WAITS), MASKED | WAITS);
        machine.run();
        assert_eq!(interrupt(&mut machine), None);
        write(&machine, by, FAULT_CONTROL, unmask);
        assert!(machine.registers().is_news());
        machine.run();
        assert_eq!(machine.read(FAULT_CONTROL) & (MASKED | WAITS), 0);
        assert_eq!(interrupt(&mut machine), Some((ADDRESS, DATA)), "{by:?} {unmask:#x}");
        write(&machine, by, FAULT_CONTROL, 0);
        machine.run();
        assert_eq!(interrupt(&mut machine), None);
    }
}

#[test]
fn without_a_free_record_it_overflows() {
    let mut machine = on(By::Store, false);
    for n in 0..7 {
        assert_eq!(machine.read(FAULT_STATUS) & OVERFLOW, 0);
        tries(&mut machine, 0, true, n << 12);
    }
    assert_eq!(machine.read(FAULT_STATUS), PENDING | 1 << 8);
    tries(&mut machine, 0, true, 7 << 12);
    assert_eq!(machine.read(FAULT_STATUS), OVERFLOW | PENDING | 1 << 8);
    // A record is free, but an overflow is to be seen first.
    write(&machine, By::Store, record(1) + 12, FULL);
    tries(&mut machine, 0, true, 8 << 12);
    assert_eq!(machine.read(record(1) + 12) & 0xFF, 0);
    let found = dmar_fault(&mut machine, By::Store, |_| ());
    assert_eq!(found.len(), 7, "the one that was cleared, too, as it wasn't looked at");
    machine.run();
    assert_eq!(machine.read(FAULT_STATUS), 0);
    tries(&mut machine, 0, true, 9 << 12);
    assert_eq!(dmar_fault(&mut machine, By::Store, |_| ()), [(0, ENDPOINTS[0], 9 << 12, 5)]);
}

#[test]
fn what_a_driver_passed_by_is_told_again() {
    let mut machine = on(By::Store, false);
    for n in 0..5 {
        tries(&mut machine, 0, true, n << 12);
    }
    assert_eq!(dmar_fault(&mut machine, By::Store, Machine::run).len(), 5);
    assert!(interrupt(&mut machine).is_some());
    // Behind the last record is the one that is never used: the driver stops there.
    for n in 5..8 {
        tries(&mut machine, 0, true, n << 12);
    }
    assert!(interrupt(&mut machine).is_some());
    assert_eq!(dmar_fault(&mut machine, By::Store, Machine::run).len(), 2);
    assert_eq!(machine.read(FAULT_STATUS), PENDING | 1 << 8);
    assert!(interrupt(&mut machine).is_some());
    let last = (0, ENDPOINTS[0], 7 << 12, 5);
    assert_eq!(dmar_fault(&mut machine, By::Store, Machine::run), [last]);
    assert_eq!((machine.read(FAULT_STATUS), interrupt(&mut machine)), (0, None));
}

#[test]
fn what_isnt_translated_isnt_told() {
    let (mut machine, roots) = Machine::on(4096);
    tries(&mut machine, 3, true, 0);
    assert_eq!(machine.read(FAULT_STATUS), 0, "there is no such endpoint");
    // Passing through, and no context.
    machine.set_context(0, 1 | 2 << 2, 9 << 8 | 2);
    machine.set_context(1, 0, 0);
    machine.ask(&[CONTEXTS]);
    tries(&mut machine, 0, true, 1 << 30);
    assert_eq!(machine.read(FAULT_STATUS), 0);
    tries(&mut machine, 1, false, 0x3000);
    assert_eq!(dmar_fault(&mut machine, By::Store, Machine::run), [(1, ENDPOINTS[1], 0x3000, 2)]);
    machine.set_context(1, roots[1] | 1, 2 << 8 | 2);
    machine.ask(&[CONTEXTS]);
    tries(&mut machine, 1, false, 0x3000);
    assert_eq!(dmar_fault(&mut machine, By::Store, Machine::run), [(1, ENDPOINTS[1], 0x3000, 6)]);
    machine.command(QUEUED);
    tries(&mut machine, 2, true, 0);
    assert_eq!(machine.read(FAULT_STATUS), 0, "nothing is translated");
    machine.command(QUEUED | TRANSLATES);
    tries(&mut machine, 2, true, 0);
    machine.vtd.reset(&machine.device, Registers::new(&machine.page));
    assert_eq!(machine.read(FAULT_STATUS) | machine.read(record(1) + 12), 0);
}

#[test]
fn an_error_of_the_queue_is_told_by_the_interrupt() {
    let mut machine = on(By::Store, false);
    machine.ask(&[[3, 0]]);
    assert_eq!(interrupt(&mut machine), Some((ADDRESS, DATA)));
    machine.run();
    assert_eq!(interrupt(&mut machine), None);
    tries(&mut machine, 0, true, 0);
    assert_eq!(machine.read(FAULT_STATUS), QUEUE_ERROR | PENDING | 1 << 8);
    dmar_fault(&mut machine, By::Store, Machine::run);
    assert_eq!(machine.read(FAULT_STATUS) & 0xFF, QUEUE_ERROR);
    machine.put(QUEUE_PAGE, 5 | 1 << 5);
    write(&machine, By::Store, FAULT_STATUS, QUEUE_ERROR);
    machine.run();
    assert_eq!(machine.read(FAULT_STATUS), 0);
}

/// Who writes for ever isn't looked at for nothing, and so not for ever.
#[test]
fn each_look_at_what_was_written_costs_something() {
    let mut machine = on(By::Store, true);
    tries(&mut machine, 0, true, 0);
    for (at, word) in [(FAULT_STATUS, LINUX), (FAULT_CONTROL, 0), (FAULT_CONTROL, MASKED)] {
        machine.vtd.take_words();
        write(&machine, By::Store, at, word);
        assert_eq!((machine.step(), machine.vtd.take_words()), (Step::Worked, 1), "{at:#x}");
    }
}

proptest! {
    /// Faults, the driver and the unit in any order: each fault is told once and in its order, or
    /// an overflow is, and the driver isn't left without an interrupt for something.
    #[test]
    fn nothing_is_lost(by_store: bool, all in prop::collection::vec(0..4_u8, 1..120)) {
        let by = if by_store { By::Store } else { By::Exit };
        let mut machine = on(by, false);
        let (mut tried, mut told, mut interrupts) = (0_u64, Vec::new(), 0);
        let mut overflows = false;
        for what in all {
            match what {
                0 | 1 => {
                    let page = Registers::new(&machine.page);
                    let before = page.get(FAULT_STATUS) & OVERFLOW;
                    tries(&mut machine, 0, true, tried << 12);
                    overflows |= before != 0 || machine.read(FAULT_STATUS) & OVERFLOW != 0;
                    tried += 1;
                }
                2 => machine.run(),
                _ if interrupts > 0 => {
                    interrupts = 0;
                    told.extend(dmar_fault(&mut machine, by, |_| ()));
                }
                _ => {}
            }
            if by == By::Exit {
                machine.run();
            }
            interrupts += usize::from(interrupt(&mut machine).is_some());
        }
        machine.run();
        for _ in 0..2 {
            interrupts += usize::from(interrupt(&mut machine).is_some());
            if interrupts > 0 {
                told.extend(dmar_fault(&mut machine, by, Machine::run));
            }
        }
        prop_assert_eq!(machine.read(FAULT_STATUS), 0);
        let pages: Vec<u64> = told.iter().map(|(.., address, _)| address >> 12).collect();
        prop_assert!(pages.is_sorted_by(|a, b| a < b), "{:?}", pages);
        prop_assert!(overflows || pages.len() as u64 == tried, "{:?} of {}", pages, tried);
    }
}
