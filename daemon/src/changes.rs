//! Devices that come, change and go while others go on.
//!
//! Guarantees: a file with a wrong line changes nothing. A device whose table is the same goes on
//! as it is; one whose limits or weight alone changed keeps its front ends.

use crate::build::{self, Entry};
use crate::config::{self, Plan};
use crate::device::Kind;
use crate::home::{Home, Known};
use crate::report::{Report, report};
use crate::waits::Source;
use std::path::Path;

impl Home {
    /// Serves what a plan says, and nothing else. What failed: sentences.
    pub fn apply(&mut self, plan: &Plan) -> Vec<String> {
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
        let missing: Vec<_> = wanted.iter().filter(missing).cloned().collect();
        missing.into_iter().flat_map(|entry| self.add(entry)).collect()
    }

    /// Gives switches their ways out. They stay until the end: a file that is read again changes
    /// none.
    pub fn connect_uplinks(&mut self, plan: &Plan) -> Vec<String> {
        let mut failed = Vec::new();
        for asked in &plan.uplinks {
            let made = build::uplink(asked, &mut self.rings, &mut self.switches);
            let done = made.and_then(|place| {
                let uplink = &self.rings.served.uplinks[place];
                self.waits.add(uplink.as_fd(), Source::Uplink(place))
            });
            failed.extend(done.err().map(|error| format!("uplink of {}: {error:#}", asked.switch)));
        }
        failed
    }

    /// Serves one device more.
    pub fn add(&mut self, entry: Entry) -> Option<String> {
        let name = entry.name().to_owned();
        let added = build::door(entry.way(), &mut self.handed).and_then(|door| {
            let device = build::device(&entry, None, &mut self.rings, &mut self.switches);
            // Its socket's file isn't left behind.
            let device = device.inspect_err(|_| door.close())?;
            let what = match &device.kind {
                Kind::Disk(disk) => Some(disk.to_string()),
                Kind::Port(_) => None,
            };
            let place = self.add_device(device, door)?;
            if let Some(what) = what {
                eprintln!("exitless-io: {name} is {what}");
            }
            self.known.push(Known { entry, place });
            Ok(())
        });
        added.err().map(|error| format!("{name}: {error:#}"))
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
        let Known { place, .. } = self.known.remove(at);
        self.remove_device(place);
        Vec::new()
    }

    /// Serves the devices of these tables, too.
    pub fn add_tables(&mut self, file: &Path, text: &str) -> Vec<String> {
        let plan = match config::parse(file, text) {
            Ok(plan) => plan,
            Err(wrong) => return wrong.iter().map(ToString::to_string).collect(),
        };
        let taken = |name: &&str| self.known.iter().any(|known| known.entry.name() == *name);
        if let Some(name) = plan.names().find(taken) {
            return vec![format!("{name}: there is such a device already; remove it first")];
        }
        let entries = Entry::of(&plan);
        if entries.is_empty() {
            return vec![format!(
                "{} has no device; give it one, such as [disk.web]",
                file.display()
            )];
        }
        entries.into_iter().flat_map(|entry| self.add(entry)).collect()
    }

    /// Reads the file again.
    pub fn reload(&mut self) -> Vec<String> {
        let Some(file) = self.file.clone() else {
            return vec![
                "there is no file to read again: this daemon has its device from its command line"
                    .into(),
            ];
        };
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => return vec![format!("{} can't be read: {error}", file.display())],
        };
        match config::parse(&file, &text) {
            Ok(plan) => self.apply(&plan),
            Err(wrong) => wrong.iter().map(ToString::to_string).collect(),
        }
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
