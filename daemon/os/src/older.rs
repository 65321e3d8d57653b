//! What waits where `epoll_pwait2` isn't there: Linux before 5.11, and a program below valgrind.

use rustix::fd::{AsFd, AsRawFd as _};
use std::io;
use std::time::Duration;

/// Events that are taken at a time, at most.
const EVENTS: usize = 64;

/// Waits for so long at most, in whole milliseconds, no shorter; without a limit, until something
/// happens. Gives the numbers of what happened.
///
/// # Errors
///
/// The system's.
pub fn wait_by_epoll(epoll: impl AsFd, limit: Option<Duration>) -> io::Result<Vec<u64>> {
    let milliseconds = limit.map_or(-1, |limit| {
        i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    let (into, most) = (events.as_mut_ptr(), EVENTS as i32);
    // SAFETY: there are as many events as it is told, and each is whole already.
    let came = unsafe { libc::epoll_wait(epoll.as_fd().as_raw_fd(), into, most, milliseconds) };
    match usize::try_from(came) {
        Ok(came) => Ok(events.iter().take(came).map(|event| event.u64).collect()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
