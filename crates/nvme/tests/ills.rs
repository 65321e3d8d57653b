//! Controllers that hang, fail, lie or go: how the driver ends.
mod model;

use blk::{Backend, Failure, Operation, Submitted};
use model::{Ills, TIMES, World, token};
use nvme::{Fault, Part, State, Unfit};

const DISK: usize = 1 << 20;

fn with(ills: Ills) -> World {
    World::new(DISK, 9, |model| model.ills = ills)
}

fn running() -> World {
    let mut world = with(Ills::default());
    assert_eq!(State::Running, world.start());
    world.controller.add_disk(Part { first: 0, bytes: DISK as u64 }).unwrap();
    world
}

fn read(world: &mut World, number: usize) -> Submitted {
    let span = world.memory.window().span(0, 4096).unwrap();
    world.controller.disk(0).submit(token(number), Operation::Read { sector: 0, into: &[span] })
}

/// Rounds until something ended, or for too long.
fn until_ended(world: &mut World) -> Vec<(usize, Result<(), Failure>)> {
    for _ in 0..3 * TIMES.command {
        let ended = world.round();
        if !ended.is_empty() {
            let of =
                |completion: blk::Completion| (completion.token.bits() as usize, completion.result);
            return ended.into_iter().map(|(_, completion)| of(completion)).collect();
        }
    }
    Vec::new()
}

#[test]
fn what_cant_be_used_is_refused() {
    let unfit = |unfit| State::Dead(Fault::Unfit(unfit));
    let told =
        |told: &[(u32, usize, u8)]| with(Ills { told: told.to_vec(), ..Ills::default() }).start();
    assert_eq!(State::Running, told(&[]));
    assert_eq!(unfit(Unfit::Kind(2)), told(&[(1, 111, 2)]));
    assert_eq!(unfit(Unfit::Entries), told(&[(1, 512, 0x77)]));
    assert_eq!(unfit(Unfit::Entries), told(&[(1, 513, 0)]));
    assert_eq!(unfit(Unfit::NoNamespace), told(&[(2, 0, 0)]));
    assert_eq!(unfit(Unfit::Metadata), told(&[(0, 136, 8)]));
    assert_eq!(unfit(Unfit::Block(13)), told(&[(0, 138, 13)]));
    assert_eq!(unfit(Unfit::Block(255)), told(&[(0, 138, 255)]));
    assert_eq!(
        unfit(Unfit::Size(u64::from_le_bytes([0, 8, 0, 0, 0, 0, 0, 255]))),
        told(&[(0, 7, 255)])
    );
    let cap = |change: fn(&mut u64)| World::new(DISK, 9, |model| change(&mut model.cap)).start();
    assert_eq!(unfit(Unfit::ShortQueues(255)), cap(|cap| *cap = *cap & !0xFFFF | 254));
    assert_eq!(State::Running, cap(|cap| *cap = *cap & !0xFFFF | 255));
    assert_eq!(unfit(Unfit::Commands), cap(|cap| *cap &= !(1 << 37)));
    assert_eq!(unfit(Unfit::Pages), cap(|cap| *cap |= 1 << 48));
    assert_eq!(State::Unstopped(Fault::Gone), cap(|cap| *cap = u64::MAX));
}

#[test]
fn a_start_that_fails_ends() {
    let start = |ills| with(ills).start();
    let ills = Ills::default;
    let dead = State::Dead;
    assert_eq!(dead(Fault::NotReady), start(Ills { never_ready: true, ..ills() }));
    let never_stops = Ills { never_stops: true, ..ills() };
    assert_eq!(State::Unstopped(Fault::NotStopped), start(never_stops));
    assert_eq!(dead(Fault::AdminTimeout), start(Ills { deaf_to_admin: true, ..ills() }));
    assert_eq!(dead(Fault::Fatal), start(Ills { fatal: true, ..ills() }));
    assert_eq!(State::Unstopped(Fault::Gone), start(Ills { gone: true, ..ills() }));
    for needed in [0x06, 0x05, 0x01] {
        let fails = Ills { fails_admin: Some(needed), ..ills() };
        assert_eq!(dead(Fault::Admin(2)), start(fails), "{needed:#x}");
    }
}

#[test]
fn limits_are_asked_for_and_kept() {
    let of = |told: &[(u32, usize, u8)]| {
        let mut world = with(Ills { told: told.to_vec(), ..Ills::default() });
        assert_eq!(State::Running, world.start());
        let abilities = world.controller.abilities().unwrap();
        (abilities.zeroes, abilities.discards)
    };
    assert_eq!((true, true), of(&[]));
    // 2^7 pages are a piece.
    assert_eq!((true, true), of(&[(6, 1, 7)]));
    assert_eq!((false, true), of(&[(6, 1, 6)]));
    assert_eq!((true, false), of(&[(6, 4, 255)]));
    assert_eq!((true, true), of(&[(6, 5, 4)]));
    assert_eq!((false, false), of(&[(1, 520, 0)]));
}

#[test]
fn a_late_command_fails_when_the_controller_has_stopped() {
    let mut world = running();
    assert_eq!(Submitted::Accepted, read(&mut world, 1));
    assert_eq!(Submitted::Accepted, read(&mut world, 2));
    assert_eq!([(1, Err(Failure::Io)), (2, Err(Failure::Io))], *until_ended(&mut world));
    assert!(world.now > TIMES.command && world.now < 2 * TIMES.command);
    assert_eq!(Some(Fault::Timeout), world.controller.take_fault());
    assert_eq!(None, world.controller.take_fault());
    // Meanwhile it waits for room; then it goes on.
    assert_eq!(Submitted::Full, read(&mut world, 3));
    assert_eq!(State::Running, world.start());
    assert_eq!((2, 1), (world.model.borrow().starts, world.controller.statistics().resets));
    assert_eq!(Submitted::Accepted, read(&mut world, 4));
    world.round();
    world.model.borrow_mut().end(0, 0).unwrap();
    assert_eq!([(4, Ok(()))], *until_ended(&mut world));
}

#[test]
fn one_that_always_hangs_is_given_up() {
    let mut world = running();
    let mut resets = 0;
    loop {
        match read(&mut world, 1) {
            Submitted::Accepted => {
                assert_eq!([(1, Err(Failure::Io))], *until_ended(&mut world));
                resets += 1;
            }
            Submitted::Full => {
                world.start();
            }
            done => {
                assert_eq!(Submitted::Done(Err(Failure::Io)), done);
                break;
            }
        }
    }
    assert_eq!((4, State::Dead(Fault::Timeout)), (resets, world.controller.state()));
}

#[test]
fn one_that_doesnt_stop_has_to_be_cut_off_first() {
    let mut world = running();
    assert_eq!(Submitted::Accepted, read(&mut world, 1));
    world.model.borrow_mut().ills.never_stops = true;
    assert!(until_ended(&mut world).is_empty(), "its memory may still be in use");
    assert_eq!(State::Unstopped(Fault::NotStopped), world.controller.state());
    assert_eq!((1, Submitted::Full), (world.controller.under_way(), read(&mut world, 2)));
    world.controller.cut_off();
    assert_eq!([(1, Err(Failure::Io))], *until_ended(&mut world));
    assert_eq!(State::Dead(Fault::NotStopped), world.controller.state());
    assert_eq!(Submitted::Done(Err(Failure::Io)), read(&mut world, 2));
}

#[test]
fn one_that_is_gone_has_to_be_cut_off_first() {
    let mut world = running();
    read(&mut world, 1);
    world.model.borrow_mut().ills.gone = true;
    assert!(until_ended(&mut world).is_empty());
    assert_eq!(State::Unstopped(Fault::Gone), world.controller.state());
    world.controller.cut_off();
    assert_eq!(1, until_ended(&mut world).len());
}

#[test]
fn a_fatal_error_is_seen_soon() {
    let mut world = running();
    read(&mut world, 1);
    world.round();
    let before = world.now;
    world.model.borrow_mut().ills.fatal = true;
    assert_eq!(1, until_ended(&mut world).len());
    assert!(world.now - before <= 2 * TIMES.look);
    assert_eq!(Some(Fault::Fatal), world.controller.take_fault());
}

#[test]
fn another_namespace_after_a_reset_is_refused() {
    let mut world = running();
    read(&mut world, 1);
    world.model.borrow_mut().disk.truncate(DISK / 2);
    assert_eq!(1, until_ended(&mut world).len());
    assert_eq!(State::Dead(Fault::Unfit(Unfit::Changed)), world.start());
}

#[test]
fn a_flood_of_completions_is_passed_over_in_bounded_steps() {
    let mut world = running();
    read(&mut world, 1);
    world.round();
    for _ in 0..200 {
        world.model.borrow_mut().write_completion(false, 77, 1, 0);
    }
    assert_eq!(None, world.controller.poll());
    assert_eq!(64, world.controller.statistics().strays);
}

#[test]
fn a_shutdown_waits_for_what_is_under_way_and_is_for_good() {
    let mut world = running();
    assert_eq!(Submitted::Accepted, read(&mut world, 1));
    assert!(!world.controller.shut_down());
    assert_eq!(State::Running, world.controller.state(), "one is under way");
    world.round();
    assert!(world.model.borrow_mut().end(0, 0).is_some());
    assert_eq!(vec![(1, Ok(()))], until_ended(&mut world));
    assert!(!world.controller.shut_down());
    assert_eq!(State::ShutDown, world.controller.state());
    assert_eq!(Submitted::Done(Err(Failure::Io)), read(&mut world, 2));
    world.round();
    assert!(world.controller.shut_down() && world.controller.take_fault().is_none());
    assert_eq!(State::ShutDown, world.controller.state());
}

#[test]
fn a_shutdown_that_doesnt_end_is_told_and_waited_for_no_longer() {
    let mut world = with(Ills { never_shut_down: true, ..Ills::default() });
    assert_eq!(State::Running, world.start());
    let rounds = (0..2 * TIMES.shutdown).take_while(|_| {
        let over = world.controller.shut_down();
        world.round();
        !over
    });
    assert!((TIMES.shutdown - 2..=TIMES.shutdown + 2).contains(&(rounds.count() as u64)));
    assert_eq!(Some(Fault::NotShutDown), world.controller.take_fault());
}

#[test]
fn who_cant_be_shut_down_is_left_alone() {
    let mut world = with(Ills { told: vec![(1, 111, 2)], ..Ills::default() });
    world.start();
    assert!(world.controller.shut_down());
    assert!(matches!(world.controller.state(), State::Dead(_)));
    let mut world = with(Ills { never_ready: true, ..Ills::default() });
    assert!(!world.controller.shut_down(), "it starts");
    world.start();
    assert!(world.controller.shut_down());
}
