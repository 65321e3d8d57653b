//! Eventfds of front ends: kicks and calls.
//!
//! Guarantees: what isn't an eventfd is refused, since other descriptors could make this program
//! wait. A kick is never read: the loop is told of each write by edge.
//!
//! Not guaranteed: a front end shares the file's flags and counter with this program. One that sets
//! it to blocking again and fills the counter at the right moment would make a call wait.

use anyhow::{Context as _, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, Stat, fcntl_setfl, fstat};
use std::sync::OnceLock;

/// What the system says of files that have no name, such as eventfds.
fn nameless() -> Option<(u64, u64, u32)> {
    static KNOWN: OnceLock<Option<(u64, u64, u32)>> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let own = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        fstat(&own).ok().map(|stat| of(&stat))
    })
}

fn of(stat: &Stat) -> (u64, u64, u32) {
    (stat.st_dev, stat.st_ino, stat.st_mode)
}

/// An eventfd of the front end, which doesn't make this program wait.
pub fn event(descriptor: OwnedFd) -> Result<OwnedFd> {
    let stat = fstat(&descriptor).context("a descriptor says nothing of itself")?;
    if nameless() != Some(of(&stat)) {
        bail!("a descriptor for kicks or calls isn't an eventfd");
    }
    fcntl_setfl(&descriptor, OFlags::RDWR | OFlags::NONBLOCK)
        .context("an eventfd can't be made non-blocking")?;
    Ok(descriptor)
}

/// Tells the other side. If the counter is full, it was told already.
pub fn signal(descriptor: &OwnedFd) {
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}
