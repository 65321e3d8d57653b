//! A TAP: a network of the host's, by frames.

use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::io;

/// Bytes of an interface's name, the end's zero included.
const NAME: usize = libc::IFNAMSIZ;

/// Opens the TAP of this name; makes it if there is none and the user may. Reads and writes don't
/// wait, and are one frame each, without any header.
///
/// # Errors
///
/// In words if the name can't be one; else the system's.
pub fn tap(name: &str) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() >= NAME || name.bytes().any(|byte| byte == 0 || byte == b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name isn't an interface's"));
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: all zeroes is an `ifreq` without a name.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in asked.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    asked.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is whole, and the kernel reads and writes no more than an `ifreq`.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut asked) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
