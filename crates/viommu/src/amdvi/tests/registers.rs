//! What the registers say and take, written by exits and by stores.

use super::super::at::{
    COMMANDS_RUN, CONTROL, ENABLE, EVENT_INTERRUPT, FETCHES, LOG_RUNS, LOGS, OVERFLOW,
    OWN_INTERRUPT, STATUS, WIDE_ENTRIES, X2APIC,
};
use super::super::*;
use super::machine::*;
use crate::Reach;

const RUNS: u32 = COMMANDS_RUN | LOG_RUNS;

#[test]
fn what_a_driver_asks_of_the_features() {
    let machine = Machine::new(1);
    let features = machine.registers().get64(at::FEATURES);
    assert_eq!(features, extended_features(false));
    // XTSup, IASup, GASup; no PPRSup, GTSup, PCSup; HATS and GAMSup are 0.
    assert_eq!(features, 0b1100_0100);
    // Type 3, revision 1; NpCache and EFRSup, no IotlbSup and HtTunnel.
    assert_eq!((CAPABILITY & 0xFF, CAPABILITY >> 16), (0x0F, 0b0000_1100_0000_1011));
}

#[test]
fn the_status_says_what_runs() {
    let mut machine = Machine::new(1);
    let status = |machine: &Machine| machine.read(STATUS) & 0xFFFF;
    assert_eq!(status(&machine), 0);
    machine.write64(CONTROL, FETCHES | LOGS);
    machine.run();
    assert_eq!(status(&machine), 0, "nothing runs without IommuEn");
    for (control, runs) in
        [(FETCHES | LOGS, RUNS), (LOGS, LOG_RUNS), (FETCHES, COMMANDS_RUN), (0, 0)]
    {
        machine.write64(CONTROL, control | ENABLE);
        machine.run();
        assert_eq!(status(&machine), runs);
    }
}

#[test]
fn what_is_not_offered_can_not_be_set() {
    let mut machine = Machine::new(1);
    // An exit's write, and a store: IRTCacheDis, PPR, GT, GA log, GAM, segments, and all others.
    machine.write64(CONTROL, !ENABLE);
    machine.run();
    let wanted = 0x1FFE | WIDE_ENTRIES | X2APIC | OWN_INTERRUPT;
    assert_eq!(machine.registers().get64(CONTROL), wanted);
    machine.store(CONTROL, !1);
    machine.store(CONTROL + 4, !0);
    assert!(machine.registers().is_news());
    machine.run();
    assert_eq!(machine.registers().get64(CONTROL), wanted);
}

#[test]
fn what_the_guest_can_only_read_is_put_right() {
    let (mut machine, _) = Machine::on(4096);
    machine.store(at::FEATURES, !0);
    machine.store(STATUS, !0);
    assert!(machine.ask(&[]));
    assert_eq!(machine.registers().get64(at::FEATURES), extended_features(false));
    assert_eq!(machine.read(STATUS) & 0xFFFF, RUNS);
    // An exit doesn't even write it.
    machine.write64(at::FEATURES, 0);
    assert_eq!(machine.registers().get64(at::FEATURES), extended_features(false));
    for (at, size) in [(STATUS + 2, 4), (STATUS, 2), (STATUS, 1), (0x4000, 8), (usize::MAX, 8)] {
        machine.registers().write(at as u64, size, 0);
        assert!(!machine.registers().is_news());
    }
}

#[test]
fn translation_goes_on_while_other_bits_change() {
    let (mut machine, _) = Machine::on(4096);
    let place = machine.place(0);
    for control in [ENABLE, ENABLE | LOGS | EVENT_INTERRUPT, ENABLE | LOGS | FETCHES] {
        machine.write64(CONTROL, control);
        machine.run();
        assert_eq!((machine.place(0), machine.reroutes), (place, 0));
    }
    for control in [ENABLE | WIDE_ENTRIES, ENABLE | WIDE_ENTRIES | X2APIC] {
        machine.reroutes = 0;
        machine.write64(CONTROL, control);
        machine.run();
        assert_eq!((machine.place(0), machine.reroutes), (place, 1), "entries are read anew");
    }
}

/// A guest that sets and clears a bit while the unit is at it: what was begun ends.
#[test]
fn what_was_begun_ends_whatever_is_written_meanwhile() {
    let mut machine = Machine::new(4096);
    let root = machine.table();
    machine.set_device(0, translated(root, 4, 1));
    machine.write64(at::DEVICE_TABLE, DEVICES);
    machine.write64(CONTROL, ENABLE);
    machine.step();
    machine.write64(CONTROL, 0);
    assert!(machine.registers().is_news());
    machine.run();
    assert_eq!(machine.real.reach[0], Reach::Memory);
    assert_eq!(machine.read(CONTROL), 0);
    // And of commands: the tail goes back while one is carried out.
    let (mut machine, [root, ..]) = Machine::on(4096);
    machine.map(root, 0x7000, 0x20_0000, READ);
    machine.push(pages(1, 0x7000, 0));
    machine.write64(at::COMMAND_TAIL, machine.tail);
    assert_eq!(machine.step(), Step::Worked);
    machine.write64(at::COMMAND_TAIL, 0);
    assert!(machine.registers().is_news());
    machine.step();
    assert_eq!(machine.mapped(0).len(), 1);
}

#[test]
fn the_guest_says_where_commands_go_on_from() {
    let (mut machine, _) = Machine::on(4096);
    assert!(machine.ask(&[ALL, ALL, ALL]));
    assert_eq!(machine.read(at::COMMAND_HEAD), 64);
    // As Linux does: off, both registers, on; all between two looks.
    machine.store(CONTROL, (ENABLE | LOGS) as u32);
    machine.store(at::COMMAND_HEAD, 0);
    machine.store(at::COMMAND_TAIL, 0);
    machine.store(CONTROL, (ENABLE | LOGS | FETCHES) as u32);
    machine.run();
    machine.tail = 0;
    assert!(machine.ask(&[ALL]));
    assert_eq!(machine.read(at::COMMAND_HEAD), 32);
    // And seen while it is off.
    machine.write64(CONTROL, ENABLE | LOGS);
    machine.run();
    machine.push(ALL);
    machine.write64(at::COMMAND_TAIL, machine.tail);
    machine.run();
    assert_eq!(machine.read(at::COMMAND_HEAD), 32, "no command is fetched");
    machine.write64(at::COMMAND_HEAD, 0x100);
    machine.tail = 0x100;
    machine.write64(at::COMMAND_TAIL, 0x100);
    machine.write64(CONTROL, ENABLE | LOGS | FETCHES);
    assert!(machine.ask(&[]));
    assert_eq!(machine.read(at::COMMAND_HEAD), 0x110);
}

#[test]
fn a_reset_is_as_at_power_on() {
    let (mut machine, _) = Machine::on(4096);
    machine.push([0, 0]);
    machine.write64(at::COMMAND_TAIL, machine.tail);
    machine.run();
    machine.tries(0, true, 0x1000);
    machine.device.change(&mut machine.real, Change::Restart);
    machine.unit.reset(&machine.device, Registers::new(&machine.page));
    let fresh = Machine::new(1);
    let all = |machine: &Machine| (0..4096).map(|n| machine.read(4 * n)).collect::<Vec<_>>();
    assert_eq!(all(&machine), all(&fresh));
    assert!(!machine.registers().is_news() && !machine.unit.remapping().is_on());
    assert_eq!(machine.interrupt(), None);
}

/// Who writes for ever isn't looked at for nothing, and so not for ever.
#[test]
fn each_look_at_what_was_written_costs_something() {
    let (mut machine, _) = Machine::on(4096);
    for (at, word) in
        [(STATUS, OVERFLOW), (STATUS, 0), (CONTROL, ENABLE as u32), (CONTROL, 1 << 31)]
    {
        machine.unit.take_words();
        machine.store(at, word);
        assert_eq!(machine.step(), Step::Worked);
        assert!(machine.unit.take_words() > 0, "{at:#x}");
        machine.run();
    }
}
