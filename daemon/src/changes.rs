//! Devices that come, change and go while others go on.
//!
//! Guarantees: a file with a wrong line changes nothing. A device whose table is the same goes on
//! as it is; one whose limits or weight alone changed keeps its front ends.

use crate::build::{self, Entry};
use crate::config::{self, Plan};
use crate::device::Kind;
use crate::disk::Data;
use crate::door::Door;
use crate::home::{Home, Known};
use crate::report::{Report, report};
use crate::waits::Source;
use anyhow::Result;
use rustix::fd::OwnedFd;
use std::path::Path;

impl Home {
    /// Goes on with what a plan says, and with nothing else: what of it isn't served yet.
    pub fn keep(&mut self, plan: &Plan) -> Vec<Entry> {
        let wanted = Entry::of(plan);
        let there: Vec<_> = self.known.iter().map(|known| known.entry.clone()).collect();
        for old in there {
            let new = wanted.iter().find(|new| new.name() == old.name());
            match new.filter(|new| new.is_like(&old)) {
                Some(new) => self.set_limits(new),
                None => drop(self.remove(old.name())),
            }
        }
        let missing = |entry: &&Entry| !self.known.iter().any(|known| known.entry == **entry);
        wanted.iter().filter(missing).cloned().collect()
    }

    /// Gives switches their ways out. They stay until the end: a file that is read again changes
    /// none.
    pub fn connect_uplinks(&mut self, plan: &Plan) -> Vec<String> {
        let mut failed = Vec::new();
        for asked in &plan.uplinks {
            let done = self.connect_uplink(asked, None);
            failed.extend(done.err().map(|error| format!("uplink of {}: {error:#}", asked.switch)));
        }
        failed
    }

    /// Gives a switch this way out, which another process may have opened.
    pub fn connect_uplink(&mut self, asked: &config::Uplink, tap: Option<OwnedFd>) -> Result<()> {
        let place = build::uplink(asked, tap, &mut self.rings, &mut self.switches)?;
        self.waits.add(self.rings.served.uplinks[place].as_fd(), Source::Uplink(place))
    }

    /// Serves one device more, which is opened here: before the rights to do so are given up.
    pub fn add(&mut self, entry: Entry) -> Option<String> {
        let name = entry.name().to_owned();
        let door = build::door(entry.way(), &self.folder, &mut self.handed, None);
        let added = door.and_then(|door| self.add_with(entry, door, None));
        added.err().map(|error| format!("{name}: {error:#}"))
    }

    /// The same, with its door, and what its data lies in unless that is opened here.
    pub fn add_with(&mut self, entry: Entry, door: Door, data: Option<Data>) -> Result<()> {
        let device = build::device(&entry, data, &mut self.rings, &mut self.switches);
        // Its socket's file isn't left behind.
        let device = device.inspect_err(|_| door.close())?;
        let what = match &device.kind {
            Kind::Disk(disk) => Some(disk.to_string()),
            Kind::Port(_) => None,
        };
        let place = self.add_device(device, door)?;
        if let Some(what) = what {
            eprintln!("exitless-io: {} is {what}", entry.name());
        }
        self.known.push(Known { entry, place });
        Ok(())
    }

    fn set_limits(&mut self, entry: &Entry) {
        let found = self.known.iter_mut().find(|known| known.entry.name() == entry.name());
        if let Some(known) = found {
            known.entry = entry.clone();
            self.rings.set_limits(known.place, entry.limits());
        }
    }

    /// Serves a device no more.
    pub fn remove(&mut self, name: &str) -> Vec<String> {
        let Some(at) = self.known.iter().position(|known| known.entry.name() == name) else {
            return vec![format!("{name}: there is no such device")];
        };
        let Known { entry, place } = self.known.remove(at);
        let listener = self.remove_device(place);
        // It listens on for whoever started this program: a device that has it again finds it.
        self.handed.keep(&self.folder.join(entry.way().path()), listener);
        Vec::new()
    }

    /// The devices of these tables, which aren't served yet.
    ///
    /// # Errors
    ///
    /// Sentences.
    pub fn add_tables(&self, file: &Path, text: &str) -> Result<Vec<Entry>, Vec<String>> {
        let plan = config::parse(file, text);
        let plan =
            plan.map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let taken = |name: &&str| self.known.iter().any(|known| known.entry.name() == *name);
        if let Some(name) = plan.names().find(taken) {
            return Err(vec![format!("{name}: there is such a device already; remove it first")]);
        }
        let entries = Entry::of(&plan);
        if entries.is_empty() {
            let shown = file.display();
            let said = format!("{shown} has no device; give it one, such as [disk.web]");
            return Err(vec![said]);
        }
        Ok(entries)
    }

    /// What there is and what it did.
    pub fn report(&mut self) -> Report {
        let known = &self.known;
        let said = |place: usize| {
            let found = known.iter().find(|known| known.place == place);
            found.map_or(Default::default(), |Known { entry, .. }| {
                (entry.backing(), entry.way().path().display().to_string())
            })
        };
        report(&mut self.rings, said)
    }
}
