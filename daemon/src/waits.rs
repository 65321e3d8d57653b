//! What the thread sleeps on: one epoll of all sockets, kicks and signals.
//!
//! Kicks are told by edge: each write of a front end once, without a read. A file that a front end
//! has, too, stays in an epoll after it is closed here: all are taken out by name.

use anyhow::{Context as _, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events that are taken at a time.
const EVENTS: usize = 64;

/// What happened, with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A front end wants in.
    Door(usize),
    /// A front end said something.
    Socket(usize),
    /// A ring was kicked.
    Kick(usize),
    /// A signal came.
    Signal,
    /// Somebody wants to know or to change something.
    Control,
    /// That one said something.
    Client(usize),
    /// Somebody wants the metrics.
    Metrics,
    /// A network behind a switch.
    Uplink(usize),
    /// A disk's back end has ended something.
    Storage(usize),
    /// The process that opens files has answered.
    Opener,
}

impl Source {
    fn data(self) -> EventData {
        let (kind, place) = match self {
            Source::Door(place) => (0, place),
            Source::Socket(place) => (1, place),
            Source::Kick(place) => (2, place),
            Source::Signal => (3, 0),
            Source::Control => (4, 0),
            Source::Client(place) => (5, place),
            Source::Metrics => (6, 0),
            Source::Uplink(place) => (7, place),
            Source::Storage(place) => (8, place),
            Source::Opener => (9, 0),
        };
        EventData::new_u64((place as u64) << 8 | kind)
    }

    fn of(word: u64) -> Source {
        let place = (word >> 8) as usize;
        match word & 0xff {
            0 => Source::Door(place),
            1 => Source::Socket(place),
            2 => Source::Kick(place),
            3 => Source::Signal,
            4 => Source::Control,
            5 => Source::Client(place),
            6 => Source::Metrics,
            7 => Source::Uplink(place),
            9 => Source::Opener,
            _ => Source::Storage(place),
        }
    }
}

/// The epoll.
pub struct Waits {
    epoll: OwnedFd,
    /// What was taken, up to the number of events.
    events: [MaybeUninit<Event>; EVENTS],
}

impl Waits {
    pub fn new() -> Result<Waits> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("the system has no epoll")?;
        Ok(Waits { epoll, events: [MaybeUninit::uninit(); EVENTS] })
    }

    /// Waits for this, too: as long as there is something to read, or for kicks once each.
    pub fn add(&self, file: impl AsFd, source: Source) -> Result<()> {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::ET, matches!(source, Source::Kick(_)));
        epoll::add(&self.epoll, file, source.data(), flags)
            .context("the system doesn't wait for a descriptor")
    }

    /// Waits for room to write, too, or not.
    pub fn change(&self, file: impl AsFd, source: Source, room: bool) {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, room);
        let _ = epoll::modify(&self.epoll, file, source.data(), flags);
    }

    /// No more. What isn't waited for may be removed, too.
    pub fn remove(&self, file: impl AsFd) {
        let _ = epoll::delete(&self.epoll, file);
    }

    /// Waits for at most so many nanoseconds; without a limit, until something happens.
    pub fn wait(&mut self, nanoseconds: Option<u64>) -> Result<Vec<Source>> {
        let limit = nanoseconds.map(|nanoseconds| Timespec {
            tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanoseconds % 1_000_000_000) as _,
        });
        match epoll::wait(&self.epoll, &mut self.events, limit.as_ref()) {
            Ok((came, _)) => Ok(came.iter().map(|event| Source::of(event.data.u64())).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(Errno::NOSYS) => {
                let limit = nanoseconds.map(Duration::from_nanos);
                match daemon_os::wait_by_epoll(&self.epoll, limit) {
                    Ok(came) => Ok(came.into_iter().map(Source::of).collect()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
                    Err(error) => Err(error).context("the system doesn't wait"),
                }
            }
            Err(error) => Err(error).context("the system doesn't wait"),
        }
    }
}
