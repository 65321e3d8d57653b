//! A vCPU that has its core to itself.

use super::machine::Processor;
use super::std::vec::Vec;
use super::{PREEMPTIONS, PREEMPTIONS_OF_THREE, check};
use crate::{Attended, Entrant, Kick, Mailbox, Owner, request};
use delivery::{Signal, Startup};
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, AtomicU32, Ordering};

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The core is kicked before the request is stored.
    KicksFirst,
    /// The requests are looked at before the point from which on an NMI ends the entry.
    LooksTooEarly,
    /// A request is said to be done before it is.
    DoneTooEarly,
    /// A request is done by a load and a swap.
    DoneInTwoSteps,
    /// The request is stored without release.
    AsksRelaxed,
    /// A vector is asked for before it is in the inbox.
    AsksBeforeTheVector,
    /// The inbox is emptied before the request for it is done.
    EmptiesFirst,
    /// A change of the start-up state isn't followed by a request.
    AsksOnce,
    /// The start-up state changes by a load and a swap.
    ChangesInTwoSteps,
    /// An INIT that was held back isn't looked at again.
    ForgetsHeld,
}

/// A vCPU and its core, as all see them.
struct Core {
    mailbox: Mailbox,
    processor: Processor,
    ending: AtomicBool,
    /// What the requests of the first property are for: not to be used before they are done.
    table: AtomicU32,
    wrong: Wrong,
}

impl Kick for Core {
    fn kick(&self, _: bool) {
        self.processor.nmi.send();
    }

    fn wake(&self) {
        self.processor.send_wake();
    }

    fn is_resident(&self) -> bool {
        true
    }
}

impl Core {
    fn new(runs: bool, senders: u32, wrong: Wrong) -> Arc<Self> {
        Arc::new(Core {
            mailbox: Mailbox::new(runs),
            processor: Processor::new(senders),
            ending: AtomicBool::new(false),
            table: AtomicU32::new(0),
            wrong,
        })
    }

    /// From another core: asks.
    fn ask(&self, requests: u32) {
        match self.wrong {
            Wrong::KicksFirst => {
                self.kick(false);
                self.mailbox.store(requests);
            }
            Wrong::AsksRelaxed => {
                self.mailbox.requests.fetch_or(requests, Ordering::Relaxed);
                self.kick(false);
            }
            _ => self.mailbox.ask(self, requests),
        }
    }

    /// From another core: an interrupt.
    fn post(&self, vector: u8) {
        if self.wrong == Wrong::AsksBeforeTheVector {
            self.mailbox.store(request::INBOX);
            let word = &self.mailbox.inbox[usize::from(vector >> 6)];
            word.fetch_or(1 << (vector & 63), Ordering::AcqRel);
            self.kick(true);
        } else {
            self.mailbox.post(self, vector);
        }
    }

    /// From another core: INIT, start-up or stop.
    fn signal(&self, f: impl Fn(Startup) -> (Startup, Signal)) {
        let mailbox = &self.mailbox;
        let signal = match self.wrong {
            Wrong::ChangesInTwoSteps => {
                mailbox.store(request::STARTUP);
                let old = mailbox.startup.load(Ordering::Acquire);
                let (new, signal) = f(Startup::from_bits(old));
                mailbox.startup.swap(new.bits(), Ordering::AcqRel);
                mailbox.store(request::STARTUP);
                signal
            }
            Wrong::AsksOnce => {
                mailbox.store(request::STARTUP);
                mailbox.change(f)
            }
            _ => return mailbox.signal(self, f),
        };
        match signal {
            Signal::None => {}
            Signal::Kick => self.kick(true),
            Signal::Wake => self.wake(),
        }
    }
}

/// What belongs to the core alone.
struct Vcpu<'a> {
    core: &'a Core,
    flushes: u32,
    nmis: u32,
    vectors: Vec<u8>,
    started: Option<u8>,
    /// It holds an INIT back until its next look.
    holds: bool,
    /// It has held one back.
    held: bool,
}

impl<'a> Vcpu<'a> {
    fn of(core: &'a Core) -> Self {
        let vectors = Vec::new();
        Vcpu { core, flushes: 0, nmis: 0, vectors, started: None, holds: false, held: false }
    }

    /// Runs its guest until `enough`. False: its VM ends.
    fn run_until(&mut self, enough: impl Fn(&Self) -> bool) -> bool {
        let core = self.core;
        while !enough(self) {
            let mut round = Round { vcpu: self, enough: &enough };
            if !core.mailbox.run_guest(&mut round) {
                return false;
            }
        }
        true
    }
}

impl Owner for Vcpu<'_> {
    fn flush_translations(&mut self) {
        let table = &self.core.table;
        assert_eq!(table.load(Ordering::Relaxed) & 1, 1, "what it is for isn't seen");
        table.fetch_or(2, Ordering::Relaxed);
        self.flushes += 1;
    }

    fn leave_eli(&mut self) {}

    fn take_input(&mut self) {}

    fn look_over_sources(&mut self) {}

    fn interrupt(&mut self, vector: u8) {
        self.vectors.push(vector);
    }

    fn nmi(&mut self) {
        self.nmis += 1;
    }

    fn holds_init(&mut self) -> bool {
        self.held |= self.holds;
        self.holds
    }

    fn vm_ends(&self) -> bool {
        self.core.ending.load(Ordering::Acquire)
    }

    fn quiet_core(&mut self) {}

    fn forget_arrived(&mut self) {}

    fn sleep(&mut self) {
        self.core.processor.wait_for(&[&self.core.processor.wake]);
    }

    fn start(&mut self, page: u8) {
        self.started = Some(page);
    }

    fn prepare_core(&mut self) {}
}

struct Round<'b, 'a, F> {
    vcpu: &'b mut Vcpu<'a>,
    enough: &'b F,
}

impl<'a, F: Fn(&Vcpu<'a>) -> bool> Entrant for Round<'_, 'a, F> {
    fn maybe_preempt(&mut self) {}

    fn attend(&mut self) -> Attended {
        let (core, mailbox) = (self.vcpu.core, &self.vcpu.core.mailbox);
        match core.wrong {
            Wrong::DoneTooEarly => {
                let asked = mailbox.requests();
                mailbox.done(asked);
                self.vcpu.flush_translations();
                Attended::Anew
            }
            Wrong::DoneInTwoSteps => {
                let old = mailbox.requests.load(Ordering::SeqCst);
                mailbox.requests.swap(0, Ordering::SeqCst);
                self.vcpu.flushes += u32::from(old & request::FLUSH != 0);
                self.vcpu.nmis += u32::from(old & request::NMI != 0);
                Attended::Anew
            }
            Wrong::EmptiesFirst => {
                mailbox.take_inbox(request::INBOX, |index, bits| self.vcpu.interrupts(index, bits));
                mailbox.done(request::INBOX);
                Attended::Anew
            }
            _ => mailbox.attend(self.vcpu),
        }
    }

    fn prepare(&mut self) {
        let (core, holds) = (self.vcpu.core, self.vcpu.held && self.vcpu.holds);
        if holds {
            self.vcpu.holds = false;
            if core.wrong != Wrong::ForgetsHeld {
                core.mailbox.again();
            }
        }
    }

    fn enter(&mut self, requests: &AtomicU32) -> bool {
        // The model's guest ends where it has what it waits for.
        let core = self.vcpu.core;
        (self.enough)(self.vcpu)
            || core.processor.enter(requests, core.wrong == Wrong::LooksTooEarly)
    }
}

/// Another core, which sends what `f` sends.
fn sender(core: &Arc<Core>, f: impl FnOnce(&Core) + 'static) -> thread::JoinHandle<()> {
    let core = core.clone();
    thread::spawn(move || {
        f(&core);
        core.processor.sent();
    })
}

/// One core has changed a table and waits until a vCPU has forgotten what it knew of it.
fn an_asker_waits(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let core = Core::new(true, 1, wrong);
        let asker = {
            let core = core.clone();
            thread::spawn(move || {
                core.table.fetch_or(1, Ordering::Relaxed);
                core.ask(request::FLUSH);
                core.processor.sent();
                core.mailbox.wait_until_done(&*core, request::FLUSH, thread::yield_now);
                assert_eq!(core.table.load(Ordering::Relaxed), 3, "it isn't done");
            })
        };
        Vcpu::of(&core).run_until(|vcpu| vcpu.flushes == 1);
        asker.join().unwrap();
    });
}

/// Two cores send interrupts; the owner goes on until it has both.
fn two_post(wrong: Wrong, vectors: [u8; 2]) {
    check(PREEMPTIONS_OF_THREE, move || {
        let core = Core::new(true, 2, wrong);
        let posters = vectors.map(|vector| sender(&core, move |core| core.post(vector)));
        let mut vcpu = Vcpu::of(&core);
        vcpu.run_until(|vcpu| vectors.iter().all(|v| vcpu.vectors.contains(v)));
        posters.into_iter().for_each(|p| p.join().unwrap());
        core.mailbox.open_inbox(&mut vcpu);
        vcpu.vectors.sort();
        assert_eq!(vcpu.vectors, vectors, "each arrives once");
    });
}

/// Two cores ask for different things; the owner goes on until it has done both.
fn two_ask(wrong: Wrong) {
    check(PREEMPTIONS_OF_THREE, move || {
        let core = Core::new(true, 2, wrong);
        core.table.store(1, Ordering::Relaxed);
        let askers =
            [request::FLUSH, request::NMI].map(|what| sender(&core, move |core| core.ask(what)));
        let mut vcpu = Vcpu::of(&core);
        vcpu.run_until(|vcpu| vcpu.flushes > 0 && vcpu.nmis > 0);
        askers.into_iter().for_each(|a| a.join().unwrap());
        core.mailbox.attend(&mut vcpu);
        assert_eq!((vcpu.flushes, vcpu.nmis), (1, 1), "each is done once");
    });
}

/// Two cores start a vCPU that waits.
fn two_start(wrong: Wrong) {
    check(PREEMPTIONS_OF_THREE, move || {
        let core = Core::new(false, 2, wrong);
        let senders =
            [7, 9].map(|page| sender(&core, move |core| core.signal(|s| s.start_up(page))));
        let mut vcpu = Vcpu::of(&core);
        assert!(core.mailbox.wait(&mut vcpu));
        senders.into_iter().for_each(|s| s.join().unwrap());
        assert!(matches!(vcpu.started, Some(7 | 9)), "it starts where one of them says");
        assert_eq!(core.processor.wakes.load(Ordering::Relaxed), 1, "it is woken once");
    });
}

/// A vCPU is reset and started, from wherever it is in its loop. It may hold the INIT back once.
fn init_and_start_up(wrong: Wrong, holds: bool) {
    check(PREEMPTIONS, move || {
        let core = Core::new(true, 1, wrong);
        let sender = sender(&core, |core| {
            core.signal(|s| s.init());
            core.signal(|s| s.start_up(7));
        });
        let mut vcpu = Vcpu { holds, ..Vcpu::of(&core) };
        assert!(vcpu.run_until(|vcpu| vcpu.started.is_some()));
        assert_eq!(vcpu.started, Some(7));
        sender.join().unwrap();
        assert!(core.processor.wakes.load(Ordering::Relaxed) <= 1);
    });
}

/// A VM ends while one of its vCPUs runs, or waits for a start-up.
fn the_vm_ends(wrong: Wrong, runs: bool) {
    check(PREEMPTIONS, move || {
        let core = Core::new(runs, 1, wrong);
        let other = sender(&core, |core| {
            core.ending.store(true, Ordering::Release);
            core.signal(|s| s.stop());
        });
        let mut vcpu = Vcpu::of(&core);
        let goes_on = if runs { vcpu.run_until(|_| false) } else { core.mailbox.wait(&mut vcpu) };
        assert!(!goes_on);
        other.join().unwrap();
    });
}

#[test]
fn what_is_asked_before_the_kick_is_seen_before_the_guest_runs() {
    an_asker_waits(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_a_kick_before_the_request_is_lost() {
    an_asker_waits(Wrong::KicksFirst);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_a_look_before_the_region_misses_a_kick() {
    an_asker_waits(Wrong::LooksTooEarly);
}

#[test]
#[should_panic(expected = "it isn't done")]
fn variant_done_before_it_is_done() {
    an_asker_waits(Wrong::DoneTooEarly);
}

#[test]
#[should_panic(expected = "what it is for isn't seen")]
fn variant_a_request_without_release() {
    an_asker_waits(Wrong::AsksRelaxed);
}

#[test]
fn every_request_is_done_once() {
    two_ask(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_done_in_two_steps_loses_a_request() {
    two_ask(Wrong::DoneInTwoSteps);
}

#[test]
fn every_vector_in_the_inbox_arrives_once() {
    two_post(Wrong::Nothing, [0x41, 0x42]);
    two_post(Wrong::Nothing, [0x41, 0x81]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_asked_before_the_vector_is_there() {
    two_post(Wrong::AsksBeforeTheVector, [0x41, 0x81]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_inbox_emptied_before_its_request_is_done() {
    two_post(Wrong::EmptiesFirst, [0x41, 0x81]);
}

/// A device's interrupt arrives while the VM begins anew: it is gone, or its request stands.
#[test]
fn no_vector_is_left_without_its_request() {
    check(PREEMPTIONS, || {
        let core = Core::new(true, 1, Wrong::Nothing);
        let device = {
            let core = core.clone();
            thread::spawn(move || core.post(0x41))
        };
        core.mailbox.restart(true);
        device.join().unwrap();
        let is_there = core.mailbox.inbox[1].load(Ordering::Acquire) != 0;
        let asked = core.mailbox.requests() & request::INBOX != 0;
        assert!(asked || !is_there, "a vector waits for the next one of its word");
    });
}

#[test]
fn a_vcpu_that_waits_is_woken_once() {
    two_start(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "it is woken once")]
fn variant_a_start_up_in_two_steps_wakes_twice() {
    two_start(Wrong::ChangesInTwoSteps);
}

#[test]
fn a_start_up_behind_an_init_is_never_lost() {
    init_and_start_up(Wrong::Nothing, false);
    init_and_start_up(Wrong::Nothing, true);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_init_is_asked_for_only_before_it_is_there() {
    init_and_start_up(Wrong::AsksOnce, false);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_init_that_was_held_back_and_isn_t_looked_at_again() {
    init_and_start_up(Wrong::ForgetsHeld, true);
}

#[test]
fn the_end_of_a_vm_finds_every_vcpu() {
    the_vm_ends(Wrong::Nothing, true);
    the_vm_ends(Wrong::Nothing, false);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_end_behind_a_look_that_comes_too_early() {
    the_vm_ends(Wrong::LooksTooEarly, true);
}
