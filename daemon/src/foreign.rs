//! Descriptors that front ends send along, and how they are closed.
//!
//! Who closes the last descriptor of a file may wait for others: for the server of a FUSE or NFS
//! file, for the peer of a socket with SO_LINGER, for a device. A front end can send any of them,
//! with any message. So another thread closes what isn't known to be harmless, and sockets
//! that may have some in them, whose end a third one tells the front end at once. They do nothing
//! else, and have given up all but that.
//!
//! Memory is harmless, and yet its last descriptor is closed apart ([`Lent`]): who closes it frees
//! all of its pages, which takes 90 ms for each GiB that a front end left behind.
//!
//! Guarantees: a descriptor of a front end is closed by the thread that serves only after it was
//! found to be an eventfd or memory ([`Foreign::known`]). Those that wait to be closed are counted
//! for their device, and are [`MOST`] and those of its last messages at most: who adds to them is
//! ended, and the device takes no front end until there are fewer.
//!
//! Not guaranteed: that they are closed soon. One that never ends has the others of this kind wait
//! for good, which are those of front ends that did something wrong.

use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::net::{Shutdown, shutdown};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

/// Descriptors of a device's front ends that may wait to be closed.
const MOST: usize = 64;

/// What is to be closed, and whose it is.
struct Left {
    file: OwnedFd,
    unclosed: Unclosed,
    /// A socket whose other side is to see its end at once.
    ends: bool,
}

/// Who closes them; before it is there, they are closed in place.
static CLOSER: OnceLock<Sender<Left>> = OnceLock::new();

/// Files of memory that may wait to be closed: more are closed in place.
const MOST_LENT: usize = 128;
/// Who closes those, and how many wait.
static FREER: OnceLock<Sender<OwnedFd>> = OnceLock::new();
static LENT: AtomicUsize = AtomicUsize::new(0);

/// Has others close them from now on, which `confine` themselves first.
///
/// # Errors
///
/// If there are no threads, or they can't be confined.
pub fn close_apart(confine: fn(bool) -> Result<()>, is_confined: bool) -> Result<()> {
    let (sender, left) = mpsc::channel::<Left>();
    let (pass, to_close) = mpsc::channel::<Left>();
    // This one waits for nobody.
    start(
        "ender",
        move || confine(is_confined),
        move || {
            for one in left {
                if one.ends {
                    let _ = shutdown(&one.file, Shutdown::Both);
                }
                let _ = pass.send(one);
            }
        },
    )?;
    start(
        "closer",
        move || confine(is_confined),
        move || {
            for Left { file, unclosed, .. } in to_close {
                drop(file);
                unclosed.0.fetch_sub(1, Ordering::Relaxed);
            }
        },
    )?;
    let _ = CLOSER.set(sender);
    let (sender, files) = mpsc::channel();
    start(
        "freer",
        move || confine(is_confined),
        move || {
            for file in files {
                drop::<OwnedFd>(file);
                LENT.fetch_sub(1, Ordering::Relaxed);
            }
        },
    )?;
    let _ = FREER.set(sender);
    Ok(())
}

/// A file of memory that a front end lent. Whoever closes the last descriptor of it, with no
/// mapping left, frees its pages: another thread does.
#[derive(Debug)]
pub struct Lent(Option<OwnedFd>);

impl Lent {
    pub fn new(file: OwnedFd) -> Arc<Lent> {
        Arc::new(Lent(Some(file)))
    }

    /// The file.
    pub fn borrow(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(OwnedFd::as_fd)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(file), Some(freer)) = (self.0.take(), FREER.get()) else { return };
        if LENT.fetch_add(1, Ordering::Relaxed) < MOST_LENT {
            let _ = freer.send(file);
        } else {
            LENT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Starts a thread, once it has confined itself.
fn start(
    name: &str,
    confine: impl FnOnce() -> Result<()> + Send + 'static,
    run: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let (told, is_ready) = mpsc::channel();
    daemon_os::spawn_deaf(name, move || {
        let confined = confine();
        let is_confined = confined.is_ok();
        let _ = told.send(confined);
        if is_confined {
            run();
        }
    })
    .context("the system gives no thread")?;
    is_ready.recv().context("a thread ended at once")?
}

/// How many of a device's wait to be closed.
#[derive(Clone, Debug, Default)]
pub struct Unclosed(Arc<AtomicUsize>);

impl Unclosed {
    /// Fails if there are too many.
    ///
    /// # Errors
    ///
    /// That.
    pub fn fits(&self) -> Result<()> {
        let count = self.0.load(Ordering::Relaxed);
        if count >= MOST {
            bail!("{count} descriptors that its front ends sent aren't closed yet");
        }
        Ok(())
    }
}

/// A descriptor of which nothing is known.
#[derive(Debug)]
pub struct Foreign {
    file: Option<OwnedFd>,
    unclosed: Unclosed,
}

impl Foreign {
    pub fn new(file: OwnedFd, unclosed: &Unclosed) -> Foreign {
        Foreign { file: Some(file), unclosed: unclosed.clone() }
    }

    /// To look at.
    pub fn borrow(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(OwnedFd::as_fd)
    }

    /// The descriptor, once this says that whoever closes it doesn't wait.
    ///
    /// # Errors
    ///
    /// What it says else.
    pub fn known(mut self, is_harmless: impl FnOnce(&OwnedFd) -> Result<()>) -> Result<OwnedFd> {
        is_harmless(self.file.as_ref().context("the descriptor is gone")?)?;
        self.file.take().context("the descriptor is gone")
    }
}

impl Foreign {
    /// Closes a socket; whoever is at its other side sees the end at once.
    pub fn end(mut self) {
        self.leave(true);
    }

    fn leave(&mut self, ends: bool) {
        if let Some(file) = self.file.take()
            && let Some(closer) = CLOSER.get()
        {
            self.unclosed.0.fetch_add(1, Ordering::Relaxed);
            let _ = closer.send(Left { file, unclosed: self.unclosed.clone(), ends });
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.leave(false);
    }
}

#[cfg(test)]
impl From<OwnedFd> for Foreign {
    fn from(file: OwnedFd) -> Foreign {
        Foreign::new(file, &Unclosed::default())
    }
}
