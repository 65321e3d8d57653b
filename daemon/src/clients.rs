//! The control socket and that of metrics, with those who are connected; and what they ask for.

use crate::clock::HERTZ;
use crate::control::{Answer, Client, MAX_CLIENTS, MAX_WAITING, Request};
use crate::home::Home;
use crate::listen;
use crate::metrics::Told;
use crate::pending::Origin;
use crate::report::Report;
use crate::waits::{Source, Waits};
use anyhow::{Context as _, Result, anyhow};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Uid, geteuid, umask};
use slab::Slab;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A socket that people come to.
struct Desk {
    listener: UnixListener,
    file: PathBuf,
    /// Who may come.
    own: Uid,
}

/// Who asks.
#[derive(Default)]
pub struct Clients {
    control: Option<Desk>,
    metrics: Option<Desk>,
    all: Slab<Client>,
    told: Told,
    /// Nobody more is let in before this time, as the system refused.
    pub again_at: Option<u64>,
}

/// What is made meanwhile is its owner's alone, from the first moment on.
fn privately<T>(make: impl FnOnce() -> T) -> T {
    let before = umask(Mode::from_raw_mode(0o177));
    let made = make();
    umask(before);
    made
}

/// Is whoever is at the other end this user, or root? The socket's file says the same, but not of
/// descriptors that are passed on.
fn is_allowed(socket: &OwnedFd, own: Uid) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// A socket that is its owner's alone.
fn new(path: &Path) -> Result<UnixListener> {
    let listener = privately(|| listen::at(path))?;
    // A folder's own rules for new files may come before the mask.
    set_permissions(path, Permissions::from_mode(0o600))
        .with_context(|| format!("{} can't be made its owner's alone", path.display()))?;
    Ok(listener)
}

fn desk(path: &Path, listener: UnixListener, source: Source, waits: &Waits) -> Result<Desk> {
    let file = path.to_owned();
    listener.set_nonblocking(true)?;
    waits.add(&listener, source)?;
    Ok(Desk { listener, file, own: geteuid() })
}

impl Clients {
    /// Listens at these sockets, which are their owner's alone.
    pub fn listen(
        &mut self,
        control: Option<&Path>,
        metrics: Option<&Path>,
        waits: &Waits,
    ) -> Result<()> {
        let open = |path: &Path, source| desk(path, new(path)?, source, waits);
        let control = control.map(|path| {
            open(path, Source::Control).map_err(|error| match listen::all().iter().any(|it| it == path) {
                true => anyhow!("{error:#}; what a daemon serves there `exitless-io list --control {0}` shows, and `upgrade` takes over", path.display()),
                false => error,
            })
        });
        self.control = control.transpose()?;
        self.metrics = metrics.map(|path| open(path, Source::Metrics)).transpose()?;
        Ok(())
    }

    /// Listens at these sockets, which another program made.
    pub fn take_over(
        &mut self,
        control: Option<(PathBuf, OwnedFd)>,
        metrics: Option<(PathBuf, OwnedFd)>,
        waits: &Waits,
    ) -> Result<()> {
        let open = |(path, listener): (PathBuf, OwnedFd), source| {
            desk(&path, listener.into(), source, waits)
        };
        self.control = control.map(|one| open(one, Source::Control)).transpose()?;
        self.metrics = metrics.map(|one| open(one, Source::Metrics)).transpose()?;
        Ok(())
    }

    /// The control socket and that of metrics, with their files.
    pub fn desks(&self) -> [Option<(&Path, BorrowedFd<'_>)>; 2] {
        [&self.control, &self.metrics]
            .map(|desk| desk.as_ref().map(|desk| (desk.file.as_path(), desk.listener.as_fd())))
    }

    /// The socket of a client, once more.
    pub fn socket(&self, place: usize) -> Result<OwnedFd> {
        let client = self.all.get(place).context("nobody asks")?;
        client.as_fd().try_clone_to_owned().context("there are too many files")
    }

    /// Somebody comes.
    pub fn let_in(&mut self, metrics: bool, now: u64, waits: &Waits) {
        let desk = if metrics { &self.metrics } else { &self.control };
        let Some(desk) = desk else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&desk.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // Such as too many files: who waits there is told of again and again.
            Err(error) => {
                let shown = desk.file.display();
                eprintln!("exitless-io: nobody comes in at {shown} for a second: {error}");
                let desks = [&self.control, &self.metrics].into_iter().flatten();
                desks.for_each(|desk| waits.remove(&desk.listener));
                self.again_at = Some(now.saturating_add(HERTZ));
                return;
            }
        };
        // With too many, the one that came is shown the door; and who may only look, at the socket
        // where things are changed.
        let may = metrics || is_allowed(&socket, desk.own);
        // Those who may only look take no places of those who may change something.
        let there = self.all.iter().filter(|(_, one)| one.metrics == metrics).count();
        if may && there < MAX_CLIENTS {
            let client = Client::new(socket, metrics);
            if waits.add(client.as_fd(), Source::Client(self.all.vacant_key())).is_ok() {
                self.all.insert(client);
            }
        }
    }

    /// Lets people in again whose time has come.
    pub fn try_again(&mut self, now: u64, waits: &Waits) {
        if self.again_at.is_none_or(|at| at > now) {
            return;
        }
        self.again_at = None;
        for (desk, source) in [(&self.control, Source::Control), (&self.metrics, Source::Metrics)] {
            if let Some(desk) = desk {
                let _ = waits.add(&desk.listener, source);
            }
        }
    }

    /// The sockets are no more.
    pub fn close(&self) {
        for desk in [&self.control, &self.metrics].into_iter().flatten() {
            let _ = std::fs::remove_file(&desk.file);
        }
    }
}

/// Hears one of them, and does what it asks for. What takes a while is answered later.
pub fn attend(home: &mut Home, place: usize) {
    let Some(client) = home.clients.all.get_mut(place) else { return };
    let heard = client.go_on().and_then(|()| client.hear());
    let metrics = client.metrics;
    let done = heard.and_then(|request| {
        let Some(request) = request else { return Ok(()) };
        let answer = if metrics {
            let now = home.rings.look_at_clock();
            let mut told = std::mem::take(&mut home.clients.told);
            let answer = told.answer(now, || home.report());
            home.clients.told = told;
            answer
        } else {
            match serde_json::from_slice(request.as_bytes()) {
                Ok(Request::List) => line(&Answer::Report(home.report()))?,
                Ok(request) => return begin(home, place, request),
                Err(error) => line(&Answer::Failed(vec![format!("this is no request: {error}")]))?,
            }
        };
        home.clients.all.get_mut(place).map_or(Ok(()), |client| client.answer(&answer))
    });
    attended(home, place, done);
}

/// Has a change begin, for which the client waits unless it is done at once. Some places are never
/// waited at: who looks comes in, and so does the upgrade that helps against what doesn't end.
fn begin(home: &mut Home, place: usize, request: Request) -> Result<()> {
    let waiting = home.clients.all.iter().filter(|(_, client)| client.is_waiting).count();
    if waiting >= MAX_WAITING && !matches!(request, Request::Upgrade(_)) {
        let why = format!("{waiting} others wait for their changes; try again later");
        let told = line(&Answer::Failed(vec![why]));
        let client = home.clients.all.get_mut(place).context("nobody asks")?;
        let told = told.and_then(|answer| client.answer(&answer));
        attended(home, place, told);
        return Ok(());
    }
    if let Some(client) = home.clients.all.get_mut(place) {
        client.is_waiting = true;
        home.waits.remove(client.as_fd());
    }
    home.change(Origin::Client(place), request);
    Ok(())
}

/// Answers a client that waits.
pub fn tell(home: &mut Home, place: usize, answer: &Answer) {
    let Home { clients, waits, .. } = home;
    let Some(client) = clients.all.get_mut(place).filter(|client| client.is_waiting) else {
        return;
    };
    let told = line(answer).and_then(|answer| client.answer(&answer));
    let told = told.and_then(|()| waits.add(client.as_fd(), Source::Client(place)));
    attended(home, place, told);
}

fn line(answer: &Answer) -> Result<String> {
    Ok(serde_json::to_string(answer).context("the answer can't be written")? + "\n")
}

fn attended(home: &mut Home, place: usize, done: Result<()>) {
    let Home { clients, waits, .. } = home;
    let Some(client) = clients.all.get(place).filter(|client| !client.is_waiting) else { return };
    if done.is_err() || client.is_over() {
        waits.remove(client.as_fd());
        clients.all.remove(place);
    } else {
        waits.change(client.as_fd(), Source::Client(place), client.is_behind());
    }
}

/// One line about a report's time, for people.
pub fn summary(now: &Report, before: &Report) -> String {
    let age = now.at.saturating_sub(before.at).max(1);
    let part = |now: u64, before: u64| 100.0 * now.saturating_sub(before) as f64 / age as f64;
    format!(
        "busy {:5.1} %   polling {:5.1} %   asleep {:5.1} %   {:.0} sleeps/s",
        part(now.busy, before.busy),
        part(now.polling, before.polling),
        part(now.asleep, before.asleep),
        now.sleeps.saturating_sub(before.sleeps) as f64 * HERTZ as f64 / age as f64,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_private_from_the_first_moment_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = privately(|| listen::at(&path)).expect("it can be made");
        let there = path.metadata().expect("it is there");
        assert_eq!(there.permissions().mode() & 0o777, 0o600);
        drop(listener);
    }

    #[test]
    fn the_control_socket_is_for_its_user_and_root() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let (ours, own) = (OwnedFd::from(ours), geteuid());
        assert!(is_allowed(&ours, own));
        let other = Uid::from_raw(own.as_raw() + 1);
        assert_eq!(is_allowed(&ours, other), own.is_root());
    }
}
