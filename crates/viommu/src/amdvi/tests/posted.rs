//! Entries for guests of the guest's, of a unit that posts, and the log of what is posted.

use super::super::at::{
    CONTROL, ENABLE, FETCHES, GUEST_INTERRUPT, GUEST_LOG, GUEST_LOG_HEAD, GUEST_LOG_INTERRUPT,
    GUEST_LOG_OVERFLOW, GUEST_LOG_RUNS, GUEST_LOG_TAIL, GUEST_LOGGED, GUEST_LOGS, OWN_INTERRUPT,
    STATUS, WIDE_ENTRIES, X2APIC,
};
use super::super::*;
use super::machine::*;
use crate::tests::model::ENDPOINTS;
use crate::unit::{Blocked, Notice, Posted, Remapped};

const ON: u64 = ENABLE | FETCHES | WIDE_ENTRIES | X2APIC;
/// Of 512 entries of 8 bytes.
const LOG_BYTES: u64 = 4096;

fn posting(control: u64) -> Machine {
    let (mut machine, _) = Machine::on(64);
    machine.page = Page::new(true, machine.words);
    machine.unit.reset(&machine.device, Registers::new(&machine.page));
    machine.write64(at::DEVICE_TABLE, DEVICES);
    machine.write64(at::COMMANDS, COMMANDS | LENGTH_256);
    machine.write64(GUEST_LOG, LOG | 9 << 56);
    machine.write64(CONTROL, control);
    machine.run();
    let entries = 1 | 5 << 1 | ENTRIES | 2 << 60;
    machine.put(DEVICES + 32 * u64::from(ENDPOINTS[0]) + 16, entries);
    machine
}

fn of(machine: &Machine) -> Result<Option<Remapped>, Blocked> {
    let source = ENDPOINTS[0] as u16;
    machine.unit.remapping().of_msi(&machine.window(), source, (0xFEE0_0000, 0))
}

#[test]
fn an_entry_says_for_whom_and_where() {
    let machine = posting(ON);
    assert_eq!(machine.registers().get64(at::FEATURES), extended_features(true));
    // RemapEn, GALogIntr, IsRun, GuestMode, to 0x1234_5678, a tag; a vector, a page.
    let low = 1 | 1 << 2 | 1 << 6 | 1 << 7 | 0x34_5678 << 8 | 0xABCD_EF01 << 32;
    machine.put(ENTRIES, low);
    machine.put(ENTRIES + 8, 0x41 | 0x7_6543_2000 | 0x12 << 56);
    let posted = Posted { page: 0x7_6543_2000, tag: Some(0xABCD_EF01), runs: true };
    let wanted = Remapped {
        data: 0x41,
        logical: false,
        hint: false,
        destination: 0x1234_5678,
        posted: Some(posted),
    };
    assert_eq!(of(&machine), Ok(Some(wanted)));
    machine.put(ENTRIES, low & !(1 << 2 | 1 << 6));
    let posted = Posted { tag: None, runs: false, ..posted };
    assert_eq!(of(&machine), Ok(Some(Remapped { posted: Some(posted), ..wanted })));
    machine.put(ENTRIES, low & !1);
    assert_eq!(of(&machine), Err(Blocked::NotPresent(0)));
    // A unit whose entries are others has none of these.
    for less in [WIDE_ENTRIES, X2APIC] {
        let machine = posting(ON & !less);
        machine.put(ENTRIES, low);
        machine.put(ENTRIES + 8, 0x41);
        assert_eq!(of(&machine), Err(Blocked::NotPresent(0)));
    }
}

fn log(machine: &mut Machine, tag: u32) -> Option<Notice> {
    let (page, window) = (Registers::new(&machine.page), machine.memory.window());
    machine.unit.log_posted(page, &window, tag);
    machine.unit.take_interrupt(page)
}

fn status(machine: &Machine) -> u32 {
    machine.read(STATUS) & (GUEST_LOG_RUNS | GUEST_LOG_OVERFLOW | GUEST_LOGGED)
}

#[test]
fn what_is_posted_to_nobody_who_runs_is_logged_with_an_interrupt() {
    let mut machine = posting(ON | GUEST_LOGS | GUEST_LOG_INTERRUPT | OWN_INTERRUPT);
    assert_eq!(status(&machine), GUEST_LOG_RUNS, "Linux waits for that");
    machine.write64(GUEST_INTERRUPT, 3 << 8 | 0x52 << 32);
    let wide = Remapped { data: 0x52, logical: false, hint: false, destination: 3, posted: None };
    assert_eq!(log(&mut machine, 7), Some(Notice::Wide(wide)));
    assert_eq!(status(&machine), GUEST_LOG_RUNS | GUEST_LOGGED);
    assert_eq!(log(&mut machine, 8), None, "once, until the guest clears it");
    assert_eq!((machine.read(GUEST_LOG_TAIL), machine.get(LOG)), (16, 1 << 60 | 7));
    assert_eq!(machine.get(LOG + 8), 1 << 60 | 8);
    machine.write64(STATUS, GUEST_LOGGED.into());
    machine.run();
    assert!(log(&mut machine, 9).is_some());
    // It isn't written over, until the guest restarts it.
    machine.write64(STATUS, GUEST_LOGGED.into());
    machine.run();
    let most = LOG_BYTES / 8 - 1;
    for tag in 0..2 * most {
        log(&mut machine, tag as u32);
    }
    assert_eq!(status(&machine), GUEST_LOG_OVERFLOW | GUEST_LOGGED);
    assert_eq!(u64::from(machine.read(GUEST_LOG_TAIL)), 8 * most);
    machine.write64(GUEST_LOG_HEAD, 8 * most);
    machine.write64(STATUS, (GUEST_LOG_OVERFLOW | GUEST_LOGGED).into());
    machine.run();
    assert_eq!(status(&machine), GUEST_LOG_RUNS);
    assert!(log(&mut machine, 10).is_some());
}

#[test]
fn a_unit_that_has_no_log_for_it_logs_nothing() {
    let mut machine = posting(ON);
    assert_eq!((log(&mut machine, 7), status(&machine)), (None, 0));
    // Nor one in no memory.
    let mut machine = posting(ON | GUEST_LOGS | GUEST_LOG_INTERRUPT | OWN_INTERRUPT);
    machine.write64(GUEST_LOG, 1 << 51 | 9 << 56);
    assert_eq!((log(&mut machine, 7), machine.read(GUEST_LOG_TAIL)), (None, 0));
    // A unit that doesn't post has neither entries nor a log.
    let (mut machine, _) = Machine::on(64);
    machine.write64(CONTROL, ON | GUEST_LOGS);
    machine.run();
    assert_eq!((log(&mut machine, 7), status(&machine)), (None, 0));
}
