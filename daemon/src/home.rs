//! The process's loop: serve what there is, then hear what was said, then sleep if there is
//! nothing.
//!
//! Guarantees: no socket is waited for, and each is read by a bounded number of messages between
//! two rounds of turns. What one front end does wrong ends its connection, in one sentence in the
//! log; the rings of others go on. At the end all rings are stopped, and the sockets' files that
//! were made here are removed.

mod doors;

use crate::build::{Entry, Named};
use crate::clients::{self, Clients};
use crate::clock::{Clock, HERTZ};
use crate::connection::{Connection, Gone, Hands};
use crate::control::Request;
use crate::device::{Device, Ended, Kind};
use crate::door::Door;
use crate::event::{Told, take_waited};
use crate::pace::take_owed;
use crate::pending::{Origin, Pending};
use crate::rings::Rings;
use crate::sandbox::Folders;
use crate::signals::{Signal, Signals};
use crate::supervisor::Handed;
use crate::unserved::Missing;
use crate::waits::{Source, Waits};
use anyhow::{Error, Result};
use slab::Slab;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// Front ends at a time, of all devices.
const MAX_CONNECTIONS: usize = 512;

/// Rings that are to stop are looked at so often, if nothing else tells: 10 ms.
const STOPPING: u64 = HERTZ / 100;

/// A device as it was asked for, and its place.
pub struct Known {
    pub entry: Entry,
    pub place: usize,
}

/// All that is served.
pub struct Home {
    pub rings: Rings,
    pub known: Vec<Known>,
    /// What isn't served, and is to be.
    pub missing: Missing,
    pub switches: Vec<Named>,
    pub clients: Clients,
    /// Where all of it is said, if it is a file.
    pub file: Option<PathBuf>,
    /// Sockets that systemd listens at.
    pub handed: Handed,
    pub(crate) connections: Slab<Connection>,
    /// By the devices' places.
    pub(crate) doors: Vec<Option<Door>>,
    pub waits: Waits,
    signals: Signals,
    /// Changes that take a while.
    pub pending: Pending,
    is_over: bool,
    /// What may be used later, if the rest was given up; and the folder that paths begin in.
    pub sandbox: Option<Folders>,
    pub folder: PathBuf,
    /// Another program serves all of it from now on.
    pub is_given: bool,
}

impl Home {
    pub fn new() -> Result<Home> {
        let waits = Waits::new()?;
        let signals = Signals::new()?;
        waits.add(&signals, Source::Signal)?;
        Ok(Home {
            rings: Rings::new(Clock::system()),
            known: Vec::new(),
            missing: Missing::default(),
            switches: Vec::new(),
            clients: Clients::default(),
            file: None,
            handed: Handed::take(),
            connections: Slab::new(),
            doors: Vec::new(),
            waits,
            signals,
            pending: Pending::default(),
            is_over: false,
            sandbox: None,
            folder: std::env::current_dir().unwrap_or_default(),
            is_given: false,
        })
    }

    /// A device more: its place.
    pub fn add_device(&mut self, device: Device, door: Door) -> Result<usize> {
        let place = self.rings.add_device(device);
        if let Some(Device { kind: Kind::Disk(disk), .. }) = self.rings.served.devices.get(place)
            && let Some(ended) = disk.store.ended()
        {
            self.waits.add(ended, Source::Storage(place))?;
        }
        self.doors.resize_with(self.doors.len().max(place + 1), || None);
        self.doors[place] = Some(door);
        self.watch(place)?;
        Ok(place)
    }

    /// A device less: its connections end. Its socket, if that is systemd's.
    pub fn remove_device(&mut self, device: usize) -> Option<UnixListener> {
        let (_, door) = self.take_device(device, "the device was removed")?;
        door.close();
        door.into_handed()
    }

    /// The same, for this reason, with its door, which stays as it is.
    pub fn take_device(&mut self, device: usize, why: &'static str) -> Option<(Device, Door)> {
        let own = self.connections.iter().filter(|(_, one)| one.device == device);
        let own: Vec<_> = own.map(|(place, _)| place).collect();
        let door = self.doors.get_mut(device).and_then(Option::take)?;
        door.listener().into_iter().for_each(|listener| self.waits.remove(listener));
        own.into_iter().for_each(|place| self.end_now(place, Gone(Some(Error::msg(why)))));
        if let Some(Device { kind: Kind::Disk(disk), .. }) = self.rings.served.devices.get(device) {
            disk.store.ended().into_iter().for_each(|ended| self.waits.remove(ended));
        }
        Some((self.rings.remove_device(device)?, door))
    }

    /// Serves until a signal ends it.
    pub fn run(&mut self) -> Result<()> {
        while !self.is_over && !self.is_given {
            self.rings.serve();
            self.end_wrong();
            self.go_on();
            self.let_in_again();
            self.try_doors();
            self.wait()?;
        }
        self.end_changing();
        if !self.is_given {
            self.close();
        }
        Ok(())
    }

    /// Stops all rings, and removes the sockets' files that were made here.
    pub fn close(&mut self) {
        let places: Vec<_> = self.connections.iter().map(|(place, _)| place).collect();
        let why = || Error::msg("the daemon ends");
        places.into_iter().for_each(|place| self.end_now(place, Gone(Some(why()))));
        for (_, device) in &mut self.rings.served.devices {
            // The one that comes after knows nothing of what this one answered.
            if let Kind::Disk(disk) = &mut device.kind
                && let Err(error) = disk.store.settle_at_end()
            {
                eprintln!("exitless-io: {}: {error:#}", device.name);
            }
        }
        self.doors.iter().flatten().for_each(Door::close);
        self.clients.close();
        self.rings.controllers.shut_down();
    }

    /// Sleeps until there is something, if there is nothing; and hears what was said.
    fn wait(&mut self) -> Result<()> {
        let (now, mut next) = self.rings.next_at();
        for (device, door) in self.doors.iter().enumerate() {
            if let Some(at) =
                door.as_ref().and_then(Door::again_at).filter(|_| self.has_room(device))
            {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if self.is_waiting() {
            let pause = if self.rings.take_begun() { 0 } else { STOPPING };
            crate::rings::keep(&mut next, Some(now + pause));
        }
        self.clients.try_again(now, &self.waits);
        crate::rings::keep(&mut next, self.clients.again_at);
        if self.missing.again_at().is_some_and(|at| at <= now) {
            self.try_missing();
        }
        crate::rings::keep(&mut next, self.missing.again_at());
        let limit = next.map(|next| next.saturating_sub(now));
        let came = self.waits.wait(limit)?;
        if limit != Some(0) {
            self.rings.slept(now);
        }
        came.into_iter().for_each(|source| self.attend(source));
        Ok(())
    }

    fn attend(&mut self, source: Source) {
        match source {
            _ if self.is_given => {}
            Source::Kick(place) => self.rings.kicked(place),
            Source::Socket(place) => self.hear(place),
            Source::Door(device) => self.let_in(device),
            Source::Signal => drop(self.is_to_end()),
            Source::Control => self.come(false),
            Source::Metrics => self.come(true),
            Source::Client(place) => clients::attend(self, place),
            Source::Uplink(place) => self.look_out(place),
            Source::Opener => self.opened(),
            Source::Storage(device) => {
                self.rings.look_at_clock();
                self.rings.collect_of(device);
            }
        }
    }

    /// Does what signals that came ask for. Has one said that this is the end?
    pub(crate) fn is_to_end(&mut self) -> bool {
        for signal in self.signals.take() {
            match signal {
                Signal::End => self.is_over = true,
                Signal::Reload => self.change(Origin::Signal, Request::Reload),
            }
        }
        self.is_over
    }

    /// Somebody comes to look or to change something.
    fn come(&mut self, metrics: bool) {
        let now = self.rings.look_at_clock();
        self.clients.let_in(metrics, now, &self.waits);
    }

    fn hear(&mut self, place: usize) {
        let Home { rings, connections, waits, .. } = self;
        let Some(connection) = connections.get_mut(place) else { return };
        match connection.hear(&mut Hands { rings, waits }) {
            Ok(true) => {}
            Ok(false) => self.end(place, None),
            Err(error) => {
                let device = connection.device;
                self.keep_out(device, 0);
                self.end(place, Some(error));
            }
        }
    }

    /// A device takes no front end for this long, or for longer if more was lost by it.
    fn keep_out(&mut self, device: usize, least: u64) {
        let time = take_owed().max(least);
        let until = self.rings.look_at_clock().saturating_add(time);
        if let Some(Some(door)) = self.doors.get_mut(device).filter(|_| time > 0) {
            door.pause(until);
        }
    }

    /// Connections whose rings are broken or whose memory is gone.
    fn end_wrong(&mut self) {
        for (place, error) in self.rings.take_wrong() {
            self.end(place, Some(error));
        }
        if take_waited() {
            let wrong = |(place, one): (usize, &Connection)| {
                Some((place, one.device, one.wrong_call(&self.rings)?))
            };
            let wrong: Vec<_> = self.connections.iter().filter_map(wrong).collect();
            for (place, device, told) in wrong {
                self.keep_out(device, HERTZ);
                let error = match told {
                    Told::Slowly => "so many wait for its eventfd for calls that a call takes long",
                    _ => "its eventfd for calls is full and made the daemon wait",
                };
                self.end(place, Some(Error::msg(error)));
            }
        }
        if daemon_os::take_shrunk() {
            while let Some(place) = self.shrunk() {
                let error = Error::msg("the guest's memory became shorter while it was in use");
                self.end(place, Some(error));
            }
        }
    }

    fn shrunk(&self) -> Option<usize> {
        let shrunk = |(_, one): &(usize, &Connection)| one.has_shrunk() && !one.is_ending();
        self.connections.iter().find(shrunk).map(|(place, _)| place)
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        let waiting = self.connections.iter().filter(|(_, one)| one.is_waiting());
        waiting.map(|(place, _)| place)
    }

    /// Does something wait for rings that are to stop?
    pub fn is_waiting(&self) -> bool {
        self.waiting().next().is_some()
    }

    /// Goes on with connections whose rings have stopped by now.
    fn go_on(&mut self) {
        let waiting: Vec<usize> = self.waiting().collect();
        for place in waiting {
            let Home { rings, connections, waits, .. } = self;
            let Some(connection) = connections.get_mut(place) else { continue };
            match connection.go_on(&mut Hands { rings, waits }) {
                Ok(None) => {}
                Ok(Some(gone)) => self.end_now(place, gone),
                Err(error) => self.end(place, Some(error)),
            }
        }
    }

    /// Ends a connection, once its rings have stopped; `why`, unless the front end left.
    pub(crate) fn end(&mut self, place: usize, why: Option<Error>) {
        let Home { rings, connections, waits, .. } = self;
        let Some(connection) = connections.get_mut(place) else { return };
        if !connection.is_ending()
            && let Some(gone) = connection.end_later(why, &mut Hands { rings, waits })
        {
            self.end_now(place, gone);
        }
    }

    /// Ends a connection; its rings are waited for.
    fn end_now(&mut self, place: usize, Gone(why): Gone) {
        let Home { rings, connections, waits, .. } = self;
        let Some(mut connection) = connections.try_remove(place) else { return };
        connection.close(&mut Hands { rings, waits });
        // Who has its place next has done nothing.
        rings.forget_wrong(place);
        let at = connection.device;
        connection.leave();
        if let Some(device) = rings.served.devices.get_mut(at) {
            device.connected -= 1;
        }
        match why {
            None => self.say(at, "the front end left"),
            Some(why) => {
                let why = format!("{why:#}");
                self.say(at, &format!("the connection ends: {why}"));
                if let Some(device) = self.rings.served.devices.get_mut(at) {
                    device.ended = Ended { count: device.ended.count + 1, why };
                }
            }
        }
        // All doors are closed while there are as many front ends as there may be.
        let is_first = self.connections.len() + 1 == MAX_CONNECTIONS;
        let doors = if is_first { 0..self.doors.len() } else { at..at + 1 };
        for device in doors {
            if let Err(error) = self.watch(device) {
                self.say(device, &format!("{error:#}"));
            }
        }
    }

    fn say(&self, device: usize, what: &str) {
        let name = self.rings.served.devices.get(device).map_or("", |device| &device.name);
        eprintln!("exitless-io: {name}: {what}");
    }
}
