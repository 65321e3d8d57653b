//! What is asked and what is done about it, step by step. The orders are loom's (`model`).

use crate::{Attended, Entrant, Kick, Mailbox, Owner, request};
use delivery::Startup;
use std::cell::{Cell, RefCell};
use sync::AtomicU32;

/// A core that notes what it is told.
#[derive(Default)]
struct Core {
    kicks: RefCell<Vec<bool>>,
    wakes: Cell<u32>,
    resident: Cell<bool>,
}

impl Kick for Core {
    fn kick(&self, wakeup: bool) {
        self.kicks.borrow_mut().push(wakeup);
    }

    fn wake(&self) {
        self.wakes.set(self.wakes.get() + 1);
    }

    fn is_resident(&self) -> bool {
        self.resident.get()
    }
}

/// A vCPU that notes what it does.
#[derive(Default)]
struct Vcpu<'a> {
    did: Vec<String>,
    ends: bool,
    holds: bool,
    /// What comes in its sleep.
    dreams: Vec<Box<dyn Fn() + 'a>>,
}

impl Vcpu<'_> {
    fn note(&mut self, what: impl Into<String>) {
        self.did.push(what.into());
    }

    fn did(&mut self) -> String {
        std::mem::take(&mut self.did).join(" ")
    }
}

impl Owner for Vcpu<'_> {
    fn flush_translations(&mut self) {
        self.note("flush");
    }

    fn leave_eli(&mut self) {
        self.note("leave-eli");
    }

    fn take_input(&mut self) {
        self.note("input");
    }

    fn look_over_sources(&mut self) {
        self.note("sources");
    }

    fn interrupt(&mut self, vector: u8) {
        self.note(format!("{vector:#x}"));
    }

    fn nmi(&mut self) {
        self.note("nmi");
    }

    fn holds_init(&mut self) -> bool {
        self.note("init");
        self.holds
    }

    fn vm_ends(&self) -> bool {
        self.ends
    }

    fn quiet_core(&mut self) {
        self.note("quiet");
    }

    fn forget_arrived(&mut self) {
        self.note("forget");
    }

    fn sleep(&mut self) {
        self.note("sleep");
        if self.dreams.is_empty() {
            self.ends = true;
        } else {
            self.dreams.remove(0)();
        }
    }

    fn start(&mut self, page: u8) {
        self.note(format!("start {page}"));
    }

    fn prepare_core(&mut self) {
        self.note("prepare");
    }
}

#[test]
fn each_request_is_done_once_and_in_this_order() {
    let (mailbox, core, mut vcpu) = (Mailbox::new(true), Core::default(), Vcpu::default());
    mailbox.ask_nmi(&core);
    mailbox.post(&core, 0x41);
    mailbox.post(&core, 0x42);
    mailbox.ask(&core, request::CONSOLE);
    mailbox.ask_at_leisure(request::SOURCES);
    mailbox.ask(&core, request::LEAVE_ELI);
    mailbox.ask(&core, request::FLUSH);
    assert_eq!(core.kicks.take(), [true, true, true, true, false, false]);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "flush leave-eli input sources 0x42 0x41 nmi");
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!((vcpu.did().as_str(), mailbox.requests()), ("", 0));
    mailbox.ask(&core, request::FLUSH | request::NMI);
    mailbox.answer(&mut vcpu);
    assert_eq!((vcpu.did().as_str(), mailbox.requests()), ("flush", request::NMI));
    mailbox.post(&core, 0x43);
    mailbox.forget_interrupts();
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "");
    mailbox.leave();
    mailbox.ask_nmi(&core);
    assert_eq!((mailbox.running(), mailbox.requests()), (false, 0));
}

#[test]
fn an_init_and_a_start_up_begin_anew() {
    let (mailbox, core, mut vcpu) = (Mailbox::new(true), Core::default(), Vcpu::default());
    mailbox.signal(&core, |s| s.start_up(9));
    assert_eq!(core.kicks.take(), [] as [bool; 0], "it runs: nothing");
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "");
    mailbox.signal(&core, |s| s.init());
    mailbox.signal(&core, |s| s.start_up(7));
    assert_eq!((core.kicks.take(), core.wakes.take()), (vec![true], 0));
    mailbox.post(&core, 0x41);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "init quiet forget start 7 0x41");
    mailbox.signal(&core, |s| s.init());
    vcpu.dreams = vec![
        // Not every wake-up is a start-up.
        Box::new(|| ()),
        Box::new(|| mailbox.ask(&core, request::CONSOLE)),
        Box::new(|| mailbox.signal(&core, |s| s.start_up(8))),
    ];
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "init quiet forget quiet sleep sleep sleep start 8");
    assert_eq!((core.wakes.take(), mailbox.running()), (1, true));
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!((vcpu.did().as_str(), mailbox.requests()), ("input", 0), "it waited for it");
}

/// One that is held back changes nothing, and is neither lost nor found by itself; what else is
/// asked is done meanwhile. The end of the VM isn't held back.
#[test]
fn an_init_that_is_held_back_comes_when_it_is_looked_at_again() {
    let (mailbox, core) = (Mailbox::new(true), Core::default());
    let mut vcpu = Vcpu { holds: true, ..Default::default() };
    mailbox.signal(&core, |s| s.init());
    mailbox.signal(&core, |s| s.start_up(7));
    mailbox.post(&core, 0x41);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!((vcpu.did().as_str(), mailbox.requests()), ("init 0x41", 0));
    mailbox.ask(&core, request::FLUSH);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "flush");
    vcpu.holds = false;
    mailbox.again();
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "init quiet forget start 7");
    mailbox.again();
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "", "there is none");
    mailbox.signal(&core, |s| s.init());
    (vcpu.holds, vcpu.ends) = (true, true);
    assert_eq!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "");
}

/// What a vCPU is asked while it waits for its start-up: interrupts are gone with its local APIC,
/// input waits for it, and what its asker waits for stays asked.
#[test]
fn what_is_asked_of_one_that_waits_is_kept_or_dropped_by_what_it_is() {
    use request::{CONSOLE, FLUSH, LEAVE_ELI, NMI, SOURCES};
    for (asked, kept) in [
        (0, 0),
        (NMI, 0),
        (CONSOLE, CONSOLE),
        (NMI | CONSOLE, CONSOLE),
        (FLUSH | SOURCES, FLUSH | SOURCES),
        (FLUSH | LEAVE_ELI | NMI, FLUSH | LEAVE_ELI),
    ] {
        let (mailbox, core, mut vcpu) = (Mailbox::new(false), Core::default(), Vcpu::default());
        vcpu.dreams = vec![
            Box::new(|| mailbox.ask(&core, asked)),
            Box::new(|| mailbox.signal(&core, |s| s.start_up(8))),
        ];
        assert!(mailbox.wait(&mut vcpu));
        assert_eq!((vcpu.did().as_str(), mailbox.requests()), ("quiet sleep sleep start 8", kept));
    }
}

/// The end is looked for where the start-up state changed, and nowhere else.
#[test]
fn input_alone_ends_nothing() {
    let (mailbox, core, mut vcpu) = (Mailbox::new(true), Core::default(), Vcpu::default());
    vcpu.ends = true;
    mailbox.ask(&core, request::CONSOLE);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    mailbox.ask_at_leisure(request::SOURCES);
    assert_ne!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "input sources");
}

#[test]
fn the_end_of_the_vm_is_found_asleep_and_awake() {
    let (mailbox, core, mut vcpu) = (Mailbox::new(true), Core::default(), Vcpu::default());
    vcpu.ends = true;
    mailbox.ask(&core, request::NMI);
    assert_eq!(mailbox.attend(&mut vcpu), Attended::Anew, "nothing says so");
    vcpu.did();
    mailbox.signal(&core, |s: Startup| s.stop());
    assert_eq!(mailbox.attend(&mut vcpu), Attended::Ends);
    assert_eq!(vcpu.did(), "");
    vcpu.ends = false;
    mailbox.signal(&core, |s| s.init());
    assert_eq!(mailbox.attend(&mut vcpu), Attended::Ends, "it ends in its sleep");
    assert_eq!(vcpu.did(), "init quiet forget quiet sleep prepare");
    assert!(!mailbox.wait(&mut vcpu));
    assert_eq!(vcpu.did(), "quiet prepare");
}

#[test]
fn an_asker_waits_for_who_runs_and_is_resident() {
    let (mailbox, core) = (Mailbox::new(true), Core::default());
    let looks = Cell::new(0);
    let wait = |enough: u32| {
        mailbox.wait_until_done(&core, request::FLUSH, || {
            looks.set(looks.get() + 1);
            if looks.get() == enough {
                mailbox.done(request::FLUSH);
            }
        });
        looks.take()
    };
    mailbox.ask(&core, request::FLUSH);
    assert_eq!(wait(3), 0, "it isn't resident");
    core.resident.set(true);
    assert_eq!(wait(3), 3);
    mailbox.ask(&core, request::NMI);
    assert_eq!(wait(3), 0, "that isn't waited for");
    mailbox.ask(&core, request::FLUSH);
    mailbox.leave();
    assert_eq!(wait(3), 0, "it doesn't run");
}

/// A vCPU on its way in. With `asked` an NMI is asked for while it prepares its first entry.
struct Entry<'a> {
    mailbox: &'a Mailbox,
    vcpu: Vcpu<'a>,
    asked: bool,
}

impl Entrant for Entry<'_> {
    fn maybe_preempt(&mut self) {
        self.vcpu.note("preempt");
    }

    fn attend(&mut self) -> Attended {
        self.mailbox.attend(&mut self.vcpu)
    }

    fn prepare(&mut self) {
        self.vcpu.note("prepare");
    }

    fn enter(&mut self, requests: &AtomicU32) -> bool {
        if core::mem::take(&mut self.asked) {
            self.mailbox.store(request::NMI);
        }
        let found = requests.load(sync::Ordering::Relaxed);
        assert_eq!(found, self.mailbox.requests());
        found == 0
    }
}

#[test]
fn interrupts_alone_cost_no_second_look_for_others() {
    let mailbox = Mailbox::new(true);
    let mut entry = Entry { mailbox: &mailbox, vcpu: Vcpu::default(), asked: false };
    mailbox.put(0x41);
    assert!(mailbox.run_guest(&mut entry));
    assert_eq!(entry.vcpu.did(), "preempt 0x41 prepare");
    mailbox.put(0x41);
    mailbox.store(request::RESCHEDULE | request::FLUSH);
    mailbox.done(request::RESCHEDULE);
    assert!(mailbox.run_guest(&mut entry));
    assert_eq!(entry.vcpu.did(), "preempt flush 0x41 preempt prepare");
}

#[test]
fn an_entry_that_is_aborted_begins_anew() {
    let mailbox = Mailbox::new(true);
    let mut entry = Entry { mailbox: &mailbox, vcpu: Vcpu::default(), asked: true };
    mailbox.store(request::FLUSH);
    assert!(mailbox.run_guest(&mut entry));
    let wanted = "preempt flush preempt prepare preempt nmi preempt prepare";
    assert_eq!(entry.vcpu.did(), wanted);
    entry.vcpu.ends = true;
    mailbox.store(request::STARTUP);
    assert!(!mailbox.run_guest(&mut entry));
}
