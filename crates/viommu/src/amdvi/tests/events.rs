//! The event log, its interrupt, and commands that aren't any.

use super::super::at::{
    COMMAND_HEAD, COMMANDS_RUN, CONTROL, ENABLE, EVENT_HEAD, EVENT_INTERRUPT, EVENT_TAIL, FETCHES,
    INTERRUPT, LOG_RUNS, LOGGED, LOGS, OVERFLOW, OWN_INTERRUPT, STATUS, WAIT_INTERRUPT, WAITED,
};
use super::super::*;
use super::machine::*;
use crate::tests::model::{ENDPOINTS, LOW};
use crate::unit::Remapped;
use proptest::prelude::*;

const ON: u64 = ENABLE | LOGS | FETCHES;

fn on(control: u64) -> (Machine, [u64; 3]) {
    let (mut machine, roots) = Machine::on(4096);
    machine.write64(CONTROL, ON | control);
    machine.run();
    (machine, roots)
}

/// What is in the log from the head on, and the head behind it.
fn take(machine: &Machine) -> Vec<[u64; 2]> {
    let (mut head, tail) = (machine.read(EVENT_HEAD), machine.read(EVENT_TAIL));
    let mut all = Vec::new();
    while head != tail {
        let at = LOG + u64::from(head);
        all.push([machine.get(at), machine.get(at + 8)]);
        machine.put(at, 0);
        head = (head + 16) % 4096;
    }
    machine.store(EVENT_HEAD, head);
    all
}

fn status(machine: &Machine) -> u32 {
    machine.read(STATUS) & 0xFFFF
}

const RUNS: u32 = COMMANDS_RUN | LOG_RUNS;
const PR: u64 = 1 << 52;
const RW: u64 = 1 << 53;
const PE: u64 = 1 << 54;

#[test]
fn faults_are_told_with_their_domain() {
    let (mut machine, [root, ..]) = on(0);
    let [id, other, third] = ENDPOINTS.map(u64::from);
    machine.map(root, 0x7000, 0x20_0000, READ);
    machine.ask(&[ALL]);
    machine.tries(0, true, 0x7123);
    machine.tries(0, true, 0x9000);
    machine.tries(1, false, 0xFFFF_FFFF_FFFF_F000);
    // A page that leads out of memory is present, and isn't forbidden.
    machine.map(root, 0xA000, LOW.len, READ);
    machine.tries(0, false, 0xA000);
    let fault = 2 << 60;
    assert_eq!(
        take(&machine),
        [
            [fault | PR | RW | PE | 1 << 32 | id, 0x7000],
            [fault | RW | 1 << 32 | id, 0x9000],
            [fault | 2 << 32 | other, 0xFFFF_FFFF_FFFF_F000],
            [fault | 1 << 32 | id, 0xA000],
        ]
    );
    // No rights at all, an entry that is none, one that was valid only later; passing through.
    machine.set_device(0, [3, 0x55]);
    machine.set_device(1, [3 | 7 << 9 | 3 << 61, 0x55]);
    machine.set_device(2, [3, 3]);
    machine.ask(&[ALL]);
    machine.tries(0, false, 0x3000);
    machine.tries(1, true, 0x3000);
    machine.set_device(2, translated(root, 4, 3));
    machine.tries(2, true, 0x3000);
    machine.set_device(2, [0, 0]);
    machine.ask(&[ALL]);
    machine.tries(2, true, 0x3000);
    machine.tries(3, true, 0x3000);
    assert_eq!(
        take(&machine),
        [
            [fault | 0x55 << 32 | id, 0x3000],
            [1 << 60 | RW | other, 0x3000],
            [fault | RW | 3 << 32 | third, 0x3000],
        ]
    );
    assert_eq!(status(&machine), RUNS | LOGGED);
    machine.write64(CONTROL, 0);
    machine.run();
    machine.tries(0, true, 0x3000);
    assert_eq!(take(&machine), [[0; 2]; 0], "nothing is translated");
}

#[test]
fn a_log_that_is_off_or_nowhere_has_nothing() {
    for (control, events) in
        [(ENABLE, LOG | LENGTH_256), (ON, LOG | 7 << 56), (ON, 1 << 51 | LENGTH_256)]
    {
        let (mut machine, _) = on(0);
        machine.write64(at::EVENTS, events);
        machine.write64(CONTROL, control | EVENT_INTERRUPT);
        machine.run();
        machine.tries(0, true, 0x3000);
        assert_eq!((machine.read(EVENT_TAIL), status(&machine) & LOGGED), (0, 0));
        assert_eq!(machine.interrupt(), None);
    }
}

#[test]
fn the_interrupt_is_sent_once_until_its_bit_is_cleared() {
    for by_store in [false, true] {
        let (mut machine, _) = on(EVENT_INTERRUPT | OWN_INTERRUPT);
        // To 0x12345678, logical, vector 0x41, lowest priority.
        machine.write64(INTERRUPT, 0x12 << 56 | 1 << 40 | 0x41 << 32 | 0x34_5678 << 8 | 1 << 2);
        let wide = Remapped {
            data: 0x141,
            logical: true,
            hint: false,
            destination: 0x1234_5678,
            posted: None,
        };
        let notice = Some(Notice::Wide(wide));
        let clear = |machine: &Machine, bits: u32| match by_store {
            true => machine.store(STATUS, bits),
            false => machine.registers().write(STATUS as u64, 4, bits.into()),
        };
        machine.tries(0, true, 0x1000);
        assert_eq!((machine.interrupt(), machine.interrupt()), (notice, None));
        machine.tries(0, true, 0x2000);
        assert_eq!((machine.interrupt(), take(&machine).len()), (None, 2));
        // Linux clears first, and takes what is there then.
        clear(&machine, LOGGED | OVERFLOW);
        assert!(machine.registers().is_news());
        machine.run();
        assert_eq!((status(&machine), machine.interrupt()), (RUNS, None));
        machine.tries(0, true, 0x3000);
        assert_eq!((status(&machine), machine.interrupt()), (RUNS | LOGGED, notice));
        // The unit hasn't looked when there is something new.
        clear(&machine, LOGGED);
        machine.tries(0, true, 0x4000);
        assert_eq!((status(&machine), machine.interrupt()), (RUNS | LOGGED, notice));
        // Bits that aren't there, and that can't be cleared.
        clear(&machine, WAITED | RUNS);
        machine.run();
        assert_eq!(status(&machine), RUNS | LOGGED);
        // Its own function's, if the guest wants that.
        clear(&machine, LOGGED);
        machine.write64(CONTROL, ON | EVENT_INTERRUPT);
        machine.run();
        machine.tries(0, true, 0x5000);
        assert_eq!(machine.interrupt(), Some(Notice::Function));
    }
}

#[test]
fn what_was_logged_before_is_interrupted_for_when_that_is_switched_on() {
    let (mut machine, _) = on(0);
    machine.tries(0, true, 0x1000);
    assert_eq!(machine.interrupt(), None);
    machine.write64(CONTROL, ON | EVENT_INTERRUPT);
    machine.run();
    assert_eq!((machine.interrupt(), machine.interrupt()), (Some(Notice::Function), None));
    machine.write64(CONTROL, ON | EVENT_INTERRUPT | OWN_INTERRUPT);
    machine.run();
    assert_eq!(machine.interrupt(), None);
}

#[test]
fn a_full_log_stops_until_the_guest_restarts_it() {
    for seen in [true, false] {
        let (mut machine, _) = on(EVENT_INTERRUPT);
        for n in 0..255 {
            machine.tries(0, true, n << 12);
            assert_eq!(status(&machine), RUNS | LOGGED);
        }
        assert!(machine.interrupt().is_some());
        machine.tries(0, true, 255 << 12);
        assert_eq!(status(&machine), COMMANDS_RUN | LOGGED | OVERFLOW);
        assert!(machine.interrupt().is_some(), "that it overflowed is something new");
        // There is room, but that it overflowed is to be seen first.
        assert_eq!(take(&machine).len(), 255);
        machine.tries(0, true, 256 << 12);
        assert_eq!((take(&machine).len(), machine.interrupt()), (0, None));
        // Linux: off, cleared, on; whether the unit looks in between or not.
        machine.store(CONTROL, (ENABLE | FETCHES | EVENT_INTERRUPT) as u32);
        if seen {
            machine.run();
        }
        machine.store(STATUS, OVERFLOW);
        machine.store(CONTROL, (ON | EVENT_INTERRUPT) as u32);
        machine.run();
        assert_eq!(status(&machine), RUNS | LOGGED);
        machine.tries(0, true, 257 << 12);
        assert_eq!(take(&machine), [[2 << 60 | RW | 1 << 32 | 0x10, 257 << 12]]);
        // What is cleared counts before what comes next.
        for n in 0..256 {
            machine.tries(0, true, n << 12);
        }
        assert_eq!(take(&machine).len(), 255);
        machine.store(STATUS, OVERFLOW);
        machine.tries(0, true, 1 << 12);
        assert_eq!(take(&machine).len(), 1);
        // Xen's way: the log begins anew.
        machine.write64(CONTROL, ENABLE | FETCHES);
        machine.write64(EVENT_HEAD, 0);
        machine.write64(EVENT_TAIL, 0);
        machine.write64(CONTROL, ON);
        machine.run();
        machine.tries(0, true, 258 << 12);
        assert_eq!((machine.read(EVENT_TAIL), take(&machine).len()), (16, 1));
    }
}

/// The very bits that stand there, with nothing beside them, are seen to be written.
#[test]
fn bits_are_cleared_while_nothing_runs() {
    for by_store in [false, true] {
        let (mut machine, _) = on(0);
        machine.tries(0, true, 0x1000);
        machine.write64(CONTROL, 0);
        machine.run();
        assert_eq!(status(&machine), LOGGED);
        match by_store {
            true => machine.store(STATUS, LOGGED),
            false => machine.registers().write(STATUS as u64, 4, LOGGED.into()),
        }
        assert!(machine.registers().is_news());
        machine.run();
        assert_eq!(status(&machine), 0);
    }
}

#[test]
fn a_wait_interrupts_if_it_says_so() {
    let (mut machine, _) = on(WAIT_INTERRUPT | EVENT_INTERRUPT);
    machine.ask(&[[1 << 60, 0]]);
    assert_eq!((status(&machine), machine.interrupt()), (RUNS, None));
    machine.ask(&[[1 << 60 | 2, 0]]);
    assert_eq!((status(&machine), machine.interrupt()), (RUNS | WAITED, Some(Notice::Function)));
    machine.ask(&[[1 << 60 | 2, 0]]);
    assert_eq!(machine.interrupt(), None);
    // Its store has eight bytes, and F doesn't matter.
    machine.ask(&[[1 << 60 | 7 | (WORD + 8), 0x1122_3344_5566_7788]]);
    assert_eq!(machine.get(WORD + 8), 0x1122_3344_5566_7788);
    let (mut machine, _) = on(EVENT_INTERRUPT);
    machine.ask(&[[1 << 60 | 2, 0]]);
    assert_eq!((status(&machine), machine.interrupt()), (RUNS | WAITED, None));
}

#[test]
fn a_command_that_is_none_stops_the_buffer() {
    let wrong = [
        [0, 0],
        [6 << 60, 0],
        [7 << 60, 0],
        [9 << 60, 0],
        [15 << 60, 0],
        // Reserved bits.
        [1 << 60 | 1 << 52, 0],
        [2 << 60 | 1 << 16, 0],
        [2 << 60, 1],
        [3 << 60 | 1, 0],
        [3 << 60 | 1 << 48, 0],
        [3 << 60, 4],
        [3 << 60, 1 << 11],
        [5 << 60 | 1 << 16, 0],
        [5 << 60, 1],
        [8 << 60 | 1, 0],
        [8 << 60, 1],
    ];
    for command in wrong {
        let (mut machine, _) = on(EVENT_INTERRUPT);
        machine.ask(&[[4 << 60 | 0x123, 0x7FFF]]);
        let head = machine.read(COMMAND_HEAD);
        assert!(!machine.ask(&[command]), "{command:x?}");
        assert_eq!(status(&machine), LOG_RUNS | LOGGED);
        assert_eq!(take(&machine), [[5 << 60, COMMANDS + u64::from(head)]]);
        assert!(machine.interrupt().is_some() && !machine.registers().is_news());
        assert_eq!(machine.read(COMMAND_HEAD) & !0xF, head);
        // It goes on where the guest says, off and on, or at once.
        if command[1] == 0 {
            machine.write64(CONTROL, ENABLE | LOGS);
            machine.run();
            machine.write64(CONTROL, ON);
            machine.run();
            assert_eq!(take(&machine).len(), 1, "the command is still there");
        }
        machine.store(COMMAND_HEAD, head + 16);
        assert!(machine.registers().is_news());
        machine.run();
        assert_eq!((machine.get(WORD), status(&machine)), (machine.number, RUNS | LOGGED));
        assert!(machine.ask(&[ALL]));
    }
}

#[test]
fn what_can_not_be_accessed_stops_the_buffer() {
    let error = |machine: &mut Machine, at: u64| {
        assert_eq!(status(machine), LOG_RUNS | LOGGED);
        assert_eq!(take(machine), [[6 << 60, at]]);
    };
    // A wait's word outside of memory.
    let (mut machine, _) = on(0);
    assert!(!machine.ask(&[[1 << 60 | 1 << 51 | 1, 0]]));
    error(&mut machine, 1 << 51);
    // A tail or a head beyond the buffer, and that aren't a command's; a buffer outside of memory,
    // and of a length that is reserved.
    for (register, word) in [
        (at::COMMAND_TAIL, 4096),
        (at::COMMAND_TAIL, 8),
        (COMMAND_HEAD, 4096),
        (COMMAND_HEAD, 8),
        (COMMAND_HEAD, !1),
    ] {
        let (mut machine, _) = on(0);
        machine.store(register, word);
        machine.run();
        let at = if register == COMMAND_HEAD { word } else { 0 };
        error(&mut machine, COMMANDS + u64::from(at));
    }
    for (base, at) in [(1 << 51 | LENGTH_256, 1 << 51), (COMMANDS | 7 << 56, COMMANDS | 7 << 56)] {
        let (mut machine, _) = on(0);
        machine.write64(at::COMMANDS, base);
        assert!(!machine.ask(&[]));
        error(&mut machine, at);
    }
}

proptest! {
    /// Faults, the driver and the unit in any order: each fault is told once and in its order, or
    /// an overflow is, and the driver isn't left without an interrupt for something.
    #[test]
    fn nothing_is_lost(by_store: bool, all in prop::collection::vec((0..4_u8, 1..90_u64), 1..120)) {
        let (mut machine, _) = on(EVENT_INTERRUPT);
        let (mut tried, mut told, mut interrupts) = (0_u64, Vec::new(), 0);
        let mut overflows = false;
        // Linux' amd_iommu_handle_irq, which clears before it reads.
        let handle = |machine: &mut Machine, told: &mut Vec<[u64; 2]>| {
            let overflowed = machine.read(STATUS) & OVERFLOW != 0;
            match by_store {
                true => machine.store(STATUS, LOGGED | OVERFLOW),
                false => machine.write64(STATUS, (LOGGED | OVERFLOW).into()),
            }
            told.extend(take(machine));
            overflowed
        };
        for (what, times) in all {
            match what {
                0 | 1 => for _ in 0..times {
                    machine.tries(0, true, tried << 12);
                    tried += 1;
                }
                2 => machine.run(),
                _ if interrupts > 0 => {
                    interrupts = 0;
                    overflows |= handle(&mut machine, &mut told);
                }
                _ => {}
            }
            interrupts += usize::from(machine.interrupt().is_some());
        }
        machine.run();
        interrupts += usize::from(machine.interrupt().is_some());
        if interrupts > 0 {
            overflows |= handle(&mut machine, &mut told);
            machine.run();
        }
        prop_assert_eq!(status(&machine), RUNS);
        let pages: Vec<u64> = told.iter().map(|[_, address]| address >> 12).collect();
        prop_assert!(pages.is_sorted_by(|a, b| a < b), "{:?}", pages);
        prop_assert!(overflows || pages.len() as u64 == tried, "{:?} of {}", pages, tried);
    }
}
