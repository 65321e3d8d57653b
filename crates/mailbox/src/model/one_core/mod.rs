//! A vCPU that has its core to itself. What it must do stands in `properties`.

mod properties;

use super::machine::Processor;
use super::std::vec::Vec;
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
