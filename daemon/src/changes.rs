//! Devices, and ways out of switches, that come, change and go while others go on.
//!
//! Guarantees: a file with a wrong line changes nothing. A device whose table is the same goes on
//! as it is; one whose limits or weight alone changed keeps its front ends.

use crate::build::{self, Entry};
use crate::config::{self, Plan};
use crate::device::Kind;
use crate::home::{Home, Known};
use crate::report::{Report, report};
use crate::rings::Served;
use crate::waits::Source;
use anyhow::{Context as _, Result};
use rustix::fd::OwnedFd;
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

    /// Gives switches the ways out that a plan says, and no others. One that is the same goes on,
    /// unless its TAP was removed. What failed: sentences.
    pub fn apply_uplinks(&mut self, plan: &Plan) -> Vec<String> {
        let uplinks = self.rings.served.uplinks.iter();
        let old = uplinks.filter(|(_, own)| own.is_gone() || !plan.uplinks.contains(own.asked()));
        let old: Vec<usize> = old.map(|(place, _)| place).collect();
        old.into_iter().for_each(|place| self.remove_uplink(place));
        let mut failed = Vec::new();
        for asked in &plan.uplinks {
            let mut there = self.rings.served.uplinks.iter();
            if there.any(|(_, own)| own.asked() == asked) {
                continue;
            }
            let added = self.add_uplink(asked, None);
            failed.extend(added.err().map(|error| format!("{error:#}")));
        }
        failed
    }

    /// Gives a switch its way out, which another program may hand over.
    pub fn add_uplink(&mut self, asked: &config::Uplink, handed: Option<OwnedFd>) -> Result<()> {
        let made = build::uplink(asked, handed, &mut self.rings, &mut self.switches);
        let added = made.and_then(|place| {
            let uplink = &self.rings.served.uplinks[place];
            let added = self.waits.add(uplink.as_fd(), Source::Uplink(place));
            added.inspect_err(|_| self.remove_uplink(place))
        });
        added.with_context(|| format!("uplink of {}", asked.switch))
    }

    fn remove_uplink(&mut self, place: usize) {
        let Served { uplinks, switches, .. } = &mut self.rings.served;
        let Some(uplink) = uplinks.try_remove(place) else { return };
        if !uplink.is_gone() {
            self.waits.remove(uplink.as_fd());
        }
        if let Some(switch) = switches.get_mut(uplink.switch) {
            uplink.leave(switch);
        }
    }

    /// Frames came at a way out. If its TAP was removed that is said once: epoll would tell of it
    /// without end.
    pub(crate) fn look_out(&mut self, place: usize) {
        if self.rings.look_out(place) {
            return;
        }
        if let Some(uplink) = self.rings.served.uplinks.get(place) {
            self.waits.remove(uplink.as_fd());
            eprintln!("exitless-io: uplink of {}: the TAP was removed", uplink.asked().switch);
        }
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
        if let Some(uplink) = plan.uplinks.first() {
            return vec![format!(
                "uplink of {}: a way out comes by the daemon's file alone; put it there and reload",
                uplink.switch
            )];
        }
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
            Ok(plan) => [self.apply_uplinks(&plan), self.apply(&plan)].concat(),
            Err(wrong) => wrong.iter().map(ToString::to_string).collect(),
        }
    }

    /// What there is and what it did.
    pub fn report(&mut self) -> Report {
        let known = &self.known;
        let socket = |place: usize| {
            let found = known.iter().find(|known| known.place == place);
            found.map_or(String::new(), |known| known.entry.way().path().display().to_string())
        };
        report(&mut self.rings, socket)
    }
}
