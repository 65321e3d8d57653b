//! Drivers as they go about it: Linux 6.12's `amd_iommu`, with writes that exit until the unit
//! translates and stores from then on, and one that waits for the status.

use super::super::at::{
    COMMAND_HEAD, COMMAND_TAIL, CONTROL, ENABLE, EVENT_HEAD, EVENT_INTERRUPT, EVENT_TAIL, FETCHES,
    INTERRUPT, LOGGED, LOGS, OVERFLOW, OWN_INTERRUPT, STATUS, WIDE_ENTRIES, X2APIC,
};
use super::super::*;
use super::machine::*;
use crate::tests::model::LOW;
use crate::unit::Remapped;
use crate::{PAGE, Reach};

/// Reads, changes and writes back, as an exit that is served before the next instruction.
fn change(machine: &mut Machine, set: u64, clear: u64) {
    let control = machine.registers().get64(CONTROL);
    machine.write64(CONTROL, control & !clear | set);
    machine.run();
}

fn switch_on(machine: &mut Machine) {
    // What the firmware left is off; InvTimeOut, PassPW, Coherent and so on.
    change(machine, 0, FETCHES | LOGS | EVENT_INTERRUPT | ENABLE);
    change(machine, 1 << 10 | 1 << 8 | 2 << 5, 1 << 1);
    machine.write64(at::DEVICE_TABLE, DEVICES | 1);
    machine.write64(at::COMMANDS, COMMANDS | LENGTH_256);
    change(machine, 0, FETCHES);
    machine.registers().write(COMMAND_HEAD as u64, 4, 0);
    machine.registers().write(COMMAND_TAIL as u64, 4, 0);
    change(machine, FETCHES, 0);
    machine.write64(at::EVENTS, LOG | LENGTH_256);
    machine.registers().write(EVENT_HEAD as u64, 4, 0);
    machine.registers().write(EVENT_TAIL as u64, 4, 0);
    change(machine, LOGS, 0);
    change(machine, WIDE_ENTRIES, 0);
    change(machine, X2APIC, 0);
    change(machine, ENABLE, 0);
}

#[test]
fn linux() {
    let mut machine = Machine::new(4096);
    let root = machine.table();
    // Entries are valid, with tables of their own for interrupts and without rights.
    for id in 0..256_u64 {
        machine.put(DEVICES + 32 * id, 3);
        machine.put(DEVICES + 32 * id + 16, 1 | 9 << 1 | ENTRIES | 2 << 60);
    }
    switch_on(&mut machine);
    assert_eq!(machine.real.reach[..3], [Reach::Nothing; 3]);
    assert!(machine.ask(&[ALL]));
    // Now the registers are plain memory.
    machine.store(INTERRUPT, 1 << 8);
    machine.store(INTERRUPT + 4, 0x31);
    let control = machine.registers().get64(CONTROL) | EVENT_INTERRUPT | OWN_INTERRUPT;
    machine.store(CONTROL, control as u32);
    machine.store(CONTROL + 4, (control >> 32) as u32);
    machine.run();
    // An interrupt: its entry, the invalidation, a wait.
    machine.put(ENTRIES + 16 * 5, 1 | 1 << 8);
    machine.put(ENTRIES + 16 * 5 + 8, 0x41);
    machine.push([5 << 60 | 0x10, 0]);
    machine.push([1 << 60 | WORD | 1, 99]);
    machine.store(COMMAND_TAIL, machine.tail as u32);
    machine.run();
    assert_eq!(machine.get(WORD), 99);
    let remapped = machine.unit.remapping().of_msi(&machine.window(), 0x10, (0xFEE0_0000, 5));
    let wanted = Remapped { data: 0x41, logical: false, hint: false, destination: 1, posted: None };
    assert_eq!(remapped, Ok(Some(wanted)));
    // A device's domain begins with tables of three levels, empty.
    machine.set_device(0, translated(root, 3, 1));
    machine.ask(&[device(0), domain(1)]);
    assert_eq!(machine.mapped(0).len(), 0);
    let entry = machine.entry_of(root, 3, 0xFFFF_E000, 1);
    machine.put(entry, leaf(0x20_0000, 0, READ | WRITE));
    machine.put(entry + 8, leaf(0x30_0000, 0, READ));
    assert!(machine.ask(&[pages(1, 0xFFFF_E000, 1)]));
    assert_eq!(machine.mapped(0).len(), 2);
    // They grow by a level: other tables, in which the old ones are.
    let above = machine.table();
    machine.put(above, table(root, 3, READ | WRITE));
    machine.set_device(0, translated(above, 4, 1));
    machine.ask(&[device(0), domain(1)]);
    assert_eq!(machine.mapped(0)[&0xFFFF_F000].0, LOW.host + 0x30_0000);
    // A fault: the interrupt, and the handler, which loops while its bits are in the status.
    machine.tries(0, true, 0xFFFF_D000);
    let direct = Remapped { data: 0x31, logical: false, hint: false, destination: 1, posted: None };
    assert_eq!(machine.interrupt(), Some(Notice::Wide(direct)));
    let mut found = Vec::new();
    for _ in 0..3 {
        if machine.read(STATUS) & (LOGGED | OVERFLOW) == 0 {
            break;
        }
        machine.store(STATUS, LOGGED | OVERFLOW);
        let (head, tail) = (machine.read(EVENT_HEAD), machine.read(EVENT_TAIL));
        for at in (head..tail).step_by(16) {
            found.push(machine.get(LOG + u64::from(at) + 8));
        }
        machine.store(EVENT_HEAD, tail);
        // A sidecore looks.
        machine.run();
    }
    assert_eq!((found, machine.read(STATUS) & LOGGED), (vec![0xFFFF_D000], 0));
    // It is switched off, for another kernel.
    let control = machine.registers().get64(CONTROL);
    machine.store(CONTROL, control as u32 & !(FETCHES | LOGS | ENABLE) as u32);
    machine.run();
    assert_eq!(machine.real.reach[..3], [Reach::Memory; 3]);
    assert_eq!(machine.read(STATUS) & 0xFFFF, 0);
    machine.tail = 0;
    switch_on(&mut machine);
    assert!(machine.ask(&[ALL]));
    assert_eq!(machine.mapped(0).len(), 2);
}

/// Our own driver (`crates/iommu`): a table of all ids, everything for an invalidation of all, and
/// a new wait behind each group.
#[test]
fn a_driver_that_waits_for_the_status() {
    let mut machine = Machine::new(4096);
    let root = machine.table();
    machine.set_device(0, translated(root, 4, 5));
    machine.write64(at::COMMANDS, COMMANDS | LENGTH_256);
    machine.write64(at::EVENTS, LOG | LENGTH_256);
    machine.write64(at::DEVICE_TABLE, DEVICES | 511);
    let wanted = ENABLE | LOGS | FETCHES | 1 << 10 | WIDE_ENTRIES | X2APIC | OWN_INTERRUPT;
    machine.write64(CONTROL, wanted & !(ENABLE | LOGS | FETCHES));
    machine.run();
    machine.write64(CONTROL, wanted);
    machine.run();
    assert_eq!(machine.registers().get64(CONTROL), wanted);
    assert_eq!(machine.read(STATUS) & 0x18, 0x18);
    assert!(machine.ask(&[ALL]));
    for n in 0..300 {
        machine.map(root, n * PAGE, n * PAGE, READ | WRITE);
        assert!(machine.ask(&[[3 << 60 | 5 << 32, (n * PAGE) | 2]]));
    }
    assert_eq!(machine.mapped(0).len(), 300);
    machine.put(root, 0);
    assert!(machine.ask(&[[3 << 60 | 5 << 32, 0x7FFF_FFFF_FFFF_F003]]));
    assert_eq!(machine.mapped(0).len(), 0);
}
