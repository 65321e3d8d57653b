//! A device whose table has changed takes the place of the one before it.
//!
//! Guarantees: whatever fails, the one before goes on, or is made again. Data that can stay does:
//! a disk in memory keeps its content, files stay locked, servers connected. A socket that is the
//! same is listened at without a gap. Front ends of the one before connect anew, as they have to
//! read the configuration again.

use crate::build::{self, Entry};
use crate::config::Backing;
use crate::device::{Device, Kind};
use crate::disk::Data;
use crate::door::Door;
use crate::home::{Home, Known};
use crate::listen;
use anyhow::{Context as _, Result};
use rustix::fd::OwnedFd;
use std::path::Path;

impl Entry {
    /// Is its data that of the other one, as it is open there?
    pub fn keeps_data_of(&self, other: &Entry) -> bool {
        let (Entry::Disk(own), Entry::Disk(other)) = (self, other) else { return false };
        let is_memory = matches!(own.backing, Backing::Ram(_) | Backing::Null(_));
        own.backing == other.backing && (is_memory || own.read_only == other.read_only)
    }

    /// The file or block device that it lies in.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Entry::Disk(disk) => match &disk.backing {
                Backing::File { path, .. } => Some(path),
                _ => None,
            },
            Entry::Network(_) => None,
        }
    }

    /// The NBD server that keeps it.
    pub fn server(&self) -> Option<&str> {
        match self {
            Entry::Disk(disk) => match &disk.backing {
                Backing::Nbd(server) => Some(&server.uri),
                _ => None,
            },
            Entry::Network(_) => None,
        }
    }

    /// Is its file the other one's, and written by one of them?
    pub fn is_kept_from_file_of(&self, other: &Entry) -> bool {
        let reads = |entry: &Entry| matches!(entry, Entry::Disk(disk) if disk.read_only);
        let same = self.file().is_some_and(|file| other.file() == Some(file));
        same && !(reads(self) && reads(other))
    }

    /// Can it not be opened before the other one is closed? A file is locked, and a server may take
    /// one client at a time.
    pub fn awaits(&self, other: &Entry) -> bool {
        let same_file = self.file().is_some_and(|file| other.file() == Some(file));
        let same_server = self.server().is_some_and(|server| other.server() == Some(server));
        let has_data = self.name() == other.name() && self.keeps_data_of(other);
        let same_way = self.name() != other.name() && self.way() == other.way();
        same_way || (same_file || same_server) && !has_data
    }
}

impl Home {
    /// The device of this name, as it is served.
    pub fn served(&self, name: &str) -> Option<&Entry> {
        self.known.iter().map(|known| &known.entry).find(|entry| entry.name() == name)
    }

    /// Serves this instead of the device of the same name. `listener` is that of its socket, if it
    /// is another one; `data` is what was opened, if its data is other data.
    ///
    /// # Errors
    ///
    /// In a sentence. Then the one before is there still.
    pub fn replace(
        &mut self,
        entry: Entry,
        listener: Option<OwnedFd>,
        data: Option<Data>,
    ) -> Result<()> {
        let at = self.known.iter().position(|known| known.entry.name() == entry.name());
        let at = at.context("there is no such device any more")?;
        let Known { entry: old, place } = &self.known[at];
        let (old, place) = (old.clone(), *place);
        let (is_same, is_new) = (old.way() == entry.way(), listener.is_some());
        let door = match is_same && !is_new {
            true => None,
            false => Some(build::door(entry.way(), &self.folder, &mut self.handed, listener)?),
        };
        let made = self.made_beside(place, &old, &entry, data);
        let made = made.inspect_err(|_| door.iter().for_each(Door::close))?;
        let (before, old_door) =
            self.take_device(place, "the device has changed").context("the device is gone")?;
        self.known.remove(at);
        let mut make =
            |entry: &Entry| build::device(entry, None, &mut self.rings, &mut self.switches);
        let (device, failed) = match (made, before.kind) {
            (Made::Whole(device), _) => (*device, None),
            (Made::Parameters(config), Kind::Disk(disk)) => {
                (build::named(&entry, Kind::Disk(disk.with_config(config))), None)
            }
            // Its address is free only now.
            _ => match make(&entry) {
                Ok(device) => (device, None),
                Err(error) => (make(&old)?, Some(error)),
            },
        };
        if let Some(error) = failed {
            door.iter().for_each(Door::close);
            let place = self.add_device(device, old_door)?;
            self.known.insert(at, Known { entry: old, place });
            return Err(error);
        }
        let door = match door {
            Some(door) if is_same => door,
            Some(door) => {
                old_door.close();
                self.handed.keep(&self.folder.join(old.way().path()), old_door.into_handed());
                door
            }
            None => old_door,
        };
        let place = self.add_device(device, door)?;
        self.rings.served.asked_of(place);
        self.known.insert(at, Known { entry, place });
        Ok(())
    }

    /// Was the file of its socket removed? Then nobody can connect.
    pub fn lacks_socket(&self, name: &str) -> bool {
        let known = self.known.iter().find(|known| known.entry.name() == name);
        let door = known.and_then(|known| self.doors.get(known.place)?.as_ref());
        door.and_then(Door::file).is_some_and(|file| !listen::is_there(file))
    }

    /// Listens at a new socket, in place of the one whose file was removed. Who is connected stays.
    pub fn renew_socket(&mut self, entry: &Entry, listener: OwnedFd) -> Result<()> {
        let known = self.known.iter().find(|known| known.entry.name() == entry.name());
        let place = known.context("there is no such device any more")?.place;
        let made = Some(listener);
        let door = build::door(entry.way(), &self.folder, &mut self.handed, made)?;
        let old = self.doors.get_mut(place).and_then(|old| old.replace(door));
        // Its file is the new one's by now.
        old.iter().filter_map(Door::listener).for_each(|old| self.waits.remove(old));
        eprintln!("exitless-io: {}: its socket was gone, and is made anew", entry.name());
        self.watch(place)
    }

    /// What can be made while the one before is there.
    fn made_beside(
        &mut self,
        place: usize,
        old: &Entry,
        entry: &Entry,
        data: Option<Data>,
    ) -> Result<Made> {
        let Entry::Disk(disk) = entry else { return Ok(Made::Nothing) };
        if !entry.keeps_data_of(old) {
            let device = build::device(entry, data, &mut self.rings, &mut self.switches)?;
            if let Kind::Disk(disk) = &device.kind {
                eprintln!("exitless-io: {} is {disk}", entry.name());
            }
            return Ok(Made::Whole(Box::new(device)));
        }
        match self.rings.served.devices.get(place).map(|device| &device.kind) {
            Some(Kind::Disk(there)) => Ok(Made::Parameters(there.config_as(disk)?)),
            _ => Ok(Made::Nothing),
        }
    }
}

/// What is there before the old device goes.
enum Made {
    Whole(Box<Device>),
    /// Of a disk whose data stays.
    Parameters(blk::Config),
    Nothing,
}
