//! The routes under loom, which tries every interleaving of the threads: their own code, beside a
//! unit that goes by old entries for as long as it may, and messages that take their time.
//!
//! As hostile as hardware may be: a unit that knows an entry goes by what it knows until that is
//! invalidated; a message arrives whenever it likes, also after a completed wait, which only says
//! that it has left the unit; but then before the grace period is over.
//!
//! Guarantees: an interrupt that is sent while its source is rebound, and while the vCPUs of a
//! shared core come and go, arrives once, and is taken for what its entry was written for. Every
//! property has variants with one step wrong, which loom must catch.
extern crate std;

use crate::{CoreRoutes, Units, VcpuRoutes, rebind, unbind};
use core::cell::Cell;
use delivery::{Arrived, VectorSet};
use iommu::{Bdf, Delivery as Message, InterruptRoute};
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;
use sync::SpinMutex;

/// How often the scheduler may take the processor from a thread that could go on, in one execution.
const PREEMPTIONS: usize = 3;

/// APIC ids of the core that A and B share, and of C's.
const SHARED: u32 = 1;
const OWN: u32 = 2;
/// Slots on the shared core.
const A: usize = 0;
const B: usize = 1;
/// In [`Meant`]: the vCPU with a core of its own.
const C: usize = 2;
const GRACE: u64 = 100;
/// The entries of a source of A's (or C's), which is rebound, and of one of B's.
const SOURCES: [u16; 2] = [0, 1];

/// Whom an entry was written for: the vCPU, and its vector.
type Meant = (usize, u8);

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// Nobody waits until the unit has forgotten what changed.
    DoesNotWait,
    /// The vectors mean nobody before the grace period is over.
    NoGrace,
    /// The interrupts in the local APIC aren't handed over before its vectors mean another.
    HandsNothingOver,
    /// A source that is rebound is retargeted like others.
    StaysBound,
    /// Its old route isn't brought to an alias first.
    KeepsItsVector,
    /// Its old vector is released before its entry leads elsewhere.
    ReleasesFirst,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    destination: u32,
    physical: u8,
    meant: Meant,
}

/// A message that is on its way.
#[derive(Debug)]
struct Flying {
    number: usize,
    entry: Entry,
    /// It has left the unit.
    late: bool,
}

/// The unit, and the local APICs of all cores.
#[derive(Debug, Default)]
struct Hardware {
    table: [Option<Entry>; 2],
    /// The entries that the unit has cached.
    known: [Option<Entry>; 2],
    flying: Vec<Flying>,
    sent: usize,
    /// Pending in a local APIC.
    pending: Vec<Entry>,
    clock: u64,
}

impl Hardware {
    fn drain(&mut self) {
        self.known = [None; 2];
        self.flying.iter_mut().for_each(|f| f.late = true);
    }
}

/// The machine: two vCPUs that share a core, one that doesn't, and their routes.
struct World {
    hardware: SpinMutex<Hardware>,
    core: Arc<CoreRoutes>,
    /// Those of A, B and C.
    routes: [VcpuRoutes<Arc<CoreRoutes>>; 3],
    wrong: Wrong,
}

fn device(entry: u16) -> Bdf {
    Bdf::from_requester_id(8 + entry)
}

/// The hardware as one core drives it.
struct Driver<'a> {
    world: &'a World,
    /// The meaning that entries are written for from now on, if it changes.
    meant: Option<Meant>,
    /// So many entries are written for what they were before that.
    kept: Cell<u32>,
}

impl Driver<'_> {
    fn write(&self, entry: u16, route: InterruptRoute) {
        let mut hardware = self.world.hardware.lock();
        let slot = &mut hardware.table[usize::from(entry)];
        let was = slot.map(|e| e.meant);
        let kept = self.kept.get();
        self.kept.set(kept.saturating_sub(1));
        if kept > 0 && self.meant.is_some() && self.world.wrong == Wrong::KeepsItsVector {
            return;
        }
        let Message::Fixed(physical) = route.delivery else { panic!("a fixed interrupt") };
        let meant = if kept > 0 { was } else { self.meant.or(was) };
        let meant = meant.expect("an entry that is rewritten was written for somebody");
        *slot = Some(Entry { destination: route.destination, physical, meant });
    }
}

impl Units for Driver<'_> {
    fn set_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        self.write(entry, route);
        self.drain_all()
    }

    fn update_irte(&self, entry: u16, route: InterruptRoute) -> bool {
        self.write(entry, route);
        true
    }

    fn clear_irte(&self, _: Bdf, entry: u16) -> bool {
        self.world.hardware.lock().table[usize::from(entry)] = None;
        self.drain_all()
    }

    fn drain(&self, _: Bdf) -> bool {
        self.drain_all()
    }

    fn drain_all(&self) -> bool {
        if self.world.wrong != Wrong::DoesNotWait {
            self.world.hardware.lock().drain();
        }
        true
    }

    fn now(&self) -> u64 {
        let mut hardware = self.world.hardware.lock();
        // A message that has left the unit arrives before the grace period is over: time waits for
        // it.
        if self.world.wrong == Wrong::NoGrace || !hardware.flying.iter().any(|f| f.late) {
            hardware.clock += 2 * GRACE;
        }
        hardware.clock
    }

    fn grace(&self) -> u64 {
        GRACE
    }
}

impl World {
    /// With so many aliases for each slot. The first source is A's, by 0x41, as the second is B's;
    /// A has the shared core, and the unit knows the entries.
    fn new(aliases: u8, wrong: Wrong) -> Self {
        let mut host = VectorSet::of(&[0xFF]);
        (0xF0 + 2 * aliases..0xFF).for_each(|vector| host.insert(vector));
        let core = Arc::new(CoreRoutes::new(SHARED, host, 2));
        core.reserve(4);
        let shared = |slot| VcpuRoutes::shared(core.clone(), slot);
        let routes = [shared(A), shared(B), VcpuRoutes::dedicated(OWN, VectorSet::of(&[0xF1]))];
        World { hardware: Default::default(), core, routes, wrong }
    }

    /// As it begins.
    fn begin(&self, first: Meant) {
        for (entry, meant) in SOURCES.into_iter().zip([first, (B, 0x41)]) {
            let bound = self.rebind(entry, None, meant);
            assert!(bound.is_some());
        }
        assert!(self.core.retarget_to_guest(&self.driver(None, 0), A, || ()));
        let mut hardware = self.hardware.lock();
        hardware.known = hardware.table;
    }

    fn driver(&self, meant: Option<Meant>, kept: u32) -> Driver<'_> {
        Driver { world: self, meant, kept: Cell::new(kept) }
    }

    /// A source is bound elsewhere.
    fn rebind(&self, entry: u16, from: Option<(usize, u8)>, to: Meant) -> Option<u8> {
        let source = (device(entry), entry);
        let (routes, guest) = (&self.routes[to.0], to.1);
        let old = from.map(|(vcpu, bound)| (&self.routes[vcpu], bound));
        // From a shared core its entry is written for what it was once more.
        let kept = u32::from(from.is_some_and(|(vcpu, _)| vcpu != C));
        match (self.wrong, old) {
            (Wrong::StaysBound, Some((from, bound))) => {
                let units = self.driver(Some(to), 0);
                let new = routes.bind(&units, source.0, entry, guest);
                from.end_unbind(bound);
                new
            }
            (Wrong::ReleasesFirst, Some((from, bound))) => {
                let units = self.driver(Some(to), kept);
                from.begin_unbind(&units, source.0, entry);
                from.end_unbind(bound);
                routes.bind(&units, source.0, entry, guest)
            }
            _ => rebind(&self.driver(Some(to), kept), source, old, (routes, guest)),
        }
    }

    /// A device signals.
    fn send(&self, entry: u16) -> Option<usize> {
        let mut hardware = self.hardware.lock();
        let at = usize::from(entry);
        let entry = hardware.known[at].or(hardware.table[at])?;
        hardware.known[at] = Some(entry);
        let number = hardware.sent;
        hardware.sent += 1;
        hardware.flying.push(Flying { number, entry, late: false });
        Some(number)
    }

    /// Its message arrives.
    fn arrive(&self, number: usize) {
        let mut hardware = self.hardware.lock();
        let at = hardware.flying.iter().position(|f| f.number == number);
        let flying = hardware.flying.swap_remove(at.expect("it is on its way"));
        hardware.pending.push(flying.entry);
    }

    /// The interrupts that are pending in a core's local APIC.
    fn take(&self, destination: u32) -> Vec<Entry> {
        let mut hardware = self.hardware.lock();
        hardware.pending.extract_if(.., |e| e.destination == destination).collect()
    }

    /// The host of the shared core takes what is pending, and hands it over; gives how many that
    /// were.
    fn hand_over(&self) -> usize {
        let taken = self.take(SHARED);
        for Entry { physical, meant, .. } in &taken {
            let arrived = self.core.arrived(*physical);
            let Arrived::Of { slot, vectors } = arrived else {
                panic!("{physical:#x}, sent for {meant:x?}, is {arrived:x?}")
            };
            let given = (slot, vectors.contains(meant.1));
            assert_eq!(given, (meant.0, true), "{physical:#x}, sent for {meant:x?}, is another's");
        }
        taken.len()
    }

    /// Takes the pending interrupts while the vCPU at `slot` has the core, and owns its vectors or
    /// doesn't.
    fn serve(&self, slot: usize, owns: bool) -> usize {
        if !owns {
            return self.hand_over();
        }
        // Its guest takes what isn't of class F, whatever it was sent for.
        let taken = self.take(SHARED);
        let (own, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(|e| e.physical < 0xF0);
        for Entry { physical, meant, .. } in &own {
            assert_eq!(
                (slot, *physical),
                *meant,
                "{physical:#x}, sent for {meant:x?}, is another's"
            );
        }
        self.hardware.lock().pending.extend(others);
        own.len() + self.hand_over()
    }

    /// C's core takes what is pending.
    fn serve_own(&self) -> usize {
        let taken = self.take(OWN);
        for Entry { physical, meant, .. } in &taken {
            let given = self.routes[C].guest_vector(*physical).map(|guest| (C, guest));
            assert_eq!(given, Some(*meant), "{physical:#x}, sent for {meant:x?}, is another's");
        }
        taken.len()
    }

    /// A leaves the shared core, and B comes; gives how many interrupts were taken meanwhile, and
    /// whether B owns its vectors.
    fn switch(&self) -> (usize, bool) {
        let units = self.driver(None, 0);
        let mut taken = self.serve(A, true);
        self.core.retarget_to_aliases(&units, A);
        if self.wrong != Wrong::HandsNothingOver {
            taken += self.hand_over();
        }
        let mut owns = false;
        for _ in 0..2 {
            if !owns {
                owns = self.core.retarget_to_guest(&units, B, || {
                    if self.wrong != Wrong::HandsNothingOver {
                        taken += self.hand_over();
                    }
                });
            }
            taken += self.serve(B, owns);
        }
        (taken, owns)
    }
}

/// The shared core goes from A to B, while a device signals by the first source; another core
/// rebinds it
/// `to` elsewhere meanwhile, or nowhere. Afterwards it signals once more.
fn check(wrong: Wrong, aliases: u8, first: Meant, change: Option<Option<Meant>>) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        let world = Arc::new(World::new(aliases, wrong));
        world.begin(first);
        let entry = SOURCES[0];
        let device_signals = {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(number) = world.send(entry) {
                    world.arrive(number);
                }
            })
        };
        let other = change.map(|to| {
            let world = world.clone();
            thread::spawn(move || {
                // What was bound, as `rebind` gave it: the guest's vector, since none is the
                // host's.
                let bound = first;
                match to {
                    Some(to) => assert!(world.rebind(entry, Some(bound), to).is_some()),
                    None => {
                        let (vcpu, bound) = bound;
                        let units = world.driver(None, 0);
                        let source = (device(entry), entry);
                        unbind(&units, source, (&world.routes[vcpu], bound));
                    }
                }
            })
        });
        let (mut taken, mut owns) = world.switch();
        device_signals.join().unwrap();
        other.into_iter().for_each(|other| other.join().unwrap());
        // The grace period is over by now.
        taken += world.serve(B, owns);
        if !owns {
            let drain = || taken += world.hand_over();
            owns = world.core.retarget_to_guest(&world.driver(None, 0), B, drain);
            assert!(owns, "B owns its vectors in the end");
        }
        let wanted = change.unwrap_or(Some(first));
        let last = world.send(entry);
        assert_eq!(last.is_some(), wanted.is_some(), "it signals if it is bound");
        if let Some(number) = last {
            let meant = world.hardware.lock().flying[0].entry.meant;
            assert_eq!(Some(meant), wanted, "it signals by its new route");
            world.arrive(number);
        }
        taken += world.serve(B, owns) + world.serve_own();
        assert_eq!(taken, world.hardware.lock().sent, "each arrives once");
    });
}

#[test]
fn what_is_sent_at_a_switch_is_its_senders() {
    check(Wrong::Nothing, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_nobody_waits_for_the_unit() {
    check(Wrong::DoesNotWait, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_no_grace_for_late_messages() {
    check(Wrong::NoGrace, 5, (A, 0x41), None);
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_what_is_pending_is_left_to_the_next() {
    check(Wrong::HandsNothingOver, 5, (A, 0x41), None);
}

#[test]
fn a_source_gets_another_vector_while_its_vcpu_leaves() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_gets_another_vector_where_both_have_one_alias() {
    check(Wrong::Nothing, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_vector_released_while_its_entry_sends_it() {
    check(Wrong::ReleasesFirst, 1, (A, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_goes_to_a_vcpu_with_a_core_of_its_own() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_source_that_is_rebound_is_retargeted() {
    check(Wrong::StaysBound, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
#[should_panic(expected = "is another's")]
fn variant_a_source_that_is_rebound_keeps_its_vector() {
    check(Wrong::KeepsItsVector, 5, (A, 0x41), Some(Some((C, 0x41))));
}

#[test]
fn a_source_goes_to_another_vcpu_of_its_core() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(Some((B, 0x42))));
}

#[test]
fn a_source_comes_from_a_vcpu_with_a_core_of_its_own() {
    check(Wrong::Nothing, 5, (C, 0x41), Some(Some((A, 0x42))));
}

#[test]
fn a_source_is_unbound_while_its_vcpu_leaves() {
    check(Wrong::Nothing, 5, (A, 0x41), Some(None));
}
