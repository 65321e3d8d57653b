//! Eventfds of front ends: kicks and calls.
//!
//! Guarantees: what isn't an eventfd is refused, since other descriptors could make this program
//! wait: an epoll instance asks all that it watches. They look alike, but only an eventfd takes a
//! 0, which changes nothing; whoever waits for it is woken up once. A kick is never read: the loop
//! is told of each write by edge.
//!
//! A front end shares the file's flags and counter with this program. One that sets it to blocking
//! again and fills the counter has a call wait: for some milliseconds
//! ([`daemon_os::add_to_event`]), after which its connection ends, and the device takes no other
//! for a second.

use crate::foreign::Foreign;
use crate::memory::known_of;
use crate::pace::{Pace, is_slow, measured};
use anyhow::{Context as _, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_setfl};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file's device, its number there, and its mode.
type Known = (u32, u32, u64, u16);

/// What the system says of files that have no name, such as eventfds.
fn nameless() -> Option<Known> {
    static KNOWN: OnceLock<Option<Known>> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let own = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        of(&own).ok()
    })
}

/// Learns how to know eventfds, while the program may still make one.
pub fn prepare() -> Result<()> {
    nameless().map(|_| ()).context("an eventfd can't be made")
}

fn of(descriptor: &OwnedFd) -> Result<Known> {
    let known = known_of(descriptor).context("a descriptor says nothing of itself")?;
    Ok((known.stx_dev_major, known.stx_dev_minor, known.stx_ino, known.stx_mode))
}

/// An eventfd of the front end, which doesn't make this program wait.
pub fn event(descriptor: Foreign) -> Result<OwnedFd> {
    descriptor.known(check)
}

fn check(descriptor: &OwnedFd) -> Result<()> {
    if nameless() != Some(of(descriptor)?) {
        bail!("a descriptor for kicks or calls isn't an eventfd");
    }
    fcntl_setfl(descriptor, OFlags::RDWR | OFlags::NONBLOCK)
        .context("an eventfd can't be made non-blocking")?;
    let mut pace = Pace::default();
    loop {
        let (added, took) = measured(|| daemon_os::add_to_event(descriptor, 0));
        if !matches!(added, Ok(8)) {
            bail!("a descriptor for kicks or calls isn't an eventfd that can be written");
        }
        if !pace.allows(took) {
            bail!("so many wait for an eventfd that telling them took {took:?}");
        }
        if !is_slow(took) {
            return Ok(());
        }
    }
}

/// A call waited or took too long, and its ring says which one.
static HAS_WAITED: AtomicBool = AtomicBool::new(false);

/// How telling the other side went.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Well,
    /// The counter was full, and it was made to wait.
    Waited,
    /// So many wait for it that it took too long.
    Slowly,
}

/// Tells the other side. If the counter is full, it was told already.
pub fn signal(descriptor: &OwnedFd, pace: &mut Pace) -> Told {
    let write = || daemon_os::add_to_event(descriptor, 1);
    let waited = |error: std::io::Error| error.kind() == std::io::ErrorKind::Interrupted;
    let (is_suspected, mut is_slow) = (pace.is_suspected, false);
    let written = match is_suspected {
        false => write(),
        true => {
            let (written, took) = measured(write);
            is_slow = !pace.allows(took);
            written
        }
    };
    // The clock's ticks find those that take long, and some others, which are measured then.
    pace.is_suspected |= daemon_os::take_late();
    let told = match (written.is_err_and(waited), is_slow) {
        (true, _) => Told::Waited,
        (false, true) => Told::Slowly,
        (false, false) => return Told::Well,
    };
    HAS_WAITED.store(true, Ordering::Relaxed);
    told
}

/// Has any call waited since [`take_waited`]?
#[inline]
pub fn has_waited() -> bool {
    HAS_WAITED.load(Ordering::Relaxed)
}

/// The same, and it is forgotten.
pub fn take_waited() -> bool {
    HAS_WAITED.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    /// A count that is full is an eventfd's, too.
    #[test]
    fn only_eventfds_are() {
        daemon_os::watch_writes().expect("a handler");
        let made = |count| {
            let made = eventfd(count, EventfdFlags::NONBLOCK).expect("an eventfd");
            let copy = made.try_clone().expect("a copy");
            event(copy.into()).map(|_| made)
        };
        let empty = made(0).expect("it is one");
        let read = rustix::io::read(&empty, &mut [0; 8]);
        assert_eq!(read, Err(rustix::io::Errno::AGAIN), "nothing was added");
        let full = made(0).expect("it is one");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        assert!(event(full.into()).is_ok());
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll instance");
        assert!(event(set.into()).is_err());
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
        assert!(event(timer.expect("a timer").into()).is_err());
    }
}
