//! A TAP: a network of the host's, by frames.

use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;

/// Bytes of an interface's name, the end's zero included.
const NAME: usize = libc::IFNAMSIZ;
/// Bytes of a virtio header, `num_buffers` included.
static HEADER: libc::c_int = 12;
/// What the host may leave to who reads: checksums, and segments of TCP.
const OFFLOADS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// And packets of UDP, since Linux 6.2: both kinds or none.
const PACKETS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// Opens the TAP of this name; makes it if there is none and the user may. Reads and writes don't
/// wait, and are one frame each, behind a virtio header of 12 bytes, of this machine's order. The
/// host may leave checksums, TCP's segments, and UDP's where it knows that, to who reads, and takes
/// those that are left to it.
///
/// # Errors
///
/// In words if the name can't be one; else the system's.
pub fn tap(name: &str) -> io::Result<OwnedFd> {
    let bytes = interface_name(name)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // By `open` the daemon's sandbox wouldn't let it.
    let file = openat(CWD, "/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: all zeroes is an `ifreq` without a name.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    asked.ifr_name = bytes;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    asked.ifr_ifru.ifru_flags = flags as libc::c_short;
    let tap = file.as_raw_fd();
    // SAFETY: the request is whole, and the kernel reads and writes no more than an `ifreq`.
    done(unsafe { libc::ioctl(tap, libc::TUNSETIFF, &raw mut asked) })?;
    // SAFETY: the kernel reads one number.
    done(unsafe { libc::ioctl(tap, libc::TUNSETVNETHDRSZ, &raw const HEADER) })?;
    let leave = |what: libc::c_uint| {
        // SAFETY: the argument is a number, and no address.
        done(unsafe { libc::ioctl(tap, libc::TUNSETOFFLOAD, libc::c_ulong::from(what)) })
    };
    leave(OFFLOADS | PACKETS).or_else(|_| leave(OFFLOADS))?;
    Ok(file)
}

/// Does the system cut packets of UDP that it is handed in one, by a TAP and by a packet socket?
/// Linux does since 6.2. Before that it loses them, and nothing that can be asked says so.
pub fn cuts_udp() -> bool {
    // SAFETY: all zeroes are empty texts.
    let mut system: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes no more than one.
    let told = unsafe { libc::uname(&raw mut system) } == 0;
    let release = system.release.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
    told && is_since(&String::from_utf8_lossy(&release.collect::<Vec<_>>()), (6, 2))
}

/// Is a release, such as `6.12.95-amd64`, this one or a later one?
fn is_since(release: &str, first: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= first
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An interface's name, as the kernel takes it.
///
/// # Errors
///
/// In words if it can't be one.
pub fn interface_name(name: &str) -> io::Result<[libc::c_char; NAME]> {
    if name.is_empty() || name.len() >= NAME || name.bytes().any(|byte| byte == 0 || byte == b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name isn't an interface's"));
    }
    let mut bytes = [0; NAME];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::is_since;

    #[test]
    fn releases_are_told_apart() {
        for (release, is_it) in [
            ("6.2.0", true),
            ("6.2", true),
            ("6.12.95-amd64", true),
            ("7.0-rc1", true),
            ("6.1.0-13-amd64", false),
            ("5.19.17", false),
            ("6", false),
            ("", false),
            ("next.9", false),
        ] {
            assert_eq!(is_since(release, (6, 2)), is_it, "{release}");
        }
    }
}
