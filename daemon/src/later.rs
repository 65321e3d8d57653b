//! What back ends end later: who is told, and rings that stop only when nothing is under way.
//!
//! Guarantees: a ring that was stopped has nothing in its back end, so its memory may go; unless
//! the back end didn't end it within [`PATIENCE`]: then the ring says so, its memory is kept for
//! good, and its disk takes no new front end until all of it has ended. What ends of a ring that is
//! gone touches no other.

use crate::clock::HERTZ;
use crate::device::Kind;
use crate::disk::Disk;
use crate::ring::{Ring, Work};
use crate::rings::{Rings, Served};
use crate::storage::{Store, Timed, is_own};
use blk::Backend as _;

/// How long a ring that stops waits for its back end.
pub const PATIENCE: u64 = 10 * HERTZ;
/// Turns after which back ends are asked what has ended, if turns go on.
pub const TURNS: u32 = 16;

/// A ring that is to have nothing under way.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    /// What was outstanding, and when that last changed.
    last: u64,
    since: u64,
    /// It can't be served any more.
    is_broken: bool,
}

impl Draining {
    const NEW: Draining = Draining { last: u64::MAX, since: 0, is_broken: false };
}

/// What is under way of such a ring.
pub(super) enum Left {
    Nothing,
    /// With what was asked for just now.
    Some {
        has_begun: bool,
    },
    /// It ended nothing for too long.
    Hung,
}

impl Served {
    fn disk(&mut self, device: usize) -> Option<&mut Disk> {
        match &mut self.devices.get_mut(device)?.kind {
            Kind::Disk(disk) => Some(disk),
            Kind::Port(_) => None,
        }
    }

    /// A disk was asked for something: it is heard if that wasn't done at once.
    pub fn asked_of(&mut self, device: usize) {
        let Served { devices, asked, .. } = self;
        if let Some(Kind::Disk(disk)) = devices.get_mut(device).map(|device| &mut device.kind) {
            disk.hear(device, asked);
        }
    }
}

impl Rings {
    /// Has back ends begin what they were asked for, and takes what has ended: how many requests
    /// were answered.
    pub fn collect(&mut self) -> u32 {
        let (mut answered, mut at) = (0, 0);
        while let Some(device) = self.served.asked.get(at).copied() {
            answered += self.collect_of(device);
            match self.served.disk(device) {
                Some(disk) if disk.store.outstanding() > 0 => at += 1,
                disk => {
                    disk.into_iter().for_each(|disk| disk.is_asked = false);
                    self.served.asked.swap_remove(at);
                    // With nothing under way nothing that ends tells of room.
                    self.go_on(device);
                }
            }
        }
        answered
    }

    /// After how long back ends are to be asked what has ended that don't tell.
    pub(super) fn look_after(&self) -> Option<u64> {
        let Served { asked, devices, .. } = &self.served;
        let asked = asked.iter().filter_map(|device| match &devices.get(*device)?.kind {
            Kind::Disk(disk) => disk.store.look_after(),
            Kind::Port(_) => None,
        });
        asked.min()
    }

    /// The same, of one disk.
    pub fn collect_of(&mut self, device: usize) -> u32 {
        let Rings { clock, served, .. } = self;
        let Served { all, devices, ended, .. } = served;
        let Some(Kind::Disk(disk)) = devices.get_mut(device).map(|device| &mut device.kind) else {
            return 0;
        };
        disk.store.push();
        let (mut answered, mut now) = (0, None);
        while let Some(completion) = disk.store.poll() {
            // Asked for once there is something: a look that finds nothing is cheap.
            let now = *now.get_or_insert_with(|| clock.now());
            let place = usize::from(completion.token.server);
            let ring = all.get_mut(place).filter(|ring| ring.device == device && !ring.is_hung);
            let token = completion.token;
            let ring = ring.map(|ring| {
                let Ring { work, ended, counts, begun, .. } = ring;
                (work, ended, counts, begun)
            });
            match ring {
                Some((Work::Requests(server), count, counts, begun)) => {
                    if server.finish(completion) {
                        if *count == 0 {
                            ended.push(place);
                        }
                        *count += 1;
                        counts.latencies.note(begun.took(token, now));
                        answered += 1;
                    }
                }
                _ if is_own(token) => {}
                _ => {
                    disk.abandoned = disk.abandoned.saturating_sub(1);
                    if disk.abandoned == 0 {
                        self.recovered.push(device);
                    }
                }
            }
        }
        if now.is_some() {
            self.go_on(device);
        }
        let now = self.served.now;
        while let Some(place) = self.served.ended.pop() {
            let Some(ring) = self.served.all.get_mut(place) else { continue };
            let completed = std::mem::take(&mut ring.ended);
            let is_running = ring.running;
            self.publish_ended(place, completed, now);
            // Who gets an answer asks for more, mostly.
            if is_running && !self.schedule.is_polled(place) {
                let Served { all, switches, .. } = &mut self.served;
                all[place].set_kicks(switches, false);
                self.schedule.poll(place, device, now);
            }
        }
        answered
    }

    /// A ring's back end has no room: it isn't looked at until something has ended there.
    pub(super) fn await_room(&mut self, place: usize) {
        let device = self.served.all.get(place).map(|ring| ring.device);
        let Some(disk) = device.and_then(|device| self.served.disk(device)) else { return };
        if disk.store.outstanding() > 0 {
            // It may have been looked at since it began to wait.
            if !disk.awaited_by.contains(&place) {
                disk.awaited_by.push(place);
            }
            self.schedule.leave(place);
        }
    }

    /// Something has ended in a back end: rings that waited for room are looked at again.
    fn go_on(&mut self, device: usize) {
        let now = self.served.now;
        while let Some(place) = self.served.disk(device).and_then(|disk| disk.awaited_by.pop()) {
            let Served { all, switches, .. } = &mut self.served;
            let ring = all.get_mut(place).filter(|ring| ring.running && ring.device == device);
            if let Some(ring) = ring.filter(|_| !self.schedule.is_polled(place)) {
                ring.set_kicks(switches, false);
                self.schedule.poll(place, device, now);
            }
        }
    }

    /// Is a disk's data kept so?
    pub fn keeps(&self, so: impl Fn(&Store) -> bool) -> bool {
        let mut devices = self.served.devices.iter();
        devices.any(|(_, device)| match &device.kind {
            Kind::Disk(disk) => so(&disk.store),
            Kind::Port(_) => false,
        })
    }

    /// Disks whose back end has ended at last what was given up.
    pub fn take_recovered(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.recovered)
    }

    /// What is under way of this ring isn't waited for any more.
    pub(super) fn abandon(&mut self, place: usize) {
        let Served { all, devices, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place) else { return };
        ring.is_hung = true;
        let device = ring.device;
        if let Work::Requests(server) = &ring.work
            && let Some(Kind::Disk(disk)) = devices.get_mut(device).map(|one| &mut one.kind)
        {
            disk.abandoned += server.outstanding();
            disk.store.abandon(place as u16);
            // What that ended nobody tells of.
            self.collect_of(device);
        }
    }

    /// Waits until nothing of this ring, which has no turns any more, is under way. Others go on
    /// meanwhile. False: it takes too long.
    pub(super) fn drain(&mut self, place: usize) -> bool {
        loop {
            let has_begun = match self.drain_once(place) {
                Left::Nothing => return true,
                Left::Hung => return false,
                Left::Some { has_begun } => has_begun,
            };
            if self.collect() == 0 && !has_begun {
                self.serve();
                let device = self.served.all.get(place).map(|ring| ring.device);
                if let Some(disk) = device.and_then(|device| self.served.disk(device)) {
                    disk.store.wait();
                }
            }
        }
    }

    /// Asks for what is left of the requests that this ring, which has no turns any more, began.
    pub(super) fn drain_once(&mut self, place: usize) -> Left {
        let now = self.look_at_clock();
        let Served { all, devices, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place) else { return Left::Nothing };
        let (device, Work::Requests(server)) = (ring.device, &mut ring.work) else {
            return Left::Nothing;
        };
        let draining = ring.draining.get_or_insert(Draining::NEW);
        let has_more = !draining.is_broken && (server.is_open() || server.left() > 0);
        let disk = devices.get_mut(device).map(|device| &mut device.kind);
        let (true, Some(Kind::Disk(disk))) = (server.outstanding() > 0 || has_more, disk) else {
            ring.draining = None;
            return Left::Nothing;
        };
        let mut has_begun = false;
        if has_more {
            let mut store = Timed { store: &mut disk.store, begun: &mut ring.begun, since: now };
            match ring.window.as_ref().map(|window| server.serve(window, &mut store)) {
                Some(Ok(outcome)) => has_begun = outcome.charge > 0,
                _ => draining.is_broken = true,
            }
        }
        // As long as something ends, it isn't hung.
        if server.outstanding() != draining.last || has_begun {
            (draining.last, draining.since) = (server.outstanding(), now);
        }
        if now.saturating_sub(draining.since) > PATIENCE {
            return Left::Hung;
        }
        self.served.asked_of(device);
        Left::Some { has_begun }
    }

    /// Holds these rings, as far as they run, if anything of them is under way: they take nothing
    /// from now on.
    pub fn hold_if_busy(&mut self, places: &[usize]) -> bool {
        let all = &self.served.all;
        let running = places.iter().filter(|place| all.get(**place).is_some_and(|one| one.running));
        let running: Vec<usize> = running.copied().collect();
        let is_busy = |ring: &Ring| match &ring.work {
            Work::Requests(server) => {
                server.outstanding() > 0 || server.is_open() || server.left() > 0
            }
            Work::Frames(_) => false,
        };
        if !running.iter().any(|place| all.get(*place).is_some_and(is_busy)) {
            return false;
        }
        for place in running {
            self.schedule.leave(place);
            if let Some(ring) = self.served.all.get_mut(place) {
                (ring.running, ring.is_settled) = (false, true);
            }
        }
        true
    }

    /// Is nothing of these rings under way, which are held; or did it take too long?
    pub fn are_quiet(&mut self, places: &[usize]) -> bool {
        let mut all = true;
        for place in places {
            let is_held = self.served.all.get(*place).is_some_and(|ring| ring.is_settled);
            if is_held && let Left::Some { has_begun } = self.drain_once(*place) {
                self.has_begun |= has_begun;
                all = false;
            }
        }
        all
    }

    /// Rings that went on aren't asked to end any more.
    pub fn forget_draining(&mut self, places: &[usize]) {
        for place in places {
            if let Some(ring) = self.served.all.get_mut(*place) {
                ring.draining = None;
            }
        }
    }
}
