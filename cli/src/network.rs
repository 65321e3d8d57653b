//! Network controllers of the emulated machine, and the network behind each.
//!
//! Every controller has a network of its own, run by QEMU in user mode: guests get their
//! addresses by DHCP (10.0.2.15 the first that asks) and reach what this machine reaches; nothing
//! reaches them but by the ports that are forwarded, and those only from this machine.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use std::{
    fmt::{self, Write},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    str::FromStr,
};

/// A network controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// What it is.
    pub model: NicModel,
    /// Ports of this machine that lead to guests behind it.
    pub forwards: Vec<Forward>,
}

/// The controllers to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NicModel {
    /// Intel 82576: eight queues, SR-IOV with eight virtual functions
    #[default]
    Igb,
    /// Intel 82574: two queues, no virtual functions
    E1000e,
}

/// A port of this machine passed on to a port of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Which controller: the `nic`th.
    pub nic: usize,
    /// TCP, not UDP.
    pub tcp: bool,
    /// The port of this machine, on its loopback address.
    pub port: u16,
    /// The guest's address, when it isn't the first that asked for one.
    pub address: Option<Ipv4Addr>,
    /// The guest's port.
    pub guest_port: u16,
}

impl NicModel {
    /// QEMU's name of the device.
    pub const fn label(self) -> &'static str {
        match self {
            NicModel::Igb => "igb",
            NicModel::E1000e => "e1000e",
        }
    }
}

impl Nic {
    /// What QEMU's `-netdev` takes for the network called `id`.
    pub fn netdev(&self, id: &str) -> String {
        let mut text = format!("user,id={id}");
        for forward in &self.forwards {
            // Writing to a string can't fail.
            let _ = write!(text, ",hostfwd={forward}");
        }
        text
    }
}

impl Forward {
    /// Fails if something has the port already.
    pub fn check_free(&self) -> Result<()> {
        let at = (Ipv4Addr::LOCALHOST, self.port);
        let bound =
            if self.tcp { TcpListener::bind(at).map(drop) } else { UdpSocket::bind(at).map(drop) };
        bound
            .map_err(|e| anyhow!("--forward: port {} of this machine can't be had: {e}", self.port))
    }
}

/// As QEMU writes it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.tcp { "tcp" } else { "udp" };
        write!(f, "{protocol}:127.0.0.1:{}-", self.port)?;
        if let Some(address) = self.address {
            write!(f, "{address}")?;
        }
        write!(f, ":{}", self.guest_port)
    }
}

impl FromStr for Forward {
    type Err = anyhow::Error;

    /// `[nicN:]tcp|udp:PORT:[ADDRESS:]GUEST-PORT`.
    fn from_str(text: &str) -> Result<Self> {
        forward(text).ok_or_else(|| {
            anyhow!(
                "`{}` forwards nothing; write protocol, port and the guest's port, such as tcp:8080:80, or with controller and guest's address nic1:udp:5353:10.0.2.16:53",
                text.escape_default()
            )
        })
    }
}

fn forward(text: &str) -> Option<Forward> {
    let mut parts: Vec<&str> = text.split(':').collect();
    let nic = match parts.first()?.strip_prefix("nic") {
        Some(number) => {
            parts.remove(0);
            number.parse().ok()?
        }
        None => 0,
    };
    let port = |text: &str| text.parse().ok().filter(|port| *port != 0);
    let (protocol, from, address, to) = match parts[..] {
        [protocol, from, to] => (protocol, from, None, to),
        [protocol, from, address, to] => (protocol, from, Some(address.parse().ok()?), to),
        _ => return None,
    };
    let tcp = match protocol {
        "tcp" => true,
        "udp" => false,
        _ => return None,
    };
    Some(Forward { nic, tcp, port: port(from)?, address, guest_port: port(to)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn netdev(forwards: &[&str]) -> String {
        let forwards = forwards.iter().map(|f| f.parse().unwrap()).collect();
        Nic { forwards, ..Nic::default() }.netdev("net0")
    }

    #[test]
    fn forwards_become_qemus() {
        assert_eq!(netdev(&[]), "user,id=net0");
        assert_eq!(
            netdev(&["tcp:8080:80", "nic3:udp:53:10.0.2.16:5353"]),
            "user,id=net0,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp:127.0.0.1:53-10.0.2.16:5353"
        );
        assert_eq!("nic3:udp:1:2".parse::<Forward>().unwrap().nic, 3);
    }

    #[test]
    fn what_forwards_nothing_is_refused_with_what_would() {
        let texts = [
            "",
            "tcp",
            "tcp:80",
            "80:80",
            "sctp:1:2",
            "tcp:0:80",
            "tcp:80:0",
            "tcp:65536:80",
            "tcp:1:guest:2",
            "nic:tcp:1:2",
            "nic-1:tcp:1:2",
            "tcp:1:2,guestfwd=x",
            "tcp:1:2:3:4",
        ];
        for text in texts {
            assert!(text.parse::<Forward>().is_err(), "{text}");
        }
        let error = "a\nb".parse::<Forward>().unwrap_err().to_string();
        assert!(
            error.starts_with("`a\\nb` forwards nothing; write ") && error.contains("tcp:8080:80")
        );
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let forward: Forward = format!("tcp:{port}:80").parse().unwrap();
        let error = forward.check_free().unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} of this machine can't be had")), "{error}");
        drop(taken);
        assert!(forward.check_free().is_ok());
    }

    proptest! {
        #[test]
        fn no_text_panics_or_adds_an_option(text in "(nic[0-9])?:?(tcp|udp)?[:0-9a-z,=.\\-]{0,20}") {
            if let Ok(forward) = text.parse::<Forward>() {
                prop_assert!(!forward.to_string().contains(','));
            }
        }
    }
}
