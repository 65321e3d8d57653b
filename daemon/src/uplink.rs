//! A switch's way out: a TAP of the host's, or one of its interfaces.
//!
//! Guarantees: a look brings a bounded number of frames, and no frame is waited for; one that goes
//! to many ports ends a look of a TAP early. Frames that the way out doesn't take are dropped, as
//! by a wire. What an interface reports is said once a second. Both ways they have virtio headers:
//! what a guest leaves to be done, checksums, TCP's segments and UDP's packets, the host does, and
//! the other way round; the switch has checked what a guest asks for, checks what comes, and does
//! what a guest or the host can't.

use crate::clock::HERTZ;
use crate::config::{self, Out};
use anyhow::{Context as _, Error, Result, anyhow, bail};
use daemon_os::{FRAMES, Mapping, Outgoing, Packets};
use net::header::HEADER_BYTES;
use net::{Finish, LONG_UPLINK_MEMORY, MAX_FRAME, PortNumber, Switch};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io::ErrorKind;
use std::path::Path;

/// Frames that are taken from a TAP in one look.
const FROM_TAP: u32 = 32;
/// Calls for frames of an interface in one look.
const CALLS: u32 = 2;
/// What they may cost in a look, in bytes as a switch charges them: as in a pass of a sidecore.
const COST: u64 = 64 << 10;
/// The most bytes of a frame, with its header and a tag.
const LONGEST: usize = HEADER_BYTES + MAX_FRAME as usize + 4;

/// A way out of a switch.
pub struct Uplink {
    pub switch: usize,
    asked: config::Uplink,
    /// The TAP was removed.
    is_gone: bool,
    /// When it may be said again what the interface reports.
    told_until: u64,
    port: PortNumber,
    to: To,
    /// What the switch keeps frames in.
    _memory: Mapping,
}

enum To {
    Tap { tap: OwnedFd, bytes: Box<[u8; LONGEST]> },
    Interface(Box<Packets>),
}

impl Uplink {
    /// At the switch of this place; opened, unless another program hands it over. `udp`: the host
    /// cuts packets of UDP.
    pub fn new(
        asked: &config::Uplink,
        handed: Option<OwnedFd>,
        udp: bool,
        place: usize,
        switch: &mut Switch,
    ) -> Result<Uplink> {
        let out = handed.map_or_else(|| opened(asked), Ok)?;
        let to = match &asked.out {
            Out::Tap(_) => To::Tap { tap: out, bytes: Box::new([0; LONGEST]) },
            Out::Packet(_) => To::Interface(Box::new(Packets::taken_over(out))),
        };
        let memory = Mapping::anonymous(LONG_UPLINK_MEMORY);
        let memory = memory.context("there is no memory for frames")?;
        let span = memory.span().context("there is no memory for frames")?;
        let port = switch.add_uplink(span, Finish::ByHeader { udp })?;
        switch.set_link(port, true);
        let asked = asked.clone();
        Ok(Uplink {
            switch: place,
            asked,
            is_gone: false,
            told_until: 0,
            port,
            to,
            _memory: memory,
        })
    }

    /// As the file says it.
    pub fn asked(&self) -> &config::Uplink {
        &self.asked
    }

    /// Its TAP or interface was removed.
    pub fn is_gone(&self) -> bool {
        match &self.to {
            To::Tap { .. } => self.is_gone,
            To::Interface(packets) => packets.is_gone(),
        }
    }

    /// The switch has it no more.
    pub fn leave(self, switch: &mut Switch) {
        switch.remove(self.port);
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.to {
            To::Tap { tap, .. } => tap.as_fd(),
            To::Interface(packets) => packets.as_fd(),
        }
    }

    /// Has frames that came go to their receivers. False: the TAP was removed.
    pub fn look(&mut self, switch: &mut Switch, now: u64) -> bool {
        let mut cost = 0;
        match &mut self.to {
            To::Tap { tap, bytes } => {
                for _ in 0..FROM_TAP {
                    if cost >= COST {
                        break;
                    }
                    let count = match read(&*tap, &mut bytes[..]) {
                        Ok(count) => count,
                        Err(Errno::BADFD) => {
                            switch.set_link(self.port, false);
                            self.is_gone = true;
                            return false;
                        }
                        Err(_) => break,
                    };
                    let frame = bytes.get(..count).unwrap_or_default();
                    cost += arrived(switch, self.port, frame, now);
                }
            }
            To::Interface(packets) => {
                for _ in 0..CALLS {
                    let count = packets.receive().unwrap_or_else(|error| {
                        // It comes up by itself, unless it was removed. A frame that the system
                        // has no header for is reported like that, too, and anybody may send such.
                        if now >= self.told_until {
                            self.told_until = now.saturating_add(HERTZ);
                            let switch = &self.asked.switch;
                            eprintln!("exitless-io: uplink of {switch}: its interface: {error}");
                        }
                        0
                    });
                    let frames = (0..count).map(|at| packets.came(at));
                    cost += frames.map(|it| arrived(switch, self.port, it, now)).sum::<u64>();
                    if count < FRAMES || cost >= COST {
                        break;
                    }
                }
            }
        }
        true
    }

    pub fn is_interface(&self) -> bool {
        matches!(self.to, To::Interface(_))
    }

    /// Sends what is to go out.
    pub fn send(&mut self, switch: &mut Switch) {
        match &mut self.to {
            To::Tap { tap, bytes } => {
                while let Some(leaving) = switch.leaving(self.port) {
                    let mut len = HEADER_BYTES;
                    bytes[..len].copy_from_slice(&leaving.header);
                    for part in leaving.parts {
                        let end = (len + part.len() as usize).min(bytes.len());
                        // The room is as long as the part, or a part of it.
                        let _ = part.read(0, &mut bytes[len..end]);
                        len = end;
                    }
                    let _ = write(&*tap, &bytes[..len]);
                }
            }
            To::Interface(packets) => loop {
                let leaving = std::iter::from_fn(|| switch.leaving(self.port)).take(FRAMES);
                let frames: Vec<Outgoing> = leaving
                    .map(|frame| Outgoing { header: frame.header, parts: frame.parts })
                    .collect();
                packets.send(&frames);
                if frames.len() < FRAMES {
                    return;
                }
            },
        }
    }
}

/// Is it there? It isn't opened.
///
/// # Errors
///
/// In a sentence.
pub fn looked_at(asked: &config::Uplink) -> Result<()> {
    let (Out::Tap(name) | Out::Packet(name)) = &asked.out;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let is_there = name_to_index(&socket, name) != Err(Errno::NODEV);
    match &asked.out {
        Out::Tap(_) if is_there && is_no_tap(name) => bail!("{}", no_tap(name)),
        Out::Packet(_) if is_there => {
            let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
            let socket = socket_with(family, kind, flags, None);
            socket.map(drop).map_err(|error| refused(name, error.into()))
        }
        Out::Tap(_) if !is_there => {
            bail!("there is no TAP {name}; `ip tuntap add mode tap name {name} user …` makes one")
        }
        Out::Packet(_) => {
            bail!("there is no interface {name}; `ip link` shows those that there are")
        }
        _ => Ok(()),
    }
}

/// Does the system say that there is such an interface, which is no TAP? What it says may be of
/// another network namespace's.
fn is_no_tap(name: &str) -> bool {
    let at = Path::new("/sys/class/net").join(name);
    at.exists() && !at.join("tun_flags").exists()
}

fn no_tap(name: &str) -> String {
    format!(
        "{name} is an interface, and no TAP; packet = \"{name}\" takes it as it is, and `ip tuntap \
         add mode tap name … user …` makes a TAP"
    )
}

/// Why an interface can't be taken, with what would be right.
fn refused(name: &str, error: std::io::Error) -> Error {
    let family = Some(Errno::AFNOSUPPORT.raw_os_error());
    if error.kind() == ErrorKind::PermissionDenied || error.raw_os_error() == family {
        return anyhow!(
            "frames of the interface {name} can't be taken without CAP_NET_RAW: a unit gives it by \
             AmbientCapabilities= and CapabilityBoundingSet=, with AF_PACKET in \
             RestrictAddressFamilies="
        );
    }
    Error::new(error).context(format!("frames of the interface {name} can't be taken"))
}

/// A TAP or an interface's socket, for a process that can't open it itself.
///
/// # Errors
///
/// In a sentence.
pub fn opened(asked: &config::Uplink) -> Result<OwnedFd> {
    match &asked.out {
        Out::Tap(name) => {
            // Who may make one would make one that leads nowhere, of a name that is mistyped.
            looked_at(asked)?;
            daemon_os::tap(name).with_context(|| format!("the TAP {name} can't be opened"))
        }
        Out::Packet(name) => {
            let packets = Packets::open(name).map_err(|error| refused(name, error))?;
            Ok(packets.into_socket())
        }
    }
}

/// A frame came, behind its header; or nothing. Gives what it cost.
fn arrived(switch: &mut Switch, port: PortNumber, bytes: &[u8], now: u64) -> u64 {
    let Some(inbox) = switch.inbox(port) else { return 0 };
    match inbox.write(0, bytes) {
        Ok(()) if !bytes.is_empty() => switch.arrived(port, bytes.len() as u32, now).charge,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::{Config, Mac, Parameters, Plan};
    use rustix::net::{SendFlags, send, socketpair};

    /// One look must not copy 32 frames to 60 ports, while all rings wait.
    #[test]
    fn a_frame_for_many_ends_a_look() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (host, tap) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let mut switch = Switch::new(64, 1);
        for number in 1..41 {
            let mac = Mac([2, 0, 0, 0, 0, number]);
            let config = Config::new(Parameters { mac, ..Parameters::default() }).unwrap();
            switch.add(config, Plan::default()).unwrap();
        }
        let asked = config::Uplink { switch: "lan".into(), out: Out::Tap("tap0".into()) };
        let mut uplink = Uplink::new(&asked, Some(tap), true, 0, &mut switch).unwrap();
        let mut frame = [0; HEADER_BYTES + 60];
        frame[HEADER_BYTES + 6..][..6].copy_from_slice(&[2, 1, 0, 0, 0, 1]);
        let mut looks = |to: [u8; 6]| {
            frame[HEADER_BYTES..][..6].copy_from_slice(&to);
            let before = switch.statistics(uplink.port).sent;
            for _ in 0..3 {
                send(&host, &frame, SendFlags::empty()).unwrap();
            }
            [(); 3].map(|()| {
                assert!(uplink.look(&mut switch, 1));
                switch.statistics(uplink.port).sent - before
            })
        };
        assert_eq!([1, 2, 3], looks([0xff; 6]));
        assert_eq!([3, 3, 3], looks([2, 0, 0, 0, 0, 1]));
    }
}
