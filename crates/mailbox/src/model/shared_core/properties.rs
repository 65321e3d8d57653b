//! What two vCPUs of a core must get, whatever the order.

use super::super::std::vec::Vec;
use super::super::{PREEMPTIONS, PREEMPTIONS_OF_THREE, check};
use super::{BUSY, Core, HALTS, LONG, OwnCore, SLICE, Slot, Wrong};
use crate::{Clock, NEVER, Reach, Yield, request};
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, Ordering};

/// Other cores send interrupts to the one that halts, wherever it is on its way to that; the busy
/// one's guest is left for nothing else.
fn post(wrong: Wrong, vectors: &'static [u8]) {
    let bound = if vectors.len() > 1 { PREEMPTIONS_OF_THREE } else { PREEMPTIONS };
    check(bound, move || {
        if wrong == Wrong::AsksFirst {
            sync::without_fences();
        }
        let core = Core::new(vectors.len() as u32, wrong);
        let send = |vector: u8| {
            let core = core.clone();
            thread::spawn(move || {
                let slot = Slot(core.view(false), HALTS);
                core.mailboxes[HALTS].post(&slot, vector);
                core.processor.sent();
            })
        };
        let senders: Vec<_> = vectors.iter().map(|vector| send(*vector)).collect();
        let own = OwnCore::of(&core, true, vectors.len());
        own.run();
        senders.into_iter().for_each(|s| s.join().unwrap());
        own.got.borrow_mut().sort();
        assert_eq!(&own.got.borrow()[..], vectors, "each arrives once");
    });
}

/// The same while nobody wants the core, which sleeps.
fn post_to_a_core_asleep(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let core = Core::new(1, wrong);
        let sender = {
            let core = core.clone();
            thread::spawn(move || {
                let slot = Slot(core.view(false), HALTS);
                core.mailboxes[HALTS].post(&slot, 0x41);
                core.processor.sent();
            })
        };
        let own = OwnCore::of(&core, true, 1);
        own.pick();
        own.yield_core(Yield::Block(NEVER));
        sender.join().unwrap();
        assert_eq!(&own.got.borrow()[..], [0x41]);
    });
}

/// An interrupt of the one that halts arrives on the core itself, in another's time.
fn arrives_here(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let core = Core::new(0, wrong);
        let own = OwnCore::of(&core, true, 1);
        // It halts already.
        own.slices.set(1);
        own.queue.borrow_mut().leave(HALTS, Yield::Block(NEVER), 0);
        own.arrives.set(Some(0x41));
        own.run();
        assert_eq!(&own.got.borrow()[..], [0x41]);
    });
}

/// Core 0 takes the core back from a guest that lets no interrupt in.
fn give_back(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        let core = Core::new(1, wrong);
        let core_0 = {
            let core = core.clone();
            thread::spawn(move || {
                let view = core.view(false);
                let takes = |now| match wrong {
                    Wrong::LeavesNoRequest => {
                        let resident = core.residency.is_resident(BUSY);
                        if resident {
                            view.send_nmi();
                        }
                        resident
                    }
                    _ => core.residency.watch(&view, now, SLICE),
                };
                while !takes(LONG + core.clock.fetch_add(LONG, Ordering::AcqRel)) {
                    thread::yield_now();
                }
                core.processor.sent();
            })
        };
        let own = OwnCore::of(&core, false, 0);
        own.run();
        assert_eq!(own.slices.get(), 1);
        core_0.join().unwrap();
    });
}

/// Another core changes a table, and goes on when the vCPU has forgotten what it knew of it, or
/// isn't resident.
fn an_asker_goes_on(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        if wrong == Wrong::NoFences {
            sync::without_fences();
        }
        let core = Core::new(1, wrong);
        let freed = Arc::new(AtomicBool::new(false));
        let asker = {
            let (core, freed) = (core.clone(), freed.clone());
            thread::spawn(move || {
                let slot = Slot(core.view(false), BUSY);
                let mailbox = &core.mailboxes[BUSY];
                mailbox.ask(&slot, request::FLUSH);
                mailbox.wait_until_done(&slot, request::FLUSH, thread::yield_now);
                freed.store(true, Ordering::Relaxed);
            })
        };
        let mailbox = &core.mailboxes[BUSY];
        let mut flushed = false;
        for _ in 0..2 {
            core.residency.set_resident(BUSY);
            if mailbox.requests() & request::FLUSH != 0 {
                mailbox.done(request::FLUSH);
                flushed = true;
            }
            if wrong == Wrong::LeavesEarly {
                core.residency.clear_resident();
            }
            // In its guest.
            assert!(flushed || !freed.load(Ordering::Relaxed), "it uses what isn't there any more");
            core.residency.clear_resident();
        }
        asker.join().unwrap();
    });
}

/// A core sets its alarm while core 0 sets its timer.
fn alarm(wrong: Wrong) {
    check(PREEMPTIONS, move || {
        if wrong == Wrong::NoFences {
            sync::without_fences();
        }
        let core = Core::new(1, wrong);
        let clock = Arc::new(Clock::new());
        let core_0 = {
            let (core, clock) = (core.clone(), clock.clone());
            thread::spawn(move || clock.set(|| core.residency.alarm().min(LONG)))
        };
        let woken = core.residency.set_alarm(&clock, SLICE);
        let set_for = core_0.join().unwrap();
        assert!(woken || set_for <= SLICE, "core 0 sleeps beyond it");
    });
}

#[test]
fn core_0_sees_an_alarm_or_is_woken() {
    alarm(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "core 0 sleeps beyond it")]
fn variant_no_fences_let_core_0_sleep_beyond_an_alarm() {
    alarm(Wrong::NoFences);
}

#[test]
fn a_blocked_vcpu_gets_its_interrupt_while_another_is_in_its_guest() {
    post(Wrong::Nothing, &[0x41]);
}

#[test]
fn it_gets_those_of_two_cores() {
    post(Wrong::Nothing, &[0x41, 0x81]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_nmi_that_leaves_no_request_is_taken_for_nothing() {
    post(Wrong::LeavesNoRequest, &[0x41]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_the_wrong_one_is_asked_to_look() {
    post(Wrong::AsksFirst, &[0x41]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_a_mark_behind_the_look() {
    post(Wrong::MarksLate, &[0x41]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_the_look_for_others_is_done_before_it_is_done() {
    post(Wrong::LooksFirst, &[0x41]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_no_look_for_others_after_a_preemption() {
    post(Wrong::LooksOnce, &[0x41]);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_a_look_before_the_switch_is_trusted_behind_it() {
    post(Wrong::TrustsTheLook, &[0x41]);
}

#[test]
fn a_core_asleep_is_woken() {
    post_to_a_core_asleep(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_a_sleep_without_a_look() {
    post_to_a_core_asleep(Wrong::SleepsUnlooked);
}

#[test]
fn what_arrives_for_another_on_the_core_itself_is_looked_at() {
    arrives_here(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_what_arrives_for_another_is_left_without_a_look() {
    arrives_here(Wrong::PostsSilently);
}

#[test]
fn a_guest_that_lets_no_interrupt_in_gives_the_core_back() {
    give_back(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "nothing comes any more")]
fn variant_an_nmi_of_core_0_that_leaves_no_request() {
    give_back(Wrong::LeavesNoRequest);
}

#[test]
fn who_waits_for_a_vcpu_goes_on_when_that_is_safe() {
    an_asker_goes_on(Wrong::Nothing);
}

#[test]
#[should_panic(expected = "it uses what isn't there any more")]
fn variant_no_fences_let_a_guest_use_what_is_gone() {
    an_asker_goes_on(Wrong::NoFences);
}

#[test]
#[should_panic(expected = "it uses what isn't there any more")]
fn variant_a_vcpu_that_isnt_resident_uses_its_guest() {
    an_asker_goes_on(Wrong::LeavesEarly);
}
