//! A shared core, step by step: who is told, and who is looked at. The orders are loom's (`model`).

use crate::{Mailbox, NEVER, Queue, Reach, Residency, Yield, request, vectors_of};
use std::cell::Cell;

/// What is asked of a mailbox where a vector from 0x40 on was put.
const INBOX_OF_0X40: u32 = 0x200;

const SLICE: u64 = 100;

/// A core that notes what is sent to it.
struct Core<'a> {
    residency: Residency,
    mailboxes: Vec<&'a Mailbox>,
    here: bool,
    nmis: Cell<u32>,
    wakes: Cell<u32>,
}

impl Reach for Core<'_> {
    fn residency(&self) -> &Residency {
        &self.residency
    }

    fn mailboxes(&self) -> &[&Mailbox] {
        &self.mailboxes
    }

    fn is_here(&self) -> bool {
        self.here
    }

    fn send_nmi(&self) {
        self.nmis.set(self.nmis.get() + 1);
    }

    fn send_wake(&self) {
        self.wakes.set(self.wakes.get() + 1);
    }
}

impl Core<'_> {
    /// NMIs and wake-ups since the last call.
    fn told(&self) -> (u32, u32) {
        (self.nmis.take(), self.wakes.take())
    }
}

fn mailboxes() -> [Mailbox; 3] {
    [(); 3].map(|()| Mailbox::new(true))
}

fn core(mailboxes: &[Mailbox]) -> Core<'_> {
    Core {
        residency: Residency::new(),
        mailboxes: mailboxes.iter().collect(),
        here: false,
        nmis: Cell::new(0),
        wakes: Cell::new(0),
    }
}

fn queue() -> Queue {
    let mut queue = Queue::new(SLICE);
    (0..3).for_each(|_| queue.add(100));
    queue
}

#[test]
fn who_is_resident_gets_an_nmi_for_whatever_is_asked() {
    let mailboxes = mailboxes();
    let core = core(&mailboxes);
    assert!(!core.residency.is_resident(0));
    core.residency.kick(&core, 0, false);
    assert_eq!(core.told(), (0, 0), "it looks before it enters");
    core.residency.set_resident(0);
    assert!(core.residency.is_resident(0) && !core.residency.is_resident(1));
    core.residency.kick(&core, 0, false);
    core.residency.kick(&core, 0, true);
    assert_eq!(core.told(), (2, 0));
    core.residency.kick(&core, 1, false);
    core.residency.kick(&core, 1, true);
    assert_eq!(core.told(), (0, 0), "that one isn't blocked");
    assert_eq!(mailboxes[0].requests(), 0);
    core.residency.clear_resident();
    core.residency.kick(&core, 0, true);
    assert_eq!(core.told(), (0, 0));
    let here = Core { here: true, ..core };
    here.residency.set_resident(0);
    here.residency.kick(&here, 0, false);
    assert_eq!(mailboxes[0].requests(), 0);
    here.residency.kick(&here, 0, true);
    assert_eq!(here.told(), (0, 0), "the core itself looks");
    assert_eq!(mailboxes[0].requests(), request::RESCHEDULE, "once more");
}

#[test]
fn what_was_seen_before_a_switch_stands_if_nobody_asked_meanwhile() {
    let mailboxes = mailboxes();
    let (core, mut queue) = (core(&mailboxes), queue());
    queue.leave(1, Yield::Block(NEVER), 0);
    queue.leave(2, Yield::Gone, 0);
    assert_eq!(queue.pick(&core, 0), Some(0));
    core.residency.set_resident(0);
    queue.resident(&core);
    // Who asks without telling the core isn't seen before the slice ends.
    mailboxes[1].put(0x41);
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 1) && !queue.due().0);
    assert!(queue.slice_is_over(&core, &mailboxes[0], SLICE));
    mailboxes[1].done(request::INBOX);
    queue.leave(1, Yield::Block(NEVER), SLICE);
    queue.leave(0, Yield::Ready, SLICE);
    core.residency.clear_resident();
    assert_eq!(queue.pick(&core, SLICE), Some(0));
    // Nobody is resident who could be told.
    mailboxes[1].put(0x41);
    core.residency.kick(&core, 1, true);
    assert_eq!((core.told(), mailboxes[0].requests()), ((1, 0), 0));
    core.residency.set_resident(0);
    queue.resident(&core);
    queue.slice_is_over(&core, &mailboxes[0], SLICE + 1);
    assert!(queue.due().0, "the other one was looked at");
}

#[test]
fn for_a_blocked_one_the_resident_one_is_asked_to_look_once() {
    let mailboxes = mailboxes();
    let (core, mut queue) = (core(&mailboxes), queue());
    queue.leave(1, Yield::Block(NEVER), 0);
    assert_eq!(queue.pick(&core, 0), Some(0));
    core.residency.set_resident(0);
    mailboxes[1].put(0x41);
    core.residency.kick(&core, 1, false);
    assert_eq!(core.told(), (0, 0));
    core.residency.kick(&core, 1, true);
    core.residency.kick(&core, 1, true);
    assert_eq!(core.told(), (1, 0), "once until the core has looked");
    assert_eq!(mailboxes[0].requests(), request::RESCHEDULE);
    queue.slice_is_over(&core, &mailboxes[0], 0);
    assert_eq!(mailboxes[0].requests(), 0);
    core.residency.kick(&core, 1, true);
    assert_eq!(core.told(), (0, 0), "it is on its way");
    mailboxes[1].done(request::INBOX);
    queue.leave(1, Yield::Block(NEVER), 0);
    queue.slice_is_over(&core, &mailboxes[0], 0);
    core.residency.kick(&core, 1, true);
    assert_eq!(core.told(), (1, 0), "blocked again, and looked at");
    core.residency.resend_kick(&core, 2, false);
    assert_eq!(core.told(), (0, 0));
    core.residency.resend_kick(&core, 2, true);
    core.residency.resend_kick(&core, 0, false);
    assert_eq!(core.told(), (2, 0));
}

/// The core itself asks, on the way to an entry: the next look considers who it was for.
#[test]
fn one_that_the_core_itself_wakes_is_considered_at_the_next_look() {
    let mailboxes = mailboxes();
    let (core, mut queue) = (core(&mailboxes), queue());
    queue.leave(1, Yield::Block(NEVER), 0);
    queue.leave(2, Yield::Sleep(NEVER), 0);
    assert_eq!(queue.pick(&core, 0), Some(0));
    core.residency.set_resident(0);
    queue.resident(&core);
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 1) && queue.stands() == SLICE);
    // Who would go on anyway, or sleeps whatever is asked, changes nothing.
    [0, 2, 7].into_iter().for_each(|slot| queue.wake_here(&core, slot, || unreachable!()));
    assert_eq!(queue.stands(), SLICE);
    mailboxes[1].put(0x41);
    queue.wake_here(&core, 1, || 2);
    assert_eq!((core.told(), mailboxes[0].requests()), ((0, 0), 0), "nobody needs to be told");
    assert!(queue.slice_is_over(&core, &mailboxes[0], 3), "1 is behind");
    queue.leave(0, Yield::Ready, 3);
    assert_eq!(queue.pick(&core, 3), Some(1));
    // Another core that asks for it finds it on its way.
    core.residency.kick(&core, 1, true);
    assert_eq!(core.told(), (0, 0));
    mailboxes[1].done(request::INBOX);
}

/// It is chosen, too, if nobody is resident.
#[test]
fn one_that_was_woken_while_nobody_was_resident_is_picked() {
    let mailboxes = mailboxes();
    let (core, mut queue) = (core(&mailboxes), queue());
    (0..3).for_each(|slot| queue.leave(slot, Yield::Block(NEVER), 0));
    assert_eq!(queue.pick(&core, 0), None);
    mailboxes[2].put(0x41);
    queue.wake_here(&core, 2, || 1);
    assert_eq!(queue.pick(&core, 2), Some(2));
    mailboxes[2].done(request::INBOX);
}

#[test]
fn what_arrives_on_the_core_for_another_is_looked_at() {
    let mailboxes = mailboxes();
    let core = core(&mailboxes);
    core.residency.post_here(&core, 1, [0x41, 0x42].into_iter());
    let mut taken = Vec::new();
    mailboxes[1].take_inbox(request::INBOX, |index, bits| taken.extend(vectors_of(index, bits)));
    assert_eq!(taken, [0x42, 0x41]);
    core.residency.set_resident(0);
    core.residency.post_here(&core, 1, [0x43].into_iter());
    assert_eq!(mailboxes[0].requests(), request::RESCHEDULE);
    assert_eq!(mailboxes[1].requests(), INBOX_OF_0X40);
    core.residency.post_here(&core, 7, [0x43].into_iter());
}

#[test]
fn a_core_asleep_is_woken_and_one_that_is_wanted_doesnt_sleep() {
    let mailboxes = mailboxes();
    let core = core(&mailboxes);
    let (forgot, slept) = (Cell::new(false), Cell::new(false));
    let sleep = |wanted| {
        let wanted = || {
            assert!(forgot.get(), "first it forgets");
            wanted
        };
        core.residency.sleep(
            || forgot.set(true),
            wanted,
            || {
                slept.set(true);
                core.residency.resend_kick(&core, 0, true);
            },
        );
    };
    sleep(true);
    assert!(!slept.take());
    sleep(false);
    assert!(slept.take());
    assert_eq!(core.told(), (0, 1));
    core.residency.resend_kick(&core, 0, true);
    assert_eq!(core.told(), (1, 0), "it is awake");
}

#[test]
fn core_0_takes_the_core_back_when_something_is_due_and_once_in_a_slice() {
    let mailboxes = mailboxes();
    let core = core(&mailboxes);
    let watch = |now| core.residency.watch(&core, now, SLICE);
    core.residency.set_due(1000);
    assert!(!watch(2000), "nobody is resident");
    core.residency.set_resident(0);
    assert!(!watch(1000));
    assert!(watch(1001));
    assert_eq!((core.told(), mailboxes[0].requests()), ((1, 0), request::RESCHEDULE));
    assert!(!watch(1001 + SLICE));
    assert!(watch(1002 + SLICE));
}

#[test]
fn whoever_waits_runs_when_that_comes() {
    let mailboxes = mailboxes();
    let (core, mut queue) = (core(&mailboxes), queue());
    assert!(queue.serves());
    assert_eq!(queue.pick(&core, 10), Some(0));
    core.residency.set_resident(0);
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 10));
    assert_eq!(queue.due(), (true, 10 + SLICE));
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 10 + SLICE - 1));
    assert!(queue.slice_is_over(&core, &mailboxes[0], 10 + SLICE));
    queue.leave(1, Yield::Block(500), 10);
    queue.leave(2, Yield::Sleep(400), 10);
    assert!(!queue.wanted(&core, 399) && queue.wanted(&core, 400));
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 300));
    assert_eq!((queue.due(), queue.next()), ((false, 400), 400));
    mailboxes[2].store(request::INBOX);
    assert!(!queue.wanted(&core, 399), "it sleeps whatever is asked");
    mailboxes[1].store(request::FLUSH);
    assert!(!queue.wanted(&core, 399), "that is no wake-up");
    mailboxes[1].store(request::NMI);
    assert!(queue.wanted(&core, 399));
    assert!(!queue.slice_is_over(&core, &mailboxes[0], 399), "nobody has told of it");
    core.residency.kick(&core, 1, true);
    assert!(queue.slice_is_over(&core, &mailboxes[0], 399), "it is behind");
    queue.leave(0, Yield::Ready, 399);
    assert_eq!(queue.pick(&core, 399), Some(1));
    assert_eq!(queue.next(), 400);
    queue.leave(1, Yield::Gone, 399);
    queue.leave(0, Yield::Block(NEVER), 399);
    assert_eq!(queue.pick(&core, 399), None);
    assert_eq!(queue.pick(&core, 400), Some(2));
    queue.leave(2, Yield::Gone, 400);
    assert!(queue.serves());
    queue.leave(0, Yield::Gone, 400);
    assert!(!queue.serves());
    queue.leave(7, Yield::Ready, 400);
    assert_eq!(queue.pick(&core, 500), None);
}

#[test]
fn an_alarm_takes_the_core_back_from_who_has_it() {
    let mailboxes = mailboxes();
    let core = core(&mailboxes);
    let clock = crate::Clock::new();
    assert!(!core.residency.set_alarm(&clock, 1000));
    core.residency.ring(&core, 999, 10);
    assert_eq!(core.told(), (0, 0));
    core.residency.ring(&core, 1000, 10);
    assert_eq!(core.told(), (0, 0), "nobody has it");
    core.residency.set_resident(1);
    assert!(!core.residency.set_alarm(&clock, 2000));
    core.residency.set_due(2000);
    core.residency.ring(&core, 2000, 10);
    assert_eq!((core.told(), mailboxes[1].requests()), ((1, 0), request::RESCHEDULE));
    assert!(!core.residency.watch(&core, 2001, SLICE), "once for both");
    assert_eq!(core.residency.alarm(), 2010);
    core.residency.ring(&core, 2010, 10);
    assert_eq!(core.told(), (1, 0), "again");
}
