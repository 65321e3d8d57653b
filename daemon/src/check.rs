//! `exitless io check`: what a file would lead to, looked at without taking any of it.
//!
//! Guarantees: nothing is made, written, locked or served, and nobody who listens at a front end's
//! socket is connected to. Every mistake is a sentence with file, line, what was found and what
//! would be right; then it fails. A server is reached and not spoken to, since some end with their
//! first client; the daemon that runs with this file is asked what it serves, since that is in use
//! by right.
//!
//! Not guaranteed: that it is so later, that the service's user may what this one may, or that a
//! server has the export.

use crate::ask::Daemon;
use crate::build::{self, Entry};
use crate::clock::Clock;
use crate::config::{self, Backing, Disk, Host, Plan, Uplink, Way, Wrong};
use crate::listen;
use crate::output;
use crate::report::Report;
use crate::rings::Rings;
use crate::sandbox::folder;
use crate::show::RENEWED;
use crate::storage::{self, Access};
use crate::uplink;
use anyhow::Result;
use plan::{Escaped, Size};
use rustix::fs::{Access as Rights, access};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A file, while it is looked at.
struct Look<'a> {
    /// As it was asked for, and its text.
    file: &'a Path,
    text: &'a str,
    /// What the daemon serves that runs with it.
    running: Option<Report>,
    /// Sockets that somebody listens at.
    listening: Vec<PathBuf>,
    wrong: Vec<Wrong>,
}

/// Says what this file would lead to.
///
/// # Errors
///
/// All that is wrong.
pub fn run(file: &Path) -> Result<()> {
    let (_, text, plan, wrong) = crate::read_all(file)?;
    let control = plan.host.control.as_deref();
    let running = control.and_then(|control| Daemon::at(control).ok()?.report().ok());
    let listening = listen::all();
    let mut look = Look { file, text: &text, running, listening, wrong };
    look.plan(&plan)?;
    let wrong = config::by_line(look.wrong);
    if wrong.is_empty() {
        return output::print(&format!("{} is right\n", file.display()));
    }
    Err(crate::together(&wrong))
}

impl Look<'_> {
    /// Notes what is wrong with this key of this table.
    fn note(&mut self, at: &[&str], problem: impl Display) {
        self.wrong.push(config::wrong(self.file, self.text, at, problem));
    }

    fn plan(&mut self, plan: &Plan) -> Result<()> {
        // What opens nothing is made as it would be served, by nobody.
        let (mut rings, mut switches) = (Rings::new(Clock::system()), Vec::new());
        for entry in Entry::of(plan) {
            let before = self.wrong.len();
            let at = [entry.kind(), entry.name()];
            let is_served = self.is_served(&entry);
            let door = self.door(entry.way(), at, is_served);
            let what = match &entry {
                Entry::Disk(disk) if is_opened(disk) => self.data(disk, at, is_served),
                _ => match build::device(&entry, None, &mut rings, &mut switches) {
                    Ok(_) => entry.backing(),
                    Err(error) => {
                        self.note(&at, format!("{error:#}"));
                        String::new()
                    }
                },
            };
            let (name, kind) = (entry.name(), entry.kind());
            let is = match (self.wrong.len() > before, is_served) {
                (true, _) => "can't be served, as is said below".into(),
                (false, true) => format!("{what}{door}, is served now"),
                (false, false) => format!("{what}{door}"),
            };
            output::print(&format!("{name}: {kind}, {}\n", Escaped(&is)))?;
        }
        for asked in &plan.uplinks {
            let Uplink { switch, out } = asked;
            let is = match uplink::looked_at(asked) {
                Ok(()) => out.to_string(),
                Err(error) => {
                    self.note(&["uplink", switch], format!("{error:#}"));
                    "can't be had, as is said below".into()
                }
            };
            output::print(&format!("uplink of {}: {}\n", Escaped(switch), Escaped(&is)))?;
        }
        self.host(&plan.host);
        Ok(())
    }

    /// Does the daemon that runs with this file have this device at work?
    fn is_served(&self, entry: &Entry) -> bool {
        let socket = entry.way().path().display().to_string();
        let devices = self.running.iter().flat_map(|report| &report.devices);
        let mut own = devices.filter(|one| one.name == entry.name());
        own.any(|one| one.backing == entry.backing() && one.socket == socket)
    }

    /// How front ends would come, behind a comma.
    fn door(&mut self, way: &Way, at: [&str; 2], is_served: bool) -> String {
        let [kind, name] = at;
        let (key, path) = match way {
            Way::Socket(path) => ("socket", path),
            Way::Connect(path) => ("connect", path),
        };
        let shown = path.display();
        let is_there = self.listening.contains(path);
        let at = [kind, name, key];
        if let Err(error) = listen::is_short(path) {
            self.note(&at, error);
        } else if matches!(way, Way::Socket(_)) && is_served && !listen::is_there(path) {
            self.note(&at, format!("{shown} is gone: nobody can connect; {RENEWED}"));
        } else if matches!(way, Way::Socket(_)) && !is_served {
            self.can_be_made(path, &at);
        }
        match way {
            Way::Socket(_) if is_there && !is_served => {
                format!(", at {shown}, where systemd or another program listens by now")
            }
            Way::Socket(_) => format!(", at {shown}"),
            Way::Connect(_) if is_there => format!(", to {shown}"),
            Way::Connect(_) => format!(", to {shown}, where nobody listens yet"),
        }
    }

    /// Could a socket be made of this path?
    fn can_be_made(&mut self, path: &Path, at: &[&str]) {
        let folder = folder(path);
        let shown_folder = folder.display();
        if let Err(error) = listen::may_be(path) {
            self.note(at, error);
        } else if let Err(error) = access(&folder, Rights::WRITE_OK | Rights::EXEC_OK) {
            let problem = format!("this user can't make a socket in {shown_folder}: {error}");
            self.note(at, problem);
        }
    }

    /// What a disk's data would lie in.
    fn data(&mut self, disk: &Disk, [kind, name]: [&str; 2], is_served: bool) -> String {
        let (key, looked) = match &disk.backing {
            Backing::File { path, page_cache, raw, .. } => {
                let (read_only, page_cache, raw) = (disk.read_only, *page_cache, *raw);
                let access = Access { read_only, page_cache, raw };
                let size = storage::looked_at(path, access, !is_served);
                let said = size.map(|size| format!("{}, {}", Size(size), path.display()));
                ("file", said)
            }
            Backing::Nbd(server) if is_served => ("nbd", Ok(server.uri.clone())),
            Backing::Nbd(server) => {
                let reached = storage::reached(server);
                ("nbd", reached.map(|()| format!("{}, which is reached", server.uri)))
            }
            Backing::Nvme(part) => {
                let found = storage::found(&part.address);
                ("nvme", found.map(|()| part.address.clone()))
            }
            Backing::Ram(_) | Backing::Null(_) => return String::new(),
        };
        looked.unwrap_or_else(|error| {
            self.note(&[kind, name, key], format!("{error:#}"));
            String::new()
        })
    }

    fn host(&mut self, host: &Host) {
        for (key, path) in [("control", &host.control), ("metrics", &host.metrics)] {
            let Some(path) = path else { continue };
            if self.running.is_none() {
                self.can_be_made(path, &["host", key]);
                if self.listening.contains(path) {
                    let shown = path.display();
                    let problem = format!("{shown} is in use: another program listens there");
                    self.note(&["host", key], problem);
                }
            }
        }
        for path in host.paths.iter().filter(|path| !path.is_dir()) {
            let shown = path.display();
            self.note(
                &["host", "paths"],
                format!("{shown} is no folder; make it, or leave it out"),
            );
        }
    }
}

/// Is something opened for it that somebody else may have?
fn is_opened(disk: &Disk) -> bool {
    !matches!(disk.backing, Backing::Ram(_) | Backing::Null(_))
}
