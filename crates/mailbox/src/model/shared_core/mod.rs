//! A core that two vCPUs share: one computes in its guest, the other halts until something comes.
//!
//! What it must do stands in `properties`. Without fibers: a time slice of the one that halts is a
//! call in the middle of the other's.

mod properties;

use super::machine::Processor;
use super::std::vec::Vec;
use crate::{
    Attended, Entrant, Kick, Mailbox, NEVER, Owner, Queue, Reach, Residency, Yield, request,
};
use core::cell::{Cell, RefCell};
use loom::sync::Arc;
use sync::{AtomicU32, AtomicU64, Ordering};

/// Computes in its guest, and leaves it for NMIs and, if it lets them in, for timers.
const BUSY: usize = 0;
/// Halts until it has an interrupt.
const HALTS: usize = 1;

const SLICE: u64 = 100;
/// In such a time a slice is over that began before it.
const LONG: u64 = 1000;

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// No fence between the request and the look at who is resident, nor between who is resident
    /// and the look at the requests.
    NoFences,
    /// The NMI that is to have the core look at another vCPU leaves no request.
    LeavesNoRequest,
    /// Who is resident is asked before the mark of the blocked one is taken, and without a fence.
    AsksFirst,
    /// A blocked vCPU is marked behind the look at what it is asked for.
    MarksLate,
    /// The core clears RESCHEDULE after the look for others, not before.
    LooksFirst,
    /// The one that was preempted and comes back doesn't look for others again.
    LooksOnce,
    /// The core sleeps without a look at who has something to do.
    SleepsUnlooked,
    /// The vCPU is said not to be resident while it still uses its guest.
    LeavesEarly,
    /// The core doesn't look again after it posted for another vCPU.
    PostsSilently,
    /// Who becomes resident takes it that nothing was asked since the look that chose it.
    TrustsTheLook,
}

struct Core {
    residency: Residency,
    mailboxes: [Mailbox; 2],
    processor: Processor,
    clock: AtomicU64,
    wrong: Wrong,
}

/// The core as a thread sees it.
struct View<'a> {
    core: &'a Core,
    mailboxes: [&'a Mailbox; 2],
    here: bool,
    /// In a variant: the mailboxes aren't to be looked at.
    blind: Cell<bool>,
}

impl Core {
    fn new(senders: u32, wrong: Wrong) -> Arc<Self> {
        Arc::new(Core {
            residency: Residency::new(),
            mailboxes: [Mailbox::new(true), Mailbox::new(true)],
            processor: Processor::new(senders),
            clock: AtomicU64::new(0),
            wrong,
        })
    }

    fn view(&self, here: bool) -> View<'_> {
        let mailboxes = self.mailboxes.each_ref();
        View { core: self, mailboxes, here, blind: Cell::new(false) }
    }
}

impl Reach for View<'_> {
    fn residency(&self) -> &Residency {
        &self.core.residency
    }

    fn mailboxes(&self) -> &[&Mailbox] {
        if self.blind.get() { &[] } else { &self.mailboxes }
    }

    fn is_here(&self) -> bool {
        self.here
    }

    fn send_nmi(&self) {
        self.core.processor.nmi.send();
    }

    fn send_wake(&self) {
        self.core.processor.send_wake();
    }
}

/// The core of the vCPU at a slot, as its askers see it.
struct Slot<'a>(View<'a>, usize);

impl Kick for Slot<'_> {
    fn kick(&self, wakeup: bool) {
        let Slot(view, slot) = self;
        let (core, slot) = (view.core, *slot);
        let residency = &core.residency;
        match core.wrong {
            Wrong::LeavesNoRequest => {
                sync::fence(Ordering::SeqCst);
                let marked = residency.unmark(slot);
                if residency.is_resident(slot) || wakeup && marked {
                    view.send_nmi();
                }
            }
            Wrong::AsksFirst => {
                let resident = residency.resident();
                let marked = residency.unmark(slot);
                if resident == slot || wakeup && marked {
                    if let Some(mailbox) = core.mailboxes.get(resident).filter(|_| marked) {
                        mailbox.store(request::RESCHEDULE);
                    }
                    view.send_nmi();
                }
            }
            _ => residency.kick(view, slot, wakeup),
        }
    }

    fn wake(&self) {
        self.kick(true);
    }

    fn is_resident(&self) -> bool {
        self.0.core.residency.is_resident(self.1)
    }
}

/// What belongs to the core alone.
struct OwnCore<'a> {
    view: View<'a>,
    queue: RefCell<Queue>,
    /// The guest of the busy one lets the timer's interrupt in.
    timer: bool,
    /// What the core's timer is set for.
    armed: Cell<u64>,
    /// Vectors that the other got, and how many are enough.
    got: RefCell<Vec<u8>>,
    enough: usize,
    /// It had the core.
    slices: Cell<u32>,
    /// What arrives on the core for the other, behind the look for others.
    arrives: Cell<Option<u8>>,
}

impl<'a> OwnCore<'a> {
    fn of(core: &'a Core, timer: bool, enough: usize) -> Self {
        let mut queue = Queue::new(SLICE);
        queue.add(100);
        queue.add(100);
        OwnCore {
            view: core.view(true),
            queue: RefCell::new(queue),
            timer,
            armed: Cell::new(NEVER),
            got: RefCell::default(),
            enough,
            slices: Cell::new(0),
            arrives: Cell::new(None),
        }
    }

    fn core(&self) -> &'a Core {
        self.view.core
    }

    fn now(&self) -> u64 {
        self.core().clock.load(Ordering::Acquire)
    }

    fn done(&self) -> bool {
        self.slices.get() > 0 && self.got.borrow().len() >= self.enough
    }

    /// From the first time slice of the busy one until the other has what it waits for.
    fn run(&self) {
        let slot = self.queue.borrow_mut().pick(&self.view, self.now());
        assert_eq!(slot, Some(BUSY));
        self.becomes_resident(BUSY);
        while !self.done() {
            let mut round = Round { own: self, slot: BUSY };
            assert!(self.core().mailboxes[BUSY].run_guest(&mut round));
        }
    }

    /// The busy one leaves the core until it is chosen again.
    fn yield_core(&self, why: Yield) {
        self.core().residency.clear_resident();
        self.queue.borrow_mut().leave(BUSY, why, self.now());
        while !self.done() {
            let next = self.pick();
            match next {
                Some(HALTS) => self.slice(),
                Some(_) => break,
                None => self.sleep(),
            }
        }
        self.becomes_resident(BUSY);
    }

    fn becomes_resident(&self, slot: usize) {
        self.core().residency.set_resident(slot);
        if self.core().wrong != Wrong::TrustsTheLook {
            self.queue.borrow_mut().resident(&self.view);
        }
    }

    fn pick(&self) -> Option<usize> {
        self.look(|queue, view, now| queue.pick(view, now))
    }

    /// Is the core to be given to another?
    fn slice_is_over(&self, slot: usize) -> bool {
        let mailbox = &self.core().mailboxes[slot];
        if self.core().wrong != Wrong::LooksFirst {
            return self.look(|queue, view, now| queue.slice_is_over(view, mailbox, now));
        }
        // Of this mailbox nothing is asked.
        let none = Mailbox::new(true);
        let over = self.look(|queue, view, now| queue.slice_is_over(view, &none, now));
        mailbox.done(request::RESCHEDULE);
        over
    }

    /// Has the queue look at who waits.
    fn look<R>(&self, look: impl FnOnce(&mut Queue, &View<'_>, u64) -> R) -> R {
        let core = self.core();
        let late = core.wrong == Wrong::MarksLate && !core.mailboxes[HALTS].has_wakeup();
        self.view.blind.set(late);
        let result = look(&mut self.queue.borrow_mut(), &self.view, self.now());
        self.view.blind.set(false);
        if late {
            core.residency.mark(HALTS);
        }
        result
    }

    /// A time slice of the one that halts.
    fn slice(&self) {
        let (core, mailbox) = (self.core(), &self.core().mailboxes[HALTS]);
        self.becomes_resident(HALTS);
        self.slices.set(self.slices.get() + 1);
        mailbox.run_guest(&mut Round { own: self, slot: HALTS });
        // HLT.
        core.residency.clear_resident();
        mailbox.open_inbox(&mut Guest(self));
        let why = if self.done() { Yield::Ready } else { Yield::Block(NEVER) };
        self.queue.borrow_mut().leave(HALTS, why, self.now());
    }

    fn sleep(&self) {
        let processor = &self.core().processor;
        let wanted = || self.queue.borrow().wanted(&self.view, self.now());
        let sleep = || processor.wait_for(&[&processor.nmi, &processor.wake]);
        let forget = || {
            processor.nmi.take();
        };
        if self.core().wrong == Wrong::SleepsUnlooked {
            self.core().residency.sleep(forget, || false, sleep);
        } else {
            self.core().residency.sleep(forget, wanted, sleep);
        }
    }
}

/// The guest of the one that halts.
struct Guest<'b, 'a>(&'b OwnCore<'a>);

impl Owner for Guest<'_, '_> {
    fn flush_translations(&mut self) {}

    fn leave_eli(&mut self) {}

    fn take_input(&mut self) {}

    fn look_over_sources(&mut self) {}

    fn interrupt(&mut self, vector: u8) {
        self.0.got.borrow_mut().push(vector);
    }

    fn nmi(&mut self) {}

    fn vm_ends(&self) -> bool {
        false
    }

    fn quiet_core(&mut self) {}

    fn forget_arrived(&mut self) {}

    fn sleep(&mut self) {}

    fn start(&mut self, _: u8) {}

    fn prepare_core(&mut self) {}
}

struct Round<'b, 'a> {
    own: &'b OwnCore<'a>,
    slot: usize,
}

impl Entrant for Round<'_, '_> {
    fn maybe_preempt(&mut self) {
        let own = self.own;
        // The one that halts does so before long.
        while own.slice_is_over(self.slot) && self.slot == BUSY && !own.done() {
            own.yield_core(Yield::Ready);
            if own.core().wrong == Wrong::LooksOnce {
                break;
            }
        }
        if self.slot == HALTS {
            return;
        }
        let (_, due) = own.queue.borrow().due();
        own.armed.set(due);
        own.core().residency.set_due(due.min(own.now() + SLICE));
    }

    fn attend(&mut self) -> Attended {
        self.own.core().mailboxes[self.slot].attend(&mut Guest(self.own))
    }

    fn prepare(&mut self) {
        let residency = &self.own.core().residency;
        if let Some(vector) = self.own.arrives.take() {
            if self.own.core().wrong == Wrong::PostsSilently {
                self.own.core().mailboxes[HALTS].put(vector);
            } else {
                residency.post_here(&self.own.view, HALTS, [vector].into_iter());
            }
        }
    }

    fn enter(&mut self, requests: &AtomicU32) -> bool {
        let (own, core) = (self.own, self.own.core());
        if own.done() {
            return true;
        }
        // An NMI up to here is taken in the host.
        core.processor.nmi.take();
        if requests.load(Ordering::SeqCst) != 0 {
            return false;
        }
        if self.slot == BUSY {
            if own.timer && own.armed.get() != NEVER {
                core.clock.fetch_max(own.armed.get(), Ordering::AcqRel);
            } else {
                core.processor.wait_for(&[&core.processor.nmi]);
            }
        }
        true
    }
}
