//! Changes that take a while: what they need is opened by another process, and the loop goes on.
//!
//! Guarantees: one change at a time, in the order in which they were asked for; each is answered
//! once, when all of it is done or has failed. An upgrade comes before all others. A device is
//! served as soon as what it takes is there.

use crate::build::{self, Entry};
use crate::clients;
use crate::config::{self, Way};
use crate::control::{Answer, Request};
use crate::disk::Data;
use crate::home::Home;
use crate::opener::{Found, Given, Opener, Wanted};
use crate::supervisor;
use crate::unserved::Wished;
use crate::waits::Source;
use anyhow::{Context as _, Result, bail};
use std::collections::VecDeque;
use std::path::Path;

/// Who asked for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client at this place, which stays there until it is answered.
    Client(usize),
    Signal,
    /// What is missing is tried again.
    Itself,
}

/// What a change needs next.
pub(crate) enum Need {
    /// The file, to be read again.
    Text,
    Device(Box<Entry>, Before),
    /// A way out; and the one before, which comes again if it can't be had.
    Uplink(config::Uplink, Option<config::Uplink>),
}

impl Need {
    /// What isn't there.
    pub fn of(wished: Wished) -> Need {
        match wished {
            Wished::Device(entry) => Need::Device(entry, Before::AsItIs),
            Wished::Uplink(asked) => Need::Uplink(asked, None),
        }
    }

    /// A device, and the one before it, if that had to be removed for it.
    pub fn instead(entry: Entry, before: Option<Entry>) -> Need {
        let before = before.map(Box::new).map_or(Before::AsItIs, Before::Removed);
        Need::Device(Box::new(entry), before)
    }
}

/// What there was of a device before.
pub(crate) enum Before {
    /// What is served still, or nothing.
    AsItIs,
    /// This, which had to be removed first: it comes again if the new one can't be had.
    Removed(Box<Entry>),
    /// The new one couldn't be had.
    Comes,
}

pub(crate) struct Change {
    origin: Origin,
    /// The first one was asked for.
    pub needs: VecDeque<Need>,
    /// Sentences.
    pub failed: Vec<String>,
    pub done: Vec<String>,
    pub noted: Vec<String>,
}

impl Change {
    fn new(origin: Origin, needs: VecDeque<Need>, failed: Vec<String>) -> Change {
        Change { origin, needs, failed, done: Vec::new(), noted: Vec::new() }
    }

    /// It couldn't be had before, for the same reason. Who asks is told, and hasn't failed.
    fn is_missing_still(&mut self, name: &str, error: &anyhow::Error) {
        if self.origin != Origin::Itself {
            self.noted.push(format!("{name} isn't served still: {error:#}"));
        }
    }
}

/// All of them.
#[derive(Default)]
pub struct Pending {
    opener: Option<Opener>,
    now: Option<Change>,
    later: VecDeque<(Origin, Request)>,
    /// Those calls were given up that interfaces take.
    has_no_interfaces: bool,
}

impl Pending {
    /// Is something opened at once that is asked for now?
    pub fn is_ready(&self) -> bool {
        self.now.is_none() && self.opener.is_some()
    }

    /// No way out can be an interface.
    pub fn has_no_interfaces(&self) -> bool {
        self.has_no_interfaces
    }

    /// From now on ways out can be interfaces, or can't.
    pub fn allow_interfaces(&mut self, are_allowed: bool) {
        self.has_no_interfaces = !are_allowed;
    }
}

impl Home {
    /// From now on this process opens what comes later.
    pub fn open_by(&mut self, opener: Opener) -> Result<()> {
        self.waits.add(&opener, Source::Opener)?;
        self.pending.opener = Some(opener);
        Ok(())
    }

    /// Somebody wants a change. An upgrade doesn't wait for others, as it helps against one that
    /// doesn't end; they are lost with it.
    pub fn change(&mut self, origin: Origin, request: Request) {
        if let Request::Upgrade(_) = request {
            let failed = self.begin(origin, request).err().unwrap_or_default();
            if !self.is_given {
                self.tell(Change::new(origin, VecDeque::new(), failed));
            }
            return;
        }
        let again = (origin, request);
        // Who asks waits for one try at most.
        if let Some(now) = self.pending.now.as_mut().filter(|now| now.origin == Origin::Itself) {
            now.needs.truncate(1);
        }
        // Signals that come while one waits mean the same.
        if origin != Origin::Signal || !self.pending.later.contains(&again) {
            self.pending.later.push_back(again);
        }
        self.go_on_changing();
    }

    /// Does what is to be done next, as far as nothing has to be opened for it.
    fn go_on_changing(&mut self) {
        while !self.is_given {
            match self.pending.now.take() {
                Some(change) if change.needs.is_empty() => self.tell(change),
                Some(change) => {
                    self.pending.now = Some(change);
                    return;
                }
                None => {
                    let Some((origin, request)) = self.pending.later.pop_front() else { return };
                    let begun = self.begin(origin, request);
                    self.need(origin, begun);
                }
            }
        }
    }

    /// Begins a change: what it needs.
    fn begin(&mut self, origin: Origin, request: Request) -> Result<Vec<Need>, Vec<String>> {
        match request {
            Request::Add { file, text } => self.add_tables(Path::new(&file), &text).map(devices),
            Request::Reload if self.file.is_none() => Err(vec![
                "there is no file to read again: this daemon has its device from its command line"
                    .into(),
            ]),
            Request::Reload => Ok(vec![Need::Text]),
            Request::Remove(name) => match &self.remove(&name)[..] {
                [] => {
                    eprintln!("exitless-io: `{name}` was removed");
                    Ok(Vec::new())
                }
                failed => Err(failed.to_vec()),
            },
            Request::Upgrade(asked) => {
                let Origin::Client(place) = origin else { return Ok(Vec::new()) };
                let given = self.clients.socket(place);
                let given = given.and_then(|socket| crate::handover::give(self, &socket, asked));
                given.map(|()| Vec::new()).map_err(|error| vec![format!("{error:#}")])
            }
            Request::List => Ok(Vec::new()),
        }
    }

    /// Begins a change that nobody asked for, while none is under way.
    pub(crate) fn change_by(&mut self, origin: Origin, needs: Vec<Need>) {
        self.need(origin, Ok(needs));
        self.go_on_changing();
    }

    /// A change is under way that needs this.
    fn need(&mut self, origin: Origin, begun: Result<Vec<Need>, Vec<String>>) {
        let (needs, failed) = match begun {
            Ok(needs) => (needs.into(), Vec::new()),
            Err(failed) => (VecDeque::new(), failed),
        };
        self.pending.now = Some(Change::new(origin, needs, failed));
        self.ask_for_next();
    }

    /// Asks for what the change needs next. What can't be asked for has failed.
    fn ask_for_next(&mut self) {
        loop {
            let need = self.pending.now.as_ref().and_then(|change| change.needs.front());
            let Some(need) = need else { return };
            let asked = match &self.pending.opener {
                Some(opener) => self.wanted(need).and_then(|wanted| opener.ask(&wanted)),
                None => Err(anyhow::Error::msg(
                    "the process that opens files has ended; `exitless-io upgrade` makes a new one",
                )),
            };
            let Err(error) = asked else { return };
            self.done(Err(error));
        }
    }

    fn wanted(&self, need: &Need) -> Result<Wanted> {
        Ok(match need {
            Need::Text => Wanted::Text(self.file.clone().context("there is no file")?),
            Need::Uplink(asked, _) => Wanted::Uplink(asked.clone()),
            Need::Device(entry, _) => {
                let there = self.served(entry.name());
                let listens = match entry.way() {
                    way if there.is_some_and(|there| there.way() == way) => {
                        self.lacks_socket(entry.name())
                    }
                    Way::Socket(path) => !self.handed.has(&self.folder.join(path)),
                    Way::Connect(_) => false,
                };
                let opens = !there.is_some_and(|there| entry.keeps_data_of(there));
                Wanted::Device { entry: entry.clone(), listens, opens }
            }
        })
    }

    /// The other process has answered.
    pub fn opened(&mut self) {
        let Some(opener) = &self.pending.opener else { return };
        match opener.answer() {
            Ok(None) => return,
            Ok(Some((Found::Failed(why), _))) => self.done(Err(anyhow::Error::msg(why))),
            Ok(Some(found)) => self.done(Ok(found)),
            Err(error) => {
                self.waits.remove(opener);
                self.pending.opener = None;
                // A signal for all processes of a service ends that one, too: that is no news.
                if !self.is_to_end() {
                    eprintln!("exitless-io: {error:#}: nothing is added or read again from now on");
                }
                self.done(Err(error));
            }
        }
        self.ask_for_next();
        self.go_on_changing();
    }

    /// What the change needed is there, or isn't to be had.
    fn done(&mut self, found: Result<Given>) {
        let Some(need) = self.pending.now.as_mut().and_then(|now| now.needs.pop_front()) else {
            return;
        };
        match need {
            Need::Text => {
                if let Err(error) = found.and_then(|found| self.read_again(found)) {
                    self.note(|now| now.failed.push(format!("{error:#}")));
                }
            }
            Need::Uplink(asked, before) => {
                let found = found.and_then(|(found, with)| Ok((found, with?)));
                let added =
                    found.and_then(|(found, with)| match (found, with.into_iter().next()) {
                        (Found::Uplink, Some(out)) => self.add_uplink(&asked, Some(out)),
                        _ => bail!("the process that opens files can't be understood"),
                    });
                let name = format!("uplink of {}", asked.switch);
                let is_news = match &added {
                    // With the one before it would be a second one.
                    Err(error) if before.is_none() => {
                        self.missing.failed(&name, &format!("{error:#}"))
                    }
                    _ => self.missing.forget(&name),
                };
                self.note(|now| match added {
                    Ok(()) => now.done.push(format!("{name}: {} is there", asked.out)),
                    Err(error) if !is_news => now.is_missing_still(&name, &error),
                    Err(error) => {
                        now.failed.push(format!("{name}: {error:#}"));
                        let before = before.map(|before| Need::Uplink(before, None));
                        before.into_iter().for_each(|before| now.needs.push_front(before));
                    }
                });
            }
            Need::Device(entry, before) => {
                let name = entry.name().to_owned();
                let was = self.served(&name).is_some();
                let added = found.and_then(|found| self.add_opened(*entry, found));
                let is = self.served(&name).is_some();
                let is_news = match &added {
                    Err(error) if !is => self.missing.failed(&name, &format!("{error:#}")),
                    _ => self.missing.forget(&name),
                };
                self.note(|now| match (added, before) {
                    (Ok(()), Before::AsItIs) if !was => {
                        now.done.push(format!("`{name}` was added"));
                    }
                    (Ok(()), Before::AsItIs | Before::Removed(_)) => {
                        now.done.push(format!("`{name}` was changed"));
                    }
                    (Ok(()), Before::Comes) => {
                        now.done.push(format!("`{name}` is served as it was"));
                    }
                    (Err(error), Before::Removed(old)) => {
                        now.failed.push(format!("`{name}` isn't changed: {error:#}"));
                        now.needs.push_front(Need::Device(old, Before::Comes));
                    }
                    (Err(error), Before::AsItIs) if is => {
                        now.failed.push(format!("`{name}` stays as it was: {error:#}"));
                    }
                    (Err(error), _) if !is_news => now.is_missing_still(&name, &error),
                    (Err(error), Before::AsItIs) if !was => {
                        now.failed.push(format!("{name}: {error:#}"));
                    }
                    (Err(error), _) => {
                        now.failed.push(format!("`{name}` is served no more: {error:#}"));
                    }
                });
            }
        }
    }

    pub(crate) fn note(&mut self, what: impl FnOnce(&mut Change)) {
        if let Some(now) = &mut self.pending.now {
            what(now);
        }
    }

    fn add_opened(&mut self, entry: Entry, found: Given) -> Result<()> {
        let (Found::Device { listens, data }, with) = found else {
            bail!("the process that opens files can't be understood");
        };
        let mut with = with.inspect_err(|_| leave_nothing(&entry, listens))?.into_iter();
        let mut next = || with.next().context("a descriptor didn't come along");
        let listener = if listens { Some(next()?) } else { None };
        let data: Result<Option<Data>> = data.map(|told| told.with(&mut next)).transpose();
        if let Some(there) = self.served(entry.name()) {
            if let (true, Some(listener)) = (entry == *there, &listener) {
                let listener = listener.try_clone()?;
                return self.renew_socket(&entry, listener);
            }
            let data = data.inspect_err(|_| leave_nothing(&entry, listens))?;
            return self.replace(entry, listener, data);
        }
        let door = build::door(entry.way(), &self.folder, &mut self.handed, listener)?;
        match data {
            Ok(data) => self.add_with(entry, door, data),
            Err(error) => {
                door.close();
                Err(error)
            }
        }
    }

    /// Nothing is changed here from now on. What was opened meanwhile isn't left behind.
    pub fn end_changing(&mut self) {
        let now = self.pending.now.take();
        let need = now.and_then(|mut now| now.needs.pop_front());
        let Some((Need::Device(entry, _), opener)) = need.zip(self.pending.opener.take()) else {
            return;
        };
        // The socket is closed after its file is gone, so nobody takes the file for left over.
        if let Ok(Some((Found::Device { listens, .. }, _with))) = opener.answer() {
            leave_nothing(&entry, listens);
        }
    }

    fn tell(&mut self, change: Change) {
        let Change { origin, mut failed, done, noted, .. } = change;
        let now = self.rings.look_at_clock();
        self.missing.changed(now, origin == Origin::Itself);
        supervisor::status(&self.status());
        let is_done = failed.is_empty();
        // Of what failed in part it is said what was done.
        let is_told = !is_done || origin == Origin::Itself;
        if matches!(origin, Origin::Client(_)) || !is_told {
            done.iter().for_each(|what| eprintln!("exitless-io: {what}"));
        }
        failed.extend(done.into_iter().filter(|_| is_told).chain(noted));
        match origin {
            Origin::Client(place) => {
                let answer = match (is_done, failed.is_empty()) {
                    (true, true) => Answer::Done,
                    (true, false) => Answer::Noted(failed),
                    (false, _) => Answer::Failed(failed),
                };
                clients::tell(self, place, &answer);
            }
            Origin::Itself => failed.iter().for_each(|what| eprintln!("exitless-io: {what}")),
            Origin::Signal => {
                failed.iter().for_each(|what| eprintln!("exitless-io: {what}"));
                if is_done {
                    eprintln!("exitless-io: the file was read again");
                }
            }
        }
    }
}

/// The file of a socket that was made for this device, which isn't listened at here.
fn leave_nothing(entry: &Entry, listens: bool) {
    if listens {
        let _ = std::fs::remove_file(entry.way().path());
    }
}

fn devices(entries: Vec<Entry>) -> Vec<Need> {
    let need = |entry| Need::Device(Box::new(entry), Before::AsItIs);
    entries.into_iter().map(need).collect()
}
