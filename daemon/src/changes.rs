//! Devices, and ways out of switches, that come, change and go while others go on.
//!
//! Guarantees: a file with a wrong line changes nothing. A device whose table is the same goes on
//! as it is; one whose limits or weight alone changed keeps its front ends.

use crate::build::{self, Entry};
use crate::config::{self, Plan};
use crate::device::Kind;
use crate::disk::Data;
use crate::door::Door;
use crate::home::{Home, Known};
use crate::report::{self, Report, Unserved, report};
use crate::rings::Served;
use crate::waits::Source;
use anyhow::Result;
use rustix::fd::OwnedFd;
use std::path::Path;

/// What becomes of a plan.
#[derive(Default)]
pub struct Kept {
    /// What is to be opened; with a device that had to be removed for it.
    pub devices: Vec<(Entry, Option<Entry>)>,
    pub done: Vec<String>,
    pub failed: Vec<String>,
}

impl Home {
    /// Goes on with what a plan says, and with nothing else: what of it isn't served yet, or is to
    /// be served otherwise. Those are served on until what comes instead is there; but for those
    /// that keep it from being opened.
    pub fn keep(&mut self, plan: &Plan) -> Kept {
        let wanted = Entry::of(plan);
        let there: Vec<_> = self.known.iter().map(|known| known.entry.clone()).collect();
        let (mut kept, mut changed) = (Kept::default(), Vec::new());
        for old in there {
            match wanted.iter().find(|new| new.name() == old.name()) {
                Some(new) if new.is_like(&old) => {
                    let name = old.name();
                    if *new != old {
                        self.set_limits(new);
                        kept.done.push(format!("`{name}` has other limits now"));
                    }
                    if self.lacks_socket(name) {
                        kept.devices.push((new.clone(), None));
                    }
                }
                Some(new) => changed.push((old, new)),
                None => {
                    self.remove(old.name());
                    kept.done.push(format!("`{}` was removed", old.name()));
                }
            }
        }
        for (old, new) in &changed {
            let name = old.name();
            let is_awaited = changed.iter().any(|(_, new)| new.awaits(old));
            if is_awaited && matches!(old, Entry::Disk(disk) if disk.is_in_memory()) {
                kept.failed.push(format!(
                    "`{name}` stays as it was: its content would be lost, as another device takes \
                     its socket at once; do it by two reloads"
                ));
                continue;
            }
            if is_awaited {
                self.remove(name);
            }
            let before = is_awaited.then(|| old.clone());
            kept.devices.push(((*new).clone(), before));
        }
        let is_new = |new: &&Entry| !changed.iter().any(|(old, _)| old.name() == new.name());
        let missing = |entry: &&Entry| self.served(entry.name()).is_none();
        let added = wanted.iter().filter(is_new).filter(missing);
        kept.devices.extend(added.map(|new| (new.clone(), None)));
        kept
    }

    /// Takes the ways out from switches that a plan doesn't say, and gives those that are missing.
    /// One that is the same goes on, unless its TAP or interface was removed. With those that are
    /// missing comes what the switch had before.
    pub fn keep_uplinks(&mut self, plan: &Plan) -> Vec<(config::Uplink, Option<config::Uplink>)> {
        let uplinks = self.rings.served.uplinks.iter();
        let old = uplinks.filter(|(_, own)| own.is_gone() || !plan.uplinks.contains(own.asked()));
        let old: Vec<_> = old.map(|(place, own)| (place, own.asked().clone())).collect();
        old.iter().for_each(|(place, _)| self.remove_uplink(*place));
        let before = |asked: &config::Uplink| {
            let mut old = old.iter().map(|(_, old)| old);
            old.find(|old| old.switch == asked.switch && *old != asked).cloned()
        };
        let is_there = |asked: &config::Uplink| {
            self.rings.served.uplinks.iter().any(|(_, own)| own.asked() == asked)
        };
        let missing = plan.uplinks.iter().filter(|asked| !is_there(asked));
        missing.map(|asked| (asked.clone(), before(asked))).collect()
    }

    /// Gives a switch its way out, which another program or process may have opened.
    pub fn add_uplink(&mut self, asked: &config::Uplink, handed: Option<OwnedFd>) -> Result<()> {
        let made = build::uplink(asked, handed, &mut self.rings, &mut self.switches);
        made.and_then(|place| {
            let uplink = &self.rings.served.uplinks[place];
            let added = self.waits.add(uplink.as_fd(), Source::Uplink(place));
            added.inspect_err(|_| self.remove_uplink(place))
        })
    }

    fn remove_uplink(&mut self, place: usize) {
        let Served { uplinks, switches, .. } = &mut self.rings.served;
        let Some(uplink) = uplinks.try_remove(place) else { return };
        self.waits.remove(uplink.as_fd());
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

    /// Serves one device more, which is opened here: before the rights to do so are given up.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        let door = build::door(entry.way(), &self.folder, &mut self.handed, None)?;
        self.add_with(entry, door, None)
    }

    /// The same, with its door, and what its data lies in unless that is opened here.
    pub fn add_with(&mut self, entry: Entry, door: Door, data: Option<Data>) -> Result<()> {
        let device = build::device(&entry, data, &mut self.rings, &mut self.switches);
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                // Its socket's file isn't left behind; systemd's socket is for the next try.
                door.close();
                self.handed.keep(&self.folder.join(entry.way().path()), door.into_handed());
                return Err(error);
            }
        };
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
            return match self.missing.forget(name) {
                true => Vec::new(),
                false => vec![format!("{name}: there is no such device")],
            };
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
        if let Some(uplink) = plan.uplinks.first() {
            return Err(vec![format!(
                "uplink of {}: a way out comes by the daemon's file alone; put it there and reload",
                uplink.switch
            )]);
        }
        let taken = |name: &&str| self.known.iter().any(|known| known.entry.name() == *name);
        if let Some(name) = plan.names().find(taken) {
            return Err(vec![format!("{name}: there is such a device already; remove it first")]);
        }
        let entries = Entry::of(&plan);
        for (entry, known) in entries
            .iter()
            .flat_map(|entry| self.known.iter().map(move |known| (entry, &known.entry)))
        {
            let (name, other) = (entry.name(), known.name());
            if entry.way() == known.way() {
                return Err(vec![format!("{name}: its socket is that of `{other}`")]);
            }
            if entry.is_kept_from_file_of(known) {
                return Err(vec![format!("{name}: its file is that of `{other}`, and written")]);
            }
        }
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
        let closed = known.iter().filter(|known| self.lacks_socket(known.entry.name()));
        let closed: Vec<_> = closed.map(|known| known.place).collect();
        let said = |place: usize| {
            let found = known.iter().find(|known| known.place == place);
            found.map_or(Default::default(), |Known { entry, .. }| report::Said {
                backing: entry.backing(),
                socket: entry.way().path().display().to_string(),
                is_closed: closed.contains(&place),
                rate: entry.rate(),
            })
        };
        let unserved = self.missing.all().iter().map(Unserved::from).collect();
        Report { unserved, ..report(&mut self.rings, said) }
    }
}
