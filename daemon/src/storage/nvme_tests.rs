//! Disks on the model of a controller that the driver's own tests have.

#[path = "../../../crates/nvme/tests/model/mod.rs"]
mod model;

use super::nvme::{Driven, NvmeStore};
use crate::clock::{Clock, HERTZ};
use ::nvme::{Controller, MEMORY};
use blk::{Failure, Operation, Submitted, Token};
use model::{DMA, DRIVER, GUEST, Model, Shared};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use window::{Memory, Span, Window};

const DISK: u64 = 1 << 20;
const MICROSECOND: u64 = HERTZ / 1_000_000;

type Store = NvmeStore<Shared>;

struct World {
    window: Window,
    model: Rc<RefCell<Model>>,
    now: Rc<Cell<u64>>,
    driven: Rc<RefCell<Driven<Shared>>>,
    /// Its memory was taken from it.
    is_cut_off: Rc<Cell<bool>>,
    _memory: Memory,
}

impl World {
    fn new() -> World {
        let driver = MEMORY.next_multiple_of(4096);
        let memory = Memory::new(&[(0, GUEST), (DRIVER, driver)], DMA);
        let window = memory.window();
        let model = Rc::new(RefCell::new(Model::new(window, DISK as usize, 9)));
        let (now, is_cut_off) = (Rc::new(Cell::new(HERTZ)), Rc::new(Cell::new(false)));
        let span = window.span(DRIVER, driver).expect("the driver's memory");
        let make = |times, now| Controller::new(Shared(model.clone()), span, times, now);
        let cut = is_cut_off.clone();
        let cut_off = Box::new(move || {
            cut.set(true);
            Ok(())
        });
        let pause = || pass(&model, &now);
        let clock = Clock::Manual(now.clone(), Rc::default());
        let driven = Driven::start("it", clock, make, cut_off, pause).expect("it starts");
        let driven = Rc::new(RefCell::new(driven));
        World { window, model, now, driven, is_cut_off, _memory: memory }
    }

    fn disk(&self, offset: u64, size: Option<u64>, writes: bool) -> anyhow::Result<Store> {
        NvmeStore::new(&self.driven, offset, size, writes)
    }

    /// The controller takes commands, and ends one of them if `ends`.
    fn round(&self, store: &mut Store, ends: bool) {
        store.push();
        pass(&self.model, &self.now);
        if ends {
            self.model.borrow_mut().end(0, 0);
        }
    }

    fn guest(&self, at: u64) -> Span {
        self.window.span(at, 4096).expect("a page")
    }
}

fn pass(model: &RefCell<Model>, now: &Cell<u64>) {
    model.borrow_mut().run();
    now.set(now.get() + MICROSECOND);
}

fn token(number: u64) -> Token {
    Token::from_bits(number)
}

fn write(sector: u64, span: &Span) -> Operation<'_> {
    Operation::Write { sector, from: std::slice::from_ref(span), durable: false }
}

#[test]
fn two_disks_have_their_parts_and_what_ends_of_them() {
    let world = World::new();
    let mut first = world.disk(0, Some(DISK / 2), true).expect("a part");
    let mut second = world.disk(DISK / 2, None, true).expect("the rest");
    assert_eq!((first.size(), second.size()), (DISK / 2, DISK / 2));
    for (byte, at) in [(1, 0), (2, 4096)] {
        world.guest(at).fill(byte);
    }
    let done = first.submit(token(7), write(8, &world.guest(0)));
    assert_eq!(done, Submitted::Accepted);
    let done = second.submit(token(8), write(8, &world.guest(4096)));
    assert_eq!(done, Submitted::Accepted);
    assert_eq!((first.outstanding(), second.outstanding()), (1, 1));
    world.round(&mut first, true);
    world.round(&mut first, true);
    // Who asks first hears of its own, whoever ended first.
    let ended = second.poll().expect("it has ended");
    assert_eq!((ended.token, ended.result), (token(8), Ok(())));
    assert!(second.poll().is_none());
    assert_eq!(first.outstanding(), 1);
    assert_eq!(first.poll().map(|ended| ended.token), Some(token(7)));
    assert_eq!((first.outstanding(), second.outstanding()), (0, 0));
    let model = world.model.borrow();
    let half = DISK as usize / 2;
    assert_eq!((model.disk[4096], model.disk[half + 4096]), (1, 2));
    drop(model);
    // The part's last sector, and none behind it.
    let beyond = first.submit(token(9), write(DISK / 1024 - 7, &world.guest(0)));
    assert_eq!(beyond, Submitted::Done(Err(Failure::Io)));
}

#[test]
fn no_byte_is_two_disks_unless_neither_writes() {
    let world = World::new();
    let first = world.disk(0, Some(8192), true).expect("a part");
    let said = |disk: anyhow::Result<Store>| disk.err().map(|error| error.to_string());
    let overlaps = said(world.disk(4096, None, false)).expect("it overlaps");
    assert!(overlaps.starts_with("another disk has bytes of this part"), "{overlaps}");
    let _second = world.disk(8192, Some(4096), false).expect("the next part");
    let _third = world.disk(8192, None, false).expect("neither writes");
    let beyond = said(world.disk(DISK, None, true)).expect("nothing is there");
    assert!(beyond.contains("its offset is 1048576, and the namespace has 1048576"), "{beyond}");
    let beyond = said(world.disk(DISK - 4096, Some(8192), false)).expect("too much");
    assert!(beyond.contains("make its offset or its size smaller"), "{beyond}");
    drop(first);
    // As often as its table changes.
    for _ in 0..100 {
        world.disk(0, Some(8192), true).expect("it is free again");
    }
}

#[test]
fn what_a_removed_disk_asked_for_is_nobodys() {
    let world = World::new();
    let mut first = world.disk(0, Some(8192), true).expect("a part");
    let mut other = world.disk(8192, None, true).expect("a part");
    let _ = first.submit(token(1), write(0, &world.guest(0)));
    world.round(&mut first, false);
    drop(first);
    let early = world.disk(0, Some(8192), true).err().expect("the controller has it still");
    assert!(early.to_string().contains("hasn't ended"), "{early}");
    world.round(&mut other, true);
    assert!(other.poll().is_none());
    let mut again = world.disk(0, Some(8192), true).expect("it has ended");
    assert_eq!((again.outstanding(), again.poll().is_none()), (0, true));
}

#[test]
fn it_is_looked_at_without_a_pause_and_then_less_often() {
    let world = World::new();
    let mut disk = world.disk(0, None, true).expect("all of it");
    // A command isn't late because nobody asked for anything for an hour.
    world.now.set(world.now.get() + 3600 * HERTZ);
    let _ = disk.submit(token(1), write(0, &world.guest(0)));
    world.round(&mut disk, false);
    assert_eq!((disk.look_after(), disk.outstanding()), (0, 1));
    let begun = world.now.get();
    for (after, look) in [(100, 0), (400, 50), (8_000, 1_000), (1_000_000, 10_000)] {
        world.now.set(begun + after * MICROSECOND - MICROSECOND);
        disk.push();
        assert_eq!(disk.look_after(), look * MICROSECOND, "after {after} us");
    }
    world.model.borrow_mut().end(0, 0);
    assert_eq!(disk.poll().map(|ended| ended.result), Some(Ok(())));
    assert_eq!((disk.look_after(), disk.outstanding()), (0, 0));
}

/// One that is late is reset; if it doesn't stop, commands fail once it reaches nothing.
#[test]
fn one_that_doesnt_stop_is_cut_off_before_anything_fails() {
    let world = World::new();
    let mut disk = world.disk(0, None, true).expect("all of it");
    let _ = disk.submit(token(1), write(0, &world.guest(0)));
    world.round(&mut disk, false);
    world.model.borrow_mut().ills.never_stops = true;
    let mut ended = None;
    for _ in 0..10_000 {
        world.now.set(world.now.get() + HERTZ / 100);
        disk.push();
        ended = disk.poll();
        if ended.is_some() {
            break;
        }
        assert_eq!(disk.outstanding().min(1), 1, "it is asked again");
    }
    assert_eq!(ended.map(|ended| ended.result), Some(Err(Failure::Io)));
    assert!(world.is_cut_off.get());
    assert!(disk.poll().is_none());
    let done = disk.submit(token(2), write(0, &world.guest(0)));
    assert_eq!((done, disk.outstanding()), (Submitted::Done(Err(Failure::Io)), 0));
}

/// What comes while it starts again waits for that, and is told when there is room.
#[test]
fn one_that_is_reset_is_asked_until_it_runs() {
    let world = World::new();
    let mut disk = world.disk(0, None, true).expect("all of it");
    let _ = disk.submit(token(1), write(0, &world.guest(0)));
    world.round(&mut disk, false);
    world.now.set(world.now.get() + 31 * HERTZ);
    world.round(&mut disk, false);
    assert_eq!(disk.submit(token(2), write(0, &world.guest(0))), Submitted::Full);
    let mut results = Vec::new();
    for _ in 0..100 {
        world.round(&mut disk, false);
        results.extend(std::iter::from_fn(|| disk.poll()).map(|ended| ended.result));
        if disk.outstanding() == 0 {
            break;
        }
    }
    assert_eq!(results, [Err(Failure::Io)]);
    assert!(!world.is_cut_off.get());
    assert_eq!(disk.submit(token(2), write(0, &world.guest(0))), Submitted::Accepted);
    world.round(&mut disk, true);
    assert_eq!(disk.poll().map(|ended| ended.result), Some(Ok(())));
}

#[test]
fn at_the_end_it_is_shut_down() {
    let world = World::new();
    let mut disk = world.disk(0, None, true).expect("all of it");
    world.driven.borrow_mut().shut_down(|| pass(&world.model, &world.now));
    let done = disk.submit(token(1), write(0, &world.guest(0)));
    assert_eq!(done, Submitted::Done(Err(Failure::Io)));
    // One that doesn't say so isn't waited for without end.
    let world = World::new();
    world.model.borrow_mut().ills.never_shut_down = true;
    let begun = world.now.get();
    let pause = || world.now.set(world.now.get() + HERTZ / 10);
    world.driven.borrow_mut().shut_down(pause);
    assert!(world.now.get() - begun < 6 * HERTZ);
}
