//! What is asked of a vCPU that has its core to itself, in every order.

use super::{Core, Vcpu, Wrong, sender};
use crate::model::{PREEMPTIONS, PREEMPTIONS_OF_THREE, check};
use crate::request;
use loom::thread;
use sync::Ordering;

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
