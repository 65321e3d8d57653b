//! Calls under loom, which tries every interleaving and every value that a load may give: a
//! sidecore that calls, and vCPUs that route, mask and unmask its entry meanwhile.
//!
//! Guarantees: nothing is sent by a word that was replaced, or that is masked or off, once the wait
//! is over; every call is followed by an interrupt, if the entry is open and routed at last; there
//! are no more interrupts than calls. Every property has variants with one step wrong, which loom
//! must catch.
extern crate std;

use super::{Called, Caller, Entry, MASKED, PENDING, ROUTE, ROUTED, Target, Turn, deliver, target};
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;
use sync::{AtomicU64, Ordering, SpinMutex};

/// How often the scheduler may take the processor from a thread that could go on, in one execution.
const PREEMPTIONS: usize = 3;

const FIRST: Target = Target { destination: 1, vector: 0x41 };
const SECOND: Target = Target { destination: 2, vector: 0x42 };

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// Nobody waits until the turn is over.
    DoesNotSettle,
    /// There are no fences.
    NoFences,
    /// A turn's end doesn't say that what was done in it is done.
    EndsRelaxed,
    /// Nor does its beginning say it of the turn before.
    BeginsRelaxed,
    /// The word is loaded before the turn is announced.
    LoadsFirst,
    /// A call by a masked entry sets no pending bit.
    DropsMasked,
    /// The pending bit is stored in the word as it was.
    StoresPending,
    /// Who unmasks asks nobody to look.
    DoesNotAsk,
    /// Nor does the sidecore itself, if the word changed.
    DoesNotAskItself,
    /// What waits is sent though its pending bit couldn't be cleared.
    SendsAnyway,
    /// A new route is stored in the word as it was.
    StoresRoute,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Routes the entry elsewhere, and gives the old vector to others.
    Routes,
    /// Masks it, and unmasks it.
    Masks,
    /// Unmasks it.
    Unmasks,
    /// Turns MSI-X off.
    TurnsOff,
}

/// What may be sent now, and what was.
#[derive(Debug, Default)]
struct Seen {
    /// The first vector is another's.
    released: bool,
    /// The entry is masked or off.
    closed: bool,
    calls: usize,
    /// So many calls have an interrupt after them.
    served: usize,
    sent: usize,
    /// To the first target.
    first: u64,
}

struct World {
    entry: Entry,
    turn: Turn,
    seen: SpinMutex<Seen>,
    /// So many were sent to the first target, as far as one knows without the lock.
    first: AtomicU64,
    wrong: Wrong,
}

impl World {
    fn send(&self, to: Target) {
        self.first.fetch_add((to == FIRST).into(), Ordering::Relaxed);
        let mut seen = self.seen.lock();
        assert!(to == FIRST && !seen.released || to == SECOND, "{to:?} is another's");
        assert!(!seen.closed, "it is sent by an entry that is closed");
        seen.sent += 1;
        seen.first += u64::from(to == FIRST);
        seen.served = seen.calls;
    }

    /// The sidecore has something for the guest.
    fn call(&self, caller: &mut Caller) {
        self.seen.lock().calls += 1;
        let (entry, send) = (&self.entry, |to| self.send(to));
        match self.wrong {
            Wrong::EndsRelaxed => {
                self.turn_by(caller, [Ordering::Release, Ordering::Relaxed], send);
            }
            Wrong::BeginsRelaxed => {
                self.turn_by(caller, [Ordering::Relaxed, Ordering::Release], send);
            }
            Wrong::LoadsFirst => {
                let word = entry.load();
                caller.take_turn(|turn| self.with(turn, word, send));
            }
            Wrong::DropsMasked | Wrong::StoresPending | Wrong::SendsAnyway => {
                caller.take_turn(|turn| self.with(turn, entry.load(), send));
            }
            Wrong::DoesNotAskItself => {
                let word = Turn::new();
                caller.take_turn(|_| self.with(&word, entry.load(), send));
            }
            _ => drop(caller.call(entry, send)),
        }
    }

    /// A call whose turn begins and ends by stores of these orderings.
    fn turn_by(&self, caller: &mut Caller, [begin, end]: [Ordering; 2], send: impl FnOnce(Target)) {
        let count = &caller.turn.count.0;
        count.store(caller.count + 1, begin);
        sync::fence(Ordering::SeqCst);
        self.with(caller.turn, self.entry.load(), send);
        caller.count += 2;
        count.store(caller.count, end);
    }

    /// As [`Caller::call`] goes on once it has the word.
    fn with(&self, turn: &Turn, mut word: u64, send: impl FnOnce(Target)) -> Called {
        if word & MASKED != 0 {
            match self.wrong {
                Wrong::DropsMasked => return Called::Waits,
                Wrong::StoresPending => {
                    word |= PENDING;
                    self.entry.0.store(word, Ordering::Release);
                }
                _ => word = self.entry.0.fetch_or(PENDING, Ordering::AcqRel) | PENDING,
            }
            if self.wrong == Wrong::SendsAnyway && word & MASKED == 0 {
                send(target(word).expect("it is routed"));
                turn.ask();
                return Called::Sent;
            }
        }
        deliver(turn, &self.entry, word, send)
    }

    /// A round of the sidecore's.
    fn look(&self, caller: &mut Caller) {
        if caller.asked() {
            caller.call_waiting(&self.entry, |to| self.send(to));
        }
    }

    fn settle(&self) {
        if self.wrong != Wrong::DoesNotSettle {
            let waits = || {
                thread::yield_now();
                true
            };
            assert!(self.turn.settle(waits));
        }
    }

    fn unmask(&self) {
        if self.entry.unmask() && self.wrong != Wrong::DoesNotAsk {
            self.turn.ask();
        }
    }

    /// What a vCPU does.
    fn act(&self, does: Does) {
        match does {
            Does::Routes => {
                if self.wrong == Wrong::StoresRoute {
                    let word = self.entry.load() & !ROUTE | ROUTED;
                    let to = 0x42 << super::VECTOR_SHIFT | 2;
                    self.entry.0.store(word | to, Ordering::Release);
                } else {
                    self.entry.route(Some(SECOND));
                }
                self.settle();
                let known = self.first.load(Ordering::Relaxed);
                let mut seen = self.seen.lock();
                seen.released = true;
                assert_eq!(
                    known, seen.first,
                    "it is another's, and one was sent that isn't known of"
                );
            }
            Does::Masks => {
                self.entry.mask();
                self.settle();
                self.seen.lock().closed = true;
                self.seen.lock().closed = false;
                self.unmask();
            }
            Does::Unmasks => self.unmask(),
            Does::TurnsOff => {
                self.entry.disable();
                self.settle();
                self.seen.lock().closed = true;
            }
        }
    }
}

/// A sidecore calls so often, while each of these does what it does.
fn check(wrong: Wrong, calls: usize, vcpus: &'static [Does]) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        if wrong == Wrong::NoFences {
            sync::without_fences();
        }
        let (entry, turn) = (Entry::new(), Turn::new());
        entry.route(Some(FIRST));
        let waits = !vcpus.contains(&Does::Unmasks) && entry.unmask();
        assert!(!waits);
        if vcpus.contains(&Does::Unmasks) {
            entry.mask();
        }
        let world = Arc::new(World {
            entry,
            turn,
            seen: Default::default(),
            first: AtomicU64::new(0),
            wrong,
        });
        let spawn = |does: &Does| {
            let (world, does) = (world.clone(), *does);
            thread::spawn(move || world.act(does))
        };
        let threads: Vec<_> = vcpus.iter().map(spawn).collect();
        let mut caller = world.turn.caller().unwrap();
        for _ in 0..calls {
            world.call(&mut caller);
            world.look(&mut caller);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.look(&mut caller);
        let seen = world.seen.lock();
        assert!(seen.sent <= seen.calls, "one is doubled");
        let off = vcpus.contains(&Does::TurnsOff);
        assert!(off || seen.served == seen.calls, "one is lost");
        assert!(!world.entry.pending(), "one waits");
        let last = if vcpus.contains(&Does::Routes) { SECOND } else { FIRST };
        assert_eq!(world.entry.target(), Some(last));
    });
}

#[test]
fn a_route_changes_while_the_sidecore_calls() {
    check(Wrong::Nothing, 2, &[Does::Routes]);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_nobody_waits_for_the_turn() {
    check(Wrong::DoesNotSettle, 2, &[Does::Routes]);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_no_fences() {
    check(Wrong::NoFences, 2, &[Does::Routes]);
}

#[test]
#[should_panic(expected = "isn't known of")]
fn variant_the_end_of_a_turn_is_relaxed() {
    check(Wrong::EndsRelaxed, 2, &[Does::Routes]);
}

#[test]
#[should_panic(expected = "isn't known of")]
fn variant_the_beginning_of_a_turn_is_relaxed() {
    check(Wrong::BeginsRelaxed, 2, &[Does::Routes]);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_the_word_is_loaded_before_the_turn() {
    check(Wrong::LoadsFirst, 2, &[Does::Routes]);
}

#[test]
fn an_entry_is_masked_while_the_sidecore_calls() {
    check(Wrong::Nothing, 2, &[Does::Masks]);
}

#[test]
#[should_panic(expected = "an entry that is closed")]
fn variant_masking_doesnt_wait_for_the_turn() {
    check(Wrong::DoesNotSettle, 2, &[Does::Masks]);
}

#[test]
#[should_panic(expected = "an entry that is closed")]
fn variant_a_masked_word_is_loaded_before_the_turn() {
    check(Wrong::LoadsFirst, 2, &[Does::Masks]);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_a_masked_call_sets_no_pending_bit() {
    check(Wrong::DropsMasked, 2, &[Does::Masks]);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_who_unmasks_asks_nobody() {
    check(Wrong::DoesNotAsk, 2, &[Does::Masks]);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_the_pending_bit_is_stored() {
    check(Wrong::StoresPending, 2, &[Does::Unmasks]);
}

#[test]
#[should_panic(expected = "one is doubled")]
fn variant_what_waits_is_sent_with_its_pending_bit() {
    check(Wrong::SendsAnyway, 1, &[Does::Masks]);
}

#[test]
fn msix_is_turned_off_while_the_sidecore_calls() {
    check(Wrong::Nothing, 2, &[Does::TurnsOff]);
}

#[test]
#[should_panic(expected = "an entry that is closed")]
fn variant_turning_off_doesnt_wait_for_the_turn() {
    check(Wrong::DoesNotSettle, 2, &[Does::TurnsOff]);
}

#[test]
fn an_entry_is_routed_and_unmasked_at_the_same_time() {
    check(Wrong::Nothing, 1, &[Does::Routes, Does::Unmasks]);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_a_route_is_stored() {
    check(Wrong::StoresRoute, 1, &[Does::Routes, Does::Unmasks]);
}

#[test]
#[should_panic(expected = "one is lost")]
fn variant_a_word_that_changed_is_not_looked_at_again() {
    check(Wrong::DoesNotAskItself, 1, &[Does::Routes, Does::Unmasks]);
}
