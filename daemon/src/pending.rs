//! Changes that take a while: what they need is opened by another process, and the loop goes on.
//!
//! Guarantees: one change at a time, in the order in which they were asked for; each is answered
//! once, when all of it is done or has failed. An upgrade comes before all others. A device is
//! served as soon as what it takes is there.

use crate::build::{self, Entry};
use crate::clients;
use crate::config::{self, Host, Out, Plan, Way};
use crate::control::{Answer, Request};
use crate::disk::Data;
use crate::home::Home;
use crate::opener::{Found, Given, Opener, Wanted};
use crate::text;
use crate::waits::Source;
use anyhow::{Context as _, Result, bail};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Bytes of a file that is read again.
const LONGEST_TEXT: u64 = 64 << 20;

/// Who asked for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client at this place, which stays there until it is answered.
    Client(usize),
    Signal,
}

/// What a change needs next.
enum Need {
    /// The file, to be read again.
    Text,
    Device(Box<Entry>, Before),
    /// A way out; and the one before, which comes again if it can't be had.
    Uplink(config::Uplink, Option<config::Uplink>),
}

/// What there was of a device before.
enum Before {
    /// What is served still, or nothing.
    AsItIs,
    /// This, which had to be removed first: it comes again if the new one can't be had.
    Removed(Box<Entry>),
    /// The new one couldn't be had.
    Comes,
}

struct Change {
    origin: Origin,
    /// The first one was asked for.
    needs: VecDeque<Need>,
    /// Sentences.
    failed: Vec<String>,
    done: Vec<String>,
    noted: Vec<String>,
}

impl Change {
    fn new(origin: Origin, needs: VecDeque<Need>, failed: Vec<String>) -> Change {
        Change { origin, needs, failed, done: Vec::new(), noted: Vec::new() }
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
                [] => Ok(Vec::new()),
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
                    _ if there.is_some_and(|there| there.way() == entry.way()) => false,
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
                let found = found.with_context(|| format!("uplink of {}", asked.switch));
                let added =
                    found.and_then(|(found, with)| match (found, with.into_iter().next()) {
                        (Found::Uplink, Some(out)) => self.add_uplink(&asked, Some(out)),
                        _ => bail!("the process that opens files can't be understood"),
                    });
                self.note(|now| match added {
                    Ok(()) => {
                        now.done.push(format!("uplink of {}: {} is there", asked.switch, asked.out))
                    }
                    Err(error) => {
                        now.failed.push(format!("{error:#}"));
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

    fn note(&mut self, what: impl FnOnce(&mut Change)) {
        if let Some(now) = &mut self.pending.now {
            what(now);
        }
    }

    /// The file's text has come: what is new in it, and what is wrong.
    fn read_again(&mut self, found: Given) -> Result<()> {
        let file = self.file.clone().context("there is no file")?;
        let (Found::Text, Some(text)) = (found.0, found.1?.into_iter().next()) else {
            bail!("{} didn't come", file.display());
        };
        let shown = file.display();
        let read = text::taken(text, LONGEST_TEXT);
        let read = read.with_context(|| format!("{shown} can't be read"))?;
        let read = String::from_utf8(read).with_context(|| format!("{shown} isn't text"))?;
        let plan = config::parse(&file, &read);
        let plan = plan.map_err(|wrong| wrong.iter().map(ToString::to_string).collect());
        let refused = |plan: Plan| match self.refused(&plan) {
            refused if refused.is_empty() => Ok(plan),
            refused => Err(refused),
        };
        let plan: Result<Plan, Vec<String>> = plan.and_then(refused);
        match plan {
            Ok(plan) => {
                let uplinks = self.keep_uplinks(&plan).into_iter();
                let mut needs: Vec<_> =
                    uplinks.map(|(asked, before)| Need::Uplink(asked, before)).collect();
                let kept = self.keep(&plan);
                needs.extend(kept.devices.into_iter().map(|(entry, before)| {
                    let before = before.map(Box::new);
                    let before = before.map_or(Before::AsItIs, Before::Removed);
                    Need::Device(Box::new(entry), before)
                }));
                let noted = self.at_a_restart(&plan.host);
                self.note(|now| {
                    now.needs.extend(needs);
                    now.done.extend(kept.done);
                    now.failed.extend(kept.failed);
                    now.noted.extend(noted);
                });
            }
            Err(wrong) => self.note(|now| now.failed.extend(wrong)),
        }
        Ok(())
    }

    /// What of `[host]` isn't so yet: sockets and rights are made at the start.
    fn at_a_restart(&self, host: &Host) -> Vec<String> {
        let [control, metrics] = self.clients.desks().map(|desk| desk.map(|(path, _)| path));
        let folders = self.sandbox.iter().flat_map(|_| &host.paths);
        let has =
            |path: &PathBuf| self.sandbox.as_ref().is_some_and(|own| own.write.contains(path));
        let mut folders = folders.filter(|path| !has(path));
        [
            ("control", control != host.control.as_deref()),
            ("metrics", metrics != host.metrics.as_deref()),
            ("paths", folders.next().is_some()),
        ]
        .into_iter()
        .filter(|(_, is_new)| *is_new)
        .map(|(key, _)| format!("`{key}` of [host] takes effect when the daemon is restarted"))
        .collect()
    }

    /// What of a plan can't be done at all: then none of it is.
    fn refused(&self, plan: &Plan) -> Vec<String> {
        let uplinks = plan.uplinks.iter().filter(|_| self.pending.has_no_interfaces);
        let interfaces = uplinks.filter(|asked| matches!(asked.out, Out::Packet(_)));
        let sentence = |asked: &config::Uplink| {
            format!(
                "uplink of {}: the calls for interfaces were given up, as there was none at the \
                 start; restart the daemon",
                asked.switch
            )
        };
        interfaces.map(sentence).collect()
    }

    fn add_opened(&mut self, entry: Entry, found: Given) -> Result<()> {
        let (Found::Device { listens, data }, with) = found else {
            bail!("the process that opens files can't be understood");
        };
        let mut with = with.inspect_err(|_| leave_nothing(&entry, listens))?.into_iter();
        let mut next = || with.next().context("a descriptor didn't come along");
        let listener = if listens { Some(next()?) } else { None };
        let data: Result<Option<Data>> = data.map(|told| told.with(&mut next)).transpose();
        if self.served(entry.name()).is_some() {
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
        let is_done = failed.is_empty();
        // Of what failed in part it is said what was done.
        failed.extend(done.into_iter().filter(|_| !is_done).chain(noted));
        match origin {
            Origin::Client(place) => {
                let answer = match (is_done, failed.is_empty()) {
                    (true, true) => Answer::Done,
                    (true, false) => Answer::Noted(failed),
                    (false, _) => Answer::Failed(failed),
                };
                clients::tell(self, place, &answer);
            }
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
