//! Changes that take a while: what they need is opened by another process, and the loop goes on.
//!
//! Guarantees: one change at a time, in the order in which they were asked for; each is answered
//! once, when all of it is done or has failed. An upgrade comes before all others. A device is
//! served as soon as what it takes is there.

use crate::build::{self, Entry};
use crate::clients;
use crate::config::{self, Out, Plan, Way};
use crate::control::{Answer, Request};
use crate::disk::Data;
use crate::home::Home;
use crate::opener::{Found, Given, Opener, Wanted};
use crate::text;
use crate::waits::Source;
use anyhow::{Context as _, Result, bail};
use std::collections::VecDeque;
use std::path::Path;

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
    Device(Box<Entry>),
    Uplink(config::Uplink),
}

struct Change {
    origin: Origin,
    /// The first one was asked for.
    needs: VecDeque<Need>,
    failed: Vec<String>,
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
                self.tell(Change { origin, needs: VecDeque::new(), failed });
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
        self.pending.now = Some(Change { origin, needs, failed });
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
            Need::Uplink(asked) => Wanted::Uplink(asked.clone()),
            Need::Device(entry) => {
                let listens = match entry.way() {
                    Way::Socket(path) => !self.handed.has(&self.folder.join(path)),
                    Way::Connect(_) => false,
                };
                Wanted::Device { entry: entry.clone(), listens }
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
        let (more, failed) = match need {
            Need::Text => match found.and_then(|found| self.read_again(found)) {
                Ok(more) => more,
                Err(error) => (Vec::new(), vec![format!("{error:#}")]),
            },
            Need::Uplink(asked) => {
                let found = found.and_then(|(found, with)| Ok((found, with?)));
                let found = found.with_context(|| format!("uplink of {}", asked.switch));
                let added =
                    found.and_then(|(found, with)| match (found, with.into_iter().next()) {
                        (Found::Uplink, Some(out)) => self.add_uplink(&asked, Some(out)),
                        _ => bail!("the process that opens files can't be understood"),
                    });
                (Vec::new(), added.err().map(|error| format!("{error:#}")).into_iter().collect())
            }
            Need::Device(entry) => {
                let name = entry.name().to_owned();
                let added = found.and_then(|found| self.add_opened(*entry, found));
                let failed = added.err().map(|error| format!("{name}: {error:#}"));
                (Vec::new(), failed.into_iter().collect())
            }
        };
        if let Some(change) = &mut self.pending.now {
            change.needs.extend(more);
            change.failed.extend(failed);
        }
    }

    /// The file's text has come: what is new in it, and what is wrong.
    fn read_again(&mut self, found: Given) -> Result<(Vec<Need>, Vec<String>)> {
        let file = self.file.clone().context("there is no file")?;
        let (Found::Text, Some(text)) = (found.0, found.1?.into_iter().next()) else {
            bail!("{} didn't come", file.display());
        };
        let shown = file.display();
        let read = text::taken(text, LONGEST_TEXT);
        let read = read.with_context(|| format!("{shown} can't be read"))?;
        let read = String::from_utf8(read).with_context(|| format!("{shown} isn't text"))?;
        Ok(match config::parse(&file, &read) {
            Ok(plan) if !self.refused(&plan).is_empty() => (Vec::new(), self.refused(&plan)),
            Ok(plan) => {
                let mut needs: Vec<_> =
                    self.keep_uplinks(&plan).into_iter().map(Need::Uplink).collect();
                needs.extend(devices(self.keep(&plan)));
                (needs, Vec::new())
            }
            Err(wrong) => (Vec::new(), wrong.iter().map(ToString::to_string).collect()),
        })
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
        let door = build::door(entry.way(), &self.folder, &mut self.handed, listener)?;
        let data: Result<Option<Data>> = data.map(|told| told.with(&mut next)).transpose();
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
        let Some((Need::Device(entry), opener)) = need.zip(self.pending.opener.take()) else {
            return;
        };
        // The socket is closed after its file is gone, so nobody takes the file for left over.
        if let Ok(Some((Found::Device { listens, .. }, _with))) = opener.answer() {
            leave_nothing(&entry, listens);
        }
    }

    fn tell(&mut self, change: Change) {
        let Change { origin, failed, .. } = change;
        match origin {
            Origin::Client(place) if failed.is_empty() => clients::tell(self, place, &Answer::Done),
            Origin::Client(place) => clients::tell(self, place, &Answer::Failed(failed)),
            Origin::Signal if failed.is_empty() => {
                eprintln!("exitless-io: the file was read again")
            }
            Origin::Signal => failed.iter().for_each(|what| eprintln!("exitless-io: {what}")),
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
    entries.into_iter().map(Box::new).map(Need::Device).collect()
}
