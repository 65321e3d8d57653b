//! QEMU's image locks: bytes of the file stand for what a user does with it, and for what it lets
//! nobody else do (QEMU's `block/file-posix.c`). They are locks of an open file description, so
//! they last until the last descriptor of it is closed and the last I/O on it has ended.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;

/// The first byte for what is done, and for what others may not do.
const DONE: libc::off_t = 100;
const NOT_SHARED: libc::off_t = 200;
/// The permissions' bits: to read what is consistent, to write, to change the size.
const READ: libc::off_t = 0;
const WRITE: libc::off_t = 1;
const RESIZE: libc::off_t = 3;

/// What nobody else may do.
const OTHERS: [libc::off_t; 2] = [WRITE, RESIZE];

/// What another user of a file has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It writes to it, or changes its size.
    Writes,
    /// It lets nobody do what this program wants.
    Excludes,
}

/// Locks a file for reading it, and for writing if `writes`; others may read it only.
/// None: it is locked. What another has of it, if that can't be.
///
/// # Errors
///
/// The system's: the file system may have no such locks.
pub fn lock(file: impl AsFd, writes: bool) -> io::Result<Option<InUse>> {
    let file = file.as_fd();
    let done = done(writes);
    for bit in done {
        take(file, DONE + bit)?;
    }
    for bit in OTHERS {
        take(file, NOT_SHARED + bit)?;
    }
    let found = in_use(file, writes)?;
    if found.is_some() {
        let whole = range(libc::F_UNLCK, DONE, NOT_SHARED + 100 - DONE);
        call(file, libc::F_OFD_SETLK, whole)?;
    }
    Ok(found)
}

/// What keeps a file from being locked so. Nothing is taken.
///
/// # Errors
///
/// As for [`lock`].
pub fn in_use(file: impl AsFd, writes: bool) -> io::Result<Option<InUse>> {
    let file = file.as_fd();
    let mut found = None;
    for bit in OTHERS {
        if is_taken(file, DONE + bit)? {
            found = Some(InUse::Writes);
        }
    }
    for bit in done(writes) {
        if is_taken(file, NOT_SHARED + bit)? {
            found = found.or(Some(InUse::Excludes));
        }
    }
    Ok(found)
}

/// What a user does that reads, or writes, too.
fn done(writes: bool) -> &'static [libc::off_t] {
    if writes { &[READ, WRITE] } else { &[READ] }
}

/// Takes a byte, as any number of users may.
fn take(file: BorrowedFd<'_>, byte: libc::off_t) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, range(libc::F_RDLCK, byte, 1)).map(|_| ())
}

/// Has another user taken this byte?
fn is_taken(file: BorrowedFd<'_>, byte: libc::off_t) -> io::Result<bool> {
    let answer = call(file, libc::F_OFD_GETLK, range(libc::F_WRLCK, byte, 1))?;
    Ok(answer.l_type != libc::F_UNLCK as libc::c_short)
}

fn range(kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn call(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    mut lock: libc::flock,
) -> io::Result<libc::flock> {
    let lock_pointer: *mut libc::flock = &mut lock;
    // SAFETY: the command takes a `flock`, which is whole, and writes nothing else.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, lock_pointer) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(lock),
    }
}
