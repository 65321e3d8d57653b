//! A machine around [`CoreVectors`]: devices, remapping entries with the IOMMU's cache of them,
//! interrupts that take their time, the requests (IRR) of a local APIC, and a host that switches
//! vCPUs by the protocol. Every interrupt sent is followed to the guest that gets it.
//!
//! As hostile as hardware may be: until an entry's invalidation has been waited for, the device may
//! send by any value that the entry had; what is sent arrives whenever it likes, also after that
//! wait, which only says that it has left the IOMMU, but before the grace period that follows is
//! over; interrupts of one physical vector that nobody took yet are one.

#[path = "core_vectors_any_order.rs"]
mod any_order;

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const HOST: VectorSet = VectorSet::of(&[0xF1, 0xF2, 0xF3, 0xFE, 0xFF]);
/// Vectors that collide with other guests', with the host's and with aliases; more than a quota.
const VECTORS: [u8; 8] = [0x20, 0x41, 0xEF, 0xF0, 0xF1, 0xF4, 0xF9, 0xFF];

/// Miri is slow.
const STEPS: usize = if cfg!(miri) { 30 } else { 250 };

/// A step of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The one that goes has its entries aliased.
    Alias,
    /// They are invalidated, and that is waited for.
    Wait,
    /// All that the local APIC holds is handed over.
    Drain,
    /// The grace period is over: what had left the IOMMU has reached the local APIC.
    Grace,
    /// All that the local APIC holds is handed over once more.
    Again,
    /// The one that went has left, and the next one owns the vectors.
    Enter,
    /// The next one's entries are changed to its own vectors.
    Own,
}

const PROTOCOL: [Step; 7] =
    [Step::Alias, Step::Wait, Step::Drain, Step::Grace, Step::Again, Step::Enter, Step::Own];

/// The vCPU and vector that an interrupt was sent for.
type Meant = (usize, u8);

#[derive(Debug)]
struct Source {
    slot: usize,
    /// The guest's vector it wants now.
    wants: Option<u8>,
    /// Its entry.
    entry: Option<u8>,
    /// What the IOMMU may take the entry for: physical vector, and what that was written for.
    cached: Vec<(u8, u8)>,
}

/// An interrupt on its way.
#[derive(Debug)]
struct Flying {
    source: usize,
    physical: u8,
    meant: Meant,
    /// It had left the IOMMU when its entry's invalidation was waited for.
    late: bool,
}

struct World {
    vectors: CoreVectors,
    sources: Vec<Source>,
    flying: Vec<Flying>,
    requested: BTreeMap<u8, BTreeSet<Meant>>,
    next: usize,
    /// Steps of the switch that goes on.
    steps: Vec<Step>,
    /// The step of the protocol that is left out.
    omitted: Option<Step>,
    quota: usize,
    /// For each slot, what it claimed since all that was released before is settled.
    recent: Vec<BTreeSet<u8>>,
    /// That was more than its quota once: vectors that share an alias go on doing so.
    crowded: Vec<bool>,
    /// The interrupts that were sent and not delivered yet.
    owed: Vec<Meant>,
    delivered: usize,
}

impl World {
    fn new(slots: usize, sources: usize) -> Self {
        let source =
            |index| Source { slot: index % slots, wants: None, entry: None, cached: vec![] };
        World {
            vectors: CoreVectors::new(HOST, slots),
            sources: (0..sources).map(source).collect(),
            flying: vec![],
            requested: BTreeMap::new(),
            next: 0,
            steps: vec![],
            omitted: None,
            quota: 11 / slots,
            recent: vec![BTreeSet::new(); slots],
            crowded: vec![false; slots],
            owed: vec![],
            delivered: 0,
        }
    }

    /// Rule 4: the guest gives a source another vector, or none.
    fn rebind(&mut self, source: usize, vector: Option<u8>) {
        let Source { slot, wants: old, .. } = self.sources[source];
        let claimed = vector.filter(|v| self.vectors.claim(slot, *v).is_some());
        self.recent[slot].extend(claimed);
        self.crowded[slot] |= self.recent[slot].len() > self.quota;
        self.sources[source].wants = claimed;
        self.write_entry(source);
        if let Some(old) = old {
            self.vectors.release(slot, old);
        }
    }

    fn write_entry(&mut self, source: usize) {
        let Source { slot, wants, .. } = self.sources[source];
        let entry = wants.and_then(|v| Some((self.vectors.physical(slot, v)?, v)));
        self.sources[source].entry = entry.map(|e| e.0);
        self.sources[source].cached.extend(entry);
    }

    /// The device signals; the IOMMU may still know an earlier entry.
    fn send(&mut self, source: usize, which: usize) {
        let Source { slot, ref cached, .. } = self.sources[source];
        if let Some(&(physical, guest)) = cached.get(which % cached.len().max(1)) {
            assert!(!self.vectors.host.contains(physical), "{physical:#x} is the host's");
            self.flying.push(Flying { source, physical, meant: (slot, guest), late: false });
            self.owed.push((slot, guest));
        }
    }

    fn arrive(&mut self, which: usize) {
        if !self.flying.is_empty() {
            let f = self.flying.swap_remove(which % self.flying.len());
            self.requested.entry(f.physical).or_default().insert(f.meant);
        }
    }

    /// A request is served: by the owner's guest by its own vector, or by the host.
    fn serve(&mut self, which: usize) -> Result<(), String> {
        let mut open = self.requested.keys().copied();
        let Some(physical) = open.nth(which % self.requested.len().max(1)) else { return Ok(()) };
        let meant = self.requested.remove(&physical).unwrap_or_default();
        let Arrived::Of { slot, vectors } = self.vectors.arrived(physical) else {
            return Err(format!("{physical:#x} is nobody's, sent for {meant:x?}"));
        };
        let given: BTreeSet<Meant> = vectors.iter().map(|vector| (slot, vector)).collect();
        if !given.is_superset(&meant) {
            return Err(format!("{physical:#x}, sent for {meant:x?}, is given to {given:x?}"));
        }
        if !self.crowded[slot] && given != meant {
            return Err(format!("{physical:#x}, sent for {meant:x?}, is also given to {given:x?}"));
        }
        self.owed
            .retain(|owed| !meant.contains(owed) || self.flying.iter().any(|f| f.meant == *owed));
        self.delivered += meant.len();
        Ok(())
    }

    fn switch(&mut self, next: usize) {
        if self.steps.is_empty() {
            self.next = next % self.recent.len();
            self.steps = PROTOCOL.into_iter().rev().collect();
        }
    }

    /// The switch goes on by a step.
    fn step(&mut self) -> Result<(), String> {
        let Some(step) = self.steps.pop() else { return Ok(()) };
        let owner = self.vectors.owner();
        let of = |slot: Option<usize>| move |s: &Source| Some(s.slot) == slot;
        if step == Step::Alias {
            self.vectors.leave();
        }
        if self.omitted == Some(step) && step != Step::Enter {
            return Ok(());
        }
        // One that comes back before another had its own vectors needn't wait.
        let returns = owner == Some(self.next);
        if returns && matches!(step, Step::Grace | Step::Again) {
            return Ok(());
        }
        match step {
            Step::Alias => {
                for source in 0..self.sources.len() {
                    if of(owner)(&self.sources[source]) {
                        self.write_entry(source);
                    }
                }
            }
            Step::Wait => {
                for source in self.sources.iter_mut().filter(|s| of(owner)(s)) {
                    let last = source.cached.pop().filter(|_| source.entry.is_some());
                    source.cached = last.into_iter().collect();
                }
                for f in self.flying.iter_mut().filter(|f| of(owner)(&self.sources[f.source])) {
                    f.late = true;
                }
            }
            Step::Grace => {
                for f in std::mem::take(&mut self.flying) {
                    if f.late {
                        self.requested.entry(f.physical).or_default().insert(f.meant);
                    } else {
                        self.flying.push(f);
                    }
                }
            }
            Step::Drain | Step::Again => {
                while !self.requested.is_empty() {
                    self.serve(0)?;
                }
            }
            Step::Enter => {
                let quiet = self.vectors.leaving == Some(self.vectors.releases);
                if !returns {
                    self.vectors.left();
                }
                if let Some(slot) = owner.filter(|_| quiet && !returns) {
                    let of_it = self.sources.iter().filter(|s| s.slot == slot);
                    self.recent[slot] = of_it.filter_map(|s| s.wants).collect();
                }
                self.vectors.enter(self.next);
            }
            Step::Own => {
                for source in 0..self.sources.len() {
                    if self.sources[source].slot == self.next {
                        self.write_entry(source);
                    }
                }
            }
        }
        Ok(())
    }

    /// The look from outside: the entries hold what is understood for their sources.
    fn look(&self) -> Result<(), String> {
        let wrong = |s: &&Source| match (s.entry, s.wants) {
            (Some(physical), Some(guest)) => !self.vectors.is_for(physical, s.slot, guest),
            (entry, wants) => entry.is_some() || wants.is_some(),
        };
        match self.sources.iter().find(wrong) {
            None => Ok(()),
            Some(s) => Err(format!("{:x?} of {} wants {:x?}", s.entry, s.slot, s.wants)),
        }
    }

    /// Everything on its way arrives and is served.
    fn serve_all(&mut self) -> Result<(), String> {
        while !self.steps.is_empty() {
            self.step()?;
        }
        while !self.flying.is_empty() {
            self.arrive(0);
            self.serve(0)?;
        }
        while !self.requested.is_empty() {
            self.serve(0)?;
        }
        match self.owed.is_empty() {
            true => Ok(()),
            false => Err(format!("lost: {:x?}", self.owed)),
        }
    }
}

/// Two guests with the same vector; the first one's device signals as it is switched out.
fn signal_at_a_switch(omitted: Option<Step>, arrived: bool) -> Result<usize, String> {
    let mut world = World::new(2, 2);
    world.rebind(0, Some(0x41));
    world.rebind(1, Some(0x41));
    world.switch(0);
    world.serve_all()?;
    world.omitted = omitted;
    world.send(0, usize::MAX);
    if arrived {
        world.arrive(0);
    }
    world.switch(1);
    world.serve_all()?;
    // The device goes on, by what the IOMMU has of its entry.
    let known = world.sources[0].cached.len();
    (0..known).for_each(|which| world.send(0, which));
    world.serve_all()?;
    Ok(world.delivered)
}

#[test]
fn what_is_sent_at_a_switch_gets_to_its_guest() {
    assert_eq!(signal_at_a_switch(None, true), Ok(2));
    assert_eq!(signal_at_a_switch(None, false), Ok(2));
}

/// The model finds what the protocol is for.
#[test]
fn each_step_of_the_switch_is_needed() {
    let given_away = |omitted, arrived| {
        let error = signal_at_a_switch(Some(omitted), arrived).unwrap_err();
        let said = "0x41, sent for {(0, 41)}, is given to {(1, 41)}";
        assert_eq!(error, said, "without {omitted:?}");
    };
    given_away(Step::Alias, false);
    given_away(Step::Wait, false);
    given_away(Step::Grace, false);
    given_away(Step::Again, false);
    // The first time that the local APIC is emptied only saves the next one an exit.
    assert_eq!(signal_at_a_switch(Some(Step::Drain), true), Ok(2));
}

/// What arrives late, in the next one's time, is still its sender's.
#[test]
fn a_late_message_is_understood_in_the_next_ones_time() {
    let mut world = World::new(2, 2);
    world.rebind(0, Some(0x41));
    world.rebind(1, Some(0x41));
    world.switch(0);
    world.serve_all().unwrap();
    world.send(0, usize::MAX);
    world.switch(1);
    for step in [Step::Alias, Step::Wait, Step::Drain] {
        assert_eq!(world.steps.last(), Some(&step));
        world.step().unwrap();
    }
    world.send(1, usize::MAX);
    world.arrive(0);
    world.serve(0).unwrap();
    world.serve_all().unwrap();
    assert_eq!(world.delivered, 2);
}

/// Nor is the look from outside blind: it sees that the entries of who left still hold its own
/// vectors, as soon as they mean another, and before anything is sent.
#[test]
fn who_looks_from_outside_sees_what_wasnt_aliased() {
    for (omitted, seen) in [(None, false), (Some(Step::Alias), true)] {
        let mut world = World::new(2, 2);
        world.rebind(0, Some(0x41));
        world.switch(0);
        world.serve_all().unwrap();
        world.omitted = omitted;
        world.switch(1);
        let mut found = Ok(());
        while !world.steps.is_empty() {
            world.step().unwrap();
            found = found.and(world.look());
        }
        assert_eq!(found.is_err(), seen, "without {omitted:?}");
    }
}

/// Without the last step nothing is lost, but every interrupt of its costs an exit.
#[test]
fn the_last_step_is_what_makes_it_exitless() {
    for (omitted, own) in [(Some(Step::Own), false), (None, true)] {
        let mut world = World::new(2, 2);
        world.rebind(1, Some(0x41));
        world.omitted = omitted;
        world.switch(1);
        world.serve_all().unwrap();
        assert_eq!(world.sources[1].entry == Some(0x41), own);
    }
}
