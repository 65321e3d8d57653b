//! The mailbox under loom, which tries every interleaving of the threads: its own code, with a core
//! around it that takes NMIs and wake-ups as a processor does.
//!
//! Guarantees: what the properties below say holds for these askers and this owner. What the owner and
//! the askers do between the mailbox's calls is repeated here from the hypervisor's
//! `vm/interrupts/{remote,requests}.rs`; a change there isn't noticed. Not here: whose turn it is on a
//! shared core, the assembly of the entry, and how interrupts are routed anew.
//!
//! Every property has variants with one step wrong, which loom must catch.
extern crate std;

use crate::{Mailbox, Ordering, request, sync::AtomicU32};
use delivery::{Found, Signal, Startup};
use loom::sync::{Arc, atomic::AtomicBool};
use loom::thread;
use std::vec::Vec;

/// How often the scheduler may take the processor from a thread that could go on, in one execution,
/// with one other core.
const PREEMPTIONS: usize = 3;
/// With two: the orders are many more.
const PREEMPTIONS_OF_THREE: usize = 2;

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
}

/// Runs `f` in every order within the bound.
fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(preemptions));
    model.check(f);
}

/// Something that is sent to a core and stays until the core takes it: one interrupt, however often it
/// was sent.
#[derive(Default)]
struct Line(AtomicBool);

impl Line {
    fn send(&self) {
        // RMWs alone have one order for all.
        self.0.swap(true, Ordering::Release);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// A vCPU and its core.
struct Vcpu {
    mailbox: Mailbox,
    nmi: Line,
    wake: Line,
    wakes: AtomicU32,
    ending: AtomicBool,
    /// How many other cores have something to send yet.
    senders: AtomicU32,
    wrong: Wrong,
}

impl Vcpu {
    fn new(runs: bool, senders: u32, wrong: Wrong) -> Arc<Self> {
        Arc::new(Vcpu {
            mailbox: Mailbox::new(runs),
            nmi: Line::default(),
            wake: Line::default(),
            wakes: AtomicU32::new(0),
            ending: AtomicBool::new(false),
            senders: AtomicU32::new(senders),
            wrong,
        })
    }

    /// One of the other cores has sent all that it sends.
    fn sent(&self) {
        self.senders.fetch_sub(1, Ordering::Release);
    }

    /// The owner's core runs its guest, or sleeps, until this comes.
    fn wait_for(&self, line: &Line) {
        loop {
            // By an RMW, which reads no old value.
            let nobody_sends = self.senders.fetch_add(0, Ordering::Acquire) == 0;
            if line.take() {
                return;
            }
            assert!(!nobody_sends, "nothing comes any more");
            thread::yield_now();
        }
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// From another core: asks, and gets the core out of its guest.
    fn ask(&self, requests: u32) {
        if self.is(Wrong::KicksFirst) {
            self.nmi.send();
        }
        if self.is(Wrong::AsksRelaxed) {
            self.mailbox.requests.fetch_or(requests, Ordering::Relaxed);
        } else {
            self.mailbox.ask(requests);
        }
        if !self.is(Wrong::KicksFirst) {
            self.nmi.send();
        }
    }

    /// From another core: an interrupt.
    fn post(&self, vector: u8) {
        if self.is(Wrong::AsksBeforeTheVector) {
            self.mailbox.ask(request::INBOX);
            let word = &self.mailbox.inbox[usize::from(vector >> 6)];
            word.fetch_or(1 << (vector & 63), Ordering::AcqRel);
        } else {
            self.mailbox.post(vector);
        }
        self.nmi.send();
    }

    /// From another core: INIT, start-up or stop.
    fn signal(&self, f: impl Fn(Startup) -> (Startup, Signal)) {
        self.mailbox.ask(request::STARTUP);
        let signal = if self.is(Wrong::ChangesInTwoSteps) {
            let old = self.mailbox.startup.load(Ordering::Acquire);
            let (new, signal) = f(Startup::from_bits(old));
            self.mailbox.startup.swap(new.bits(), Ordering::AcqRel);
            signal
        } else {
            self.mailbox.change(f)
        };
        if signal != Signal::None && !self.is(Wrong::AsksOnce) {
            self.mailbox.ask(request::STARTUP);
        }
        match signal {
            Signal::None => {}
            Signal::Kick => self.nmi.send(),
            Signal::Wake => {
                self.wakes.fetch_add(1, Ordering::Relaxed);
                self.wake.send();
            }
        }
    }

    /// The owner: these are done.
    fn done(&self, requests: u32) {
        if self.is(Wrong::DoneInTwoSteps) {
            let old = self.mailbox.requests.load(Ordering::SeqCst);
            self.mailbox.requests.swap(old & !requests, Ordering::SeqCst);
        } else {
            self.mailbox.done(requests);
        }
    }

    /// The owner: enters its guest, which runs until an NMI comes, unless something is asked for.
    fn enter(&self) {
        let early = self.mailbox.last_look().load(Ordering::SeqCst);
        // An NMI up to here is taken in the host, where it changes nothing. From here on it ends the entry.
        self.nmi.take();
        let looked = self.mailbox.last_look().load(Ordering::SeqCst);
        let asked = if self.is(Wrong::LooksTooEarly) { early } else { looked };
        if asked == 0 {
            self.wait_for(&self.nmi);
        }
    }

    /// The owner: what others left for it.
    fn open_inbox(&self) -> Vec<u8> {
        if self.mailbox.requests() & request::INBOX == 0 {
            return Vec::new();
        }
        if self.is(Wrong::EmptiesFirst) {
            let vectors = self.mailbox.take_inbox();
            self.done(request::INBOX);
            return vectors.iter().collect();
        }
        self.done(request::INBOX);
        self.mailbox.take_inbox().iter().collect()
    }

    /// The owner: sleeps until a start-up comes; `None`: its VM ends.
    fn wait(&self) -> Option<u8> {
        while !self.ending.load(Ordering::Acquire) {
            self.wait_for(&self.wake);
            self.mailbox.change(|s| (s.woken(), ()));
            if let Found::StartUp(page) = self.mailbox.change(|s| s.acknowledge()) {
                return Some(page);
            }
        }
        None
    }

    /// The owner, in its guest: where it starts after an INIT; `None`: its VM ends.
    fn run(&self) -> Option<u8> {
        loop {
            if self.mailbox.requests() & request::STARTUP == 0 {
                self.enter();
                continue;
            }
            self.done(request::STARTUP);
            if self.ending.load(Ordering::Acquire) {
                return None;
            }
            if !self.mailbox.change(|s| (s, s.init_pending())) {
                continue;
            }
            return match self.mailbox.change(|s| s.acknowledge()) {
                Found::StartUp(page) => Some(page),
                _ => self.wait(),
            };
        }
    }
}

/// Another core, which sends what `f` sends.
fn sender(vcpu: &Arc<Vcpu>, f: impl FnOnce(&Vcpu) + 'static) -> thread::JoinHandle<()> {
    let vcpu = vcpu.clone();
    thread::spawn(move || {
        f(&vcpu);
        vcpu.sent();
    })
}

/// One core has changed a table and waits until a vCPU has forgotten what it knew of it.
fn an_asker_waits(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let vcpu = Vcpu::new(true, 1, wrong);
        let table = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let asker = {
            let (vcpu, table) = (vcpu.clone(), table.clone());
            thread::spawn(move || {
                table.0.store(1, Ordering::Relaxed);
                vcpu.ask(request::FLUSH);
                vcpu.sent();
                while vcpu.mailbox.requests() & request::FLUSH != 0 {
                    thread::yield_now();
                }
                assert_eq!(table.1.load(Ordering::Relaxed), 1, "it isn't done");
            })
        };
        while vcpu.mailbox.requests() & request::FLUSH == 0 {
            vcpu.enter();
        }
        if wrong == Wrong::DoneTooEarly {
            vcpu.done(request::FLUSH);
        }
        assert_eq!(table.0.load(Ordering::Relaxed), 1, "what it is for isn't seen");
        table.1.store(1, Ordering::Relaxed);
        vcpu.done(request::FLUSH);
        // As every vCPU does that leaves its guest for good.
        asker.join().unwrap();
    });
}

/// Two cores send interrupts; the owner goes on until it has both.
fn two_post(wrong: Wrong, vectors: [u8; 2]) {
    check(PREEMPTIONS_OF_THREE, move || {
        let vcpu = Vcpu::new(true, 2, wrong);
        let posters = vectors.map(|vector| sender(&vcpu, move |v| v.post(vector)));
        let mut got = Vec::new();
        while !vectors.iter().all(|v| got.contains(v)) {
            match vcpu.open_inbox() {
                none if none.is_empty() => vcpu.enter(),
                some => got.extend(some),
            }
        }
        posters.into_iter().for_each(|p| p.join().unwrap());
        got.extend(vcpu.open_inbox());
        got.sort();
        assert_eq!(got, vectors, "each arrives once");
    });
}

/// Two cores ask for different things; the owner goes on until it has done both.
fn two_ask(wrong: Wrong) {
    check(PREEMPTIONS_OF_THREE, move || {
        let vcpu = Vcpu::new(true, 2, wrong);
        let askers = [request::FLUSH, request::NMI].map(|what| sender(&vcpu, move |v| v.ask(what)));
        let mut done = 0;
        while done != request::FLUSH | request::NMI {
            match vcpu.mailbox.requests() {
                0 => vcpu.enter(),
                asked => {
                    vcpu.done(asked);
                    assert_eq!(done & asked, 0, "it is done once");
                    done |= asked;
                }
            }
        }
        askers.into_iter().for_each(|a| a.join().unwrap());
    });
}

/// Two cores start a vCPU that waits.
fn two_start(wrong: Wrong) {
    check(PREEMPTIONS_OF_THREE, move || {
        let vcpu = Vcpu::new(false, 2, wrong);
        let senders = [7, 9].map(|page| sender(&vcpu, move |v| v.signal(|s| s.start_up(page))));
        let page = vcpu.wait();
        senders.into_iter().for_each(|s| s.join().unwrap());
        assert!(matches!(page, Some(7 | 9)), "it starts where one of them says");
        assert_eq!(vcpu.wakes.load(Ordering::Relaxed), 1, "it is woken once");
    });
}

/// A vCPU is reset and started, from wherever it is in its loop.
fn init_and_start_up(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let vcpu = Vcpu::new(true, 1, wrong);
        let sender = sender(&vcpu, |v| {
            v.signal(|s| s.init());
            v.signal(|s| s.start_up(7));
        });
        assert_eq!(vcpu.run(), Some(7));
        sender.join().unwrap();
        assert!(vcpu.wakes.load(Ordering::Relaxed) <= 1);
    });
}

/// A VM ends while one of its vCPUs runs, or waits for a start-up.
fn the_vm_ends(wrong: Wrong, runs: bool) {
    check(PREEMPTIONS, move || {
        let vcpu = Vcpu::new(runs, 1, wrong);
        let other = sender(&vcpu, |v| {
            v.ending.store(true, Ordering::Release);
            v.signal(|s| s.stop());
        });
        assert_eq!(if runs { vcpu.run() } else { vcpu.wait() }, None);
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
    init_and_start_up(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_init_is_asked_for_only_before_it_is_there() {
    init_and_start_up(Wrong::AsksOnce);
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
