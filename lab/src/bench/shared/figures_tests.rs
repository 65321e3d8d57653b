//! Counts of two guests become the figures that they are.

use super::*;

/// A window with so many I/Os, an interrupt each, of which so many came while the guest hadn't
/// the core, and so many exited on arrival.
fn window(kind: Kind, operations: u64, away: u64, exited: u64) -> Window {
    let mut by_reason = vec![0; Reason::COUNT];
    by_reason[Reason::DeviceInterrupt as usize] = exited;
    by_reason[Reason::DeviceEoi as usize] = away + exited;
    let injected = away + exited;
    let exits = Exits {
        entries: 0,
        injected,
        device_injected: injected,
        device_merged: 0,
        slices: operations / 100,
        waits: vec![0, away],
        by_reason,
    };
    Window {
        kind,
        spun: 0,
        operations,
        interrupts: operations,
        ticks: operations / 40,
        nanoseconds: 1_000 * operations,
        bytes: 0,
        packets: 0,
        exits: Some(exits),
        guest: 1_900 * operations,
        host: 100 * operations,
        others: 50 * operations,
        vmruns: 0,
        outer_vmruns: 0,
    }
}

fn side(away: u64, exited: u64) -> Side {
    let windows = [window(Kind::Short, 1_000, 7, 0), window(Kind::Long, 5_000, 7 + away, exited)];
    Side::of(&windows).unwrap()
}

#[test]
fn interrupts_of_the_one_that_waits_are_not_of_the_resident_one() {
    let eli = side(1_000, 0);
    assert_eq!(
        (eli.operations, eli.while_resident(), eli.exits_while_resident()),
        (4_000, 3_000, 0)
    );
    // With half of those while resident trapped, their completions exit, too.
    let half = side(1_000, 1_500);
    assert_eq!((half.while_resident(), half.exits_while_resident()), (3_000, 3_000));
    let trap = side(1_000, 3_000);
    assert_eq!((trap.while_resident(), trap.exits_while_resident()), (3_000, 6_000));
}

#[test]
fn the_core_is_shared_by_all_operations() {
    let tick = Tick { guest: 4_000.0, host: 1_000.0, exits: Vec::new() };
    let both =
        Together { sides: vec![side(1_000, 0), side(1_000, 0)], tick, tsc_hz: Some(1_000_000) };
    // 2,000 instructions of the core for each I/O of one guest, in which the other has one, too.
    assert_eq!(both.cost(), 1_000.0);
    assert_eq!(both.guest_share(), 0.95);
    // A tick of each guest in 40 I/Os: 100 + 25 instructions an I/O of either.
    assert!((both.cost_ticks_out() - 875.0).abs() < 1e-6, "{}", both.cost_ticks_out());
    let share = both.guest_share_ticks_out();
    assert!((share - 1_700.0 / 1_750.0).abs() < 1e-9, "{share}");
    assert_eq!(both.exits_while_resident(), 0.0);
    // Of core 0 50 in the time of an I/O of each; 25 of 1,025, for both.
    assert_eq!(both.others(), 25.0);
    assert!((both.others_share() - 25.0 / 1_025.0 / 2.0).abs() < 1e-9);
    let point = both.point();
    assert_eq!((point.pace, point.interrupts, point.cost), (500.0, 1.0, 1_000.0));
    assert_eq!(both.instructions_per_slice(), 100_000.0);
    assert_eq!(both.waits(), [0, 2 * (7 + 1_007)]);
    let one = Together { sides: vec![side(0, 0)], tick: Tick::default(), tsc_hz: None };
    assert_eq!(one.cost(), 2_000.0);
    assert_eq!(bucket_end(9, 1_000_000), 1_024.0);
}

#[test]
fn runs_are_pooled_by_what_was_counted() {
    let tick = |guest| Tick { guest, host: 0.0, exits: Vec::new() };
    let run = |of: Side, guest| Together { sides: vec![of], tick: tick(guest), tsc_hz: None };
    let fast = run(side(1_000, 0), 1_000.0);
    let slow = run(Side { guest: 4 * fast.sides[0].guest, ..side(3_000, 0) }, 3_000.0);
    let both = Together::pooled(&[fast.clone(), slow.clone()]);
    assert_eq!((both.operations(), both.sides.len()), (8_000, 1));
    assert_eq!(both.sides[0].exits.slices, 80);
    assert_eq!(both.sum(Side::while_resident), 4_000);
    assert_eq!(both.waits(), [0, 7 + 1_007 + 7 + 3_007]);
    assert_eq!((both.cost(), both.tick.guest), ((2_000.0 + 7_700.0) / 2.0, 2_000.0));
    let fractions = fractions(&[fast.clone(), slow.clone()], &[slow, fast], Together::cost);
    assert_eq!(fractions, [2_000.0 / 7_700.0, 7_700.0 / 2_000.0]);
}

#[test]
fn windows_that_say_nothing_are_refused() {
    assert_eq!(Side::of(&[]), Err(Error::Unpaired));
    let mut windows = [window(Kind::Short, 10, 0, 0), window(Kind::Long, 20, 0, 0)];
    windows.iter_mut().for_each(|w| w.interrupts = 0);
    assert_eq!(Side::of(&windows), Err(Error::Polled(10)));
}
