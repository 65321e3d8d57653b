//! The machine of the model: what sends, the local APICs, and the vCPUs that share a core.

use crate::calls::{self, Target, Turn};
use crate::{CoreRoutes, Units, VcpuRoutes, rebind};
use core::cell::Cell;
use delivery::{Arrived, VectorSet};
use iommu::{Bdf, Delivery as Message, InterruptRoute};
use loom::sync::Arc;
use std::vec::Vec;
use sync::SpinMutex;

/// How often the scheduler may take the processor from a thread that could go on, in one execution.
pub(super) const PREEMPTIONS: usize = 3;

/// APIC ids of the core that A and B share, and of C's.
const SHARED: u32 = 1;
const OWN: u32 = 2;
/// Slots on the shared core.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
/// In [`Meant`]: the vCPU with a core of its own.
pub(super) const C: usize = 2;
const GRACE: u64 = 100;
/// The entries of a source of A's (or C's), which is rebound, and of one of B's.
pub(super) const SOURCES: [u16; 2] = [0, 1];

/// Whom an entry was written for: the vCPU, and its vector.
pub(super) type Meant = (usize, u8);

/// Who sends the interrupts of the first source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The unit, for a device.
    Unit,
    /// A sidecore, for a paravirtual function.
    Sidecore,
}

/// The step that is wrong in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Nothing,
    /// Nobody waits until the unit, or the sidecore, has forgotten what changed.
    DoesNotWait,
    /// Nobody waits until the sidecore's turn is over.
    DoesNotSettle,
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

    /// A message by this entry; gives its number.
    fn fly(&mut self, entry: Entry) -> usize {
        let number = self.sent;
        self.sent += 1;
        self.flying.push(Flying { number, entry, late: false });
        number
    }
}

/// The machine: two vCPUs that share a core, one that doesn't, and their routes.
pub(super) struct World {
    hardware: SpinMutex<Hardware>,
    pub(super) core: Arc<CoreRoutes>,
    /// Those of A, B and C.
    pub(super) routes: [VcpuRoutes<Arc<CoreRoutes>>; 3],
    wrong: Wrong,
    /// What sends by the first source, if that is a paravirtual function's.
    sidecore: Option<Sidecore>,
}

/// A sidecore, and its word for the first source. The word has the APIC id in bits 7:0 of the
/// destination, and whom it was written for in the rest.
struct Sidecore {
    entry: calls::Entry,
    turn: Turn,
    /// Held in a turn: to wait for it without going round in circles, as loom's threads would if
    /// there were two that wait. (`calls::model` does without.)
    calling: SpinMutex<()>,
}

impl Sidecore {
    fn new() -> Self {
        let entry = calls::Entry::new();
        assert!(!entry.unmask());
        Sidecore { entry, turn: Turn::new(), calling: Default::default() }
    }

    fn route(&self, Entry { destination, physical, meant: (vcpu, guest) }: Entry) {
        let destination = destination | (vcpu as u32) << 8 | u32::from(guest) << 16;
        self.entry.route(Some(Target { destination, vector: physical }));
    }
}

pub(super) fn device(entry: u16) -> Bdf {
    Bdf::from_requester_id(8 + entry)
}

/// The hardware as one core drives it.
pub(super) struct Driver<'a> {
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
        let written = Entry { destination: route.destination, physical, meant };
        *slot = Some(written);
        if let Some(sidecore) = self.world.sidecore_of(entry) {
            sidecore.route(written);
        }
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
        if let Some(sidecore) = self.world.sidecore_of(entry) {
            sidecore.entry.route(None);
        }
        self.drain_all()
    }

    fn drain(&self, _: Bdf) -> bool {
        self.drain_all()
    }

    fn drain_all(&self) -> bool {
        if self.world.wrong == Wrong::DoesNotWait {
            return true;
        }
        let mut settled = true;
        if self.world.wrong != Wrong::DoesNotSettle
            && let Some(sidecore) = &self.world.sidecore
        {
            settled = sidecore.turn.settle(|| {
                drop(sidecore.calling.lock());
                true
            });
        }
        self.world.hardware.lock().drain();
        settled
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
    pub(super) fn new(aliases: u8, sender: Sender, wrong: Wrong) -> Self {
        let mut host = VectorSet::of(&[0xFF]);
        (0xF0 + 2 * aliases..0xFF).for_each(|vector| host.insert(vector));
        let core = Arc::new(CoreRoutes::new(SHARED, host, 2));
        core.reserve(4);
        let shared = |slot| VcpuRoutes::shared(core.clone(), slot);
        let routes = [shared(A), shared(B), VcpuRoutes::dedicated(OWN, VectorSet::of(&[0xF1]))];
        let sidecore = (sender == Sender::Sidecore).then(Sidecore::new);
        World { hardware: Default::default(), core, routes, wrong, sidecore }
    }

    fn sidecore_of(&self, entry: u16) -> Option<&Sidecore> {
        self.sidecore.as_ref().filter(|_| entry == SOURCES[0])
    }

    /// As it begins.
    pub(super) fn begin(&self, first: Meant) {
        for (entry, meant) in SOURCES.into_iter().zip([first, (B, 0x41)]) {
            let bound = self.rebind(entry, None, meant);
            assert!(bound.is_some());
        }
        assert!(self.core.retarget_to_guest(&self.driver(None, 0), A, || ()));
        let mut hardware = self.hardware.lock();
        hardware.known = hardware.table;
    }

    pub(super) fn driver(&self, meant: Option<Meant>, kept: u32) -> Driver<'_> {
        Driver { world: self, meant, kept: Cell::new(kept) }
    }

    /// A source is bound elsewhere.
    pub(super) fn rebind(&self, entry: u16, from: Option<(usize, u8)>, to: Meant) -> Option<u8> {
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

    /// A device signals, or a sidecore calls.
    pub(super) fn send(&self, entry: u16) -> Option<usize> {
        if let Some(sidecore) = self.sidecore_of(entry) {
            let mut number = None;
            let mut caller = sidecore.turn.caller().expect("one sidecore");
            let _calling = sidecore.calling.lock();
            caller.call(&sidecore.entry, |Target { destination: word, vector }| {
                let meant = ((word >> 8) as usize & 0xFF, (word >> 16) as u8);
                let entry = Entry { destination: word & 0xFF, physical: vector, meant };
                number = Some(self.hardware.lock().fly(entry));
            });
            return number;
        }
        let mut hardware = self.hardware.lock();
        let at = usize::from(entry);
        let entry = hardware.known[at].or(hardware.table[at])?;
        hardware.known[at] = Some(entry);
        Some(hardware.fly(entry))
    }

    /// Whom the first message on its way was sent for.
    pub(super) fn flying(&self) -> Meant {
        self.hardware.lock().flying[0].entry.meant
    }

    /// How many were sent.
    pub(super) fn sent(&self) -> usize {
        self.hardware.lock().sent
    }

    /// Its message arrives.
    pub(super) fn arrive(&self, number: usize) {
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
    pub(super) fn hand_over(&self) -> usize {
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
    pub(super) fn serve(&self, slot: usize, owns: bool) -> usize {
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
    pub(super) fn serve_own(&self) -> usize {
        let taken = self.take(OWN);
        for Entry { physical, meant, .. } in &taken {
            let given = self.routes[C].guest_vector(*physical).map(|guest| (C, guest));
            assert_eq!(given, Some(*meant), "{physical:#x}, sent for {meant:x?}, is another's");
        }
        taken.len()
    }

    /// A leaves the shared core, and B comes; gives how many interrupts were taken meanwhile, and
    /// whether B owns its vectors.
    pub(super) fn switch(&self) -> (usize, bool) {
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
