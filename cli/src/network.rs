//! Network controllers of the emulated machine, and the network behind each.
//!
//! Every controller has a network of its own, run by QEMU in user mode: guests get their
//! addresses by DHCP (10.0.2.15 the first that asks) and reach what this machine reaches; nothing
//! reaches them but by the ports that are forwarded, and those only from this machine.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use plan::Shown;
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
        forward(text).map_err(|why| {
            anyhow!(
                "{why}; write protocol, port and the guest's port, such as tcp:8080:80, or with controller and guest's address nic1:udp:5353:10.0.2.16:53"
            )
        })
    }
}

/// What the text asks for, or which part of it is wrong.
fn forward(text: &str) -> Result<Forward, String> {
    let no = |what: &str, part: &str| format!("`{}` is no {what}", Shown(part));
    let mut parts: Vec<&str> = text.split(':').collect();
    let nic = match parts.first().and_then(|first| first.strip_prefix("nic")) {
        Some(number) => {
            let controller = parts.remove(0);
            number.parse().map_err(|_| no("network controller, such as nic0", controller))?
        }
        None => 0,
    };
    let (protocol, from, address, to) = match parts[..] {
        [protocol, from, to] => (protocol, from, None, to),
        [protocol, from, address, to] => (protocol, from, Some(address), to),
        _ => {
            let amount = if parts.len() < 3 { "few" } else { "many" };
            return Err(format!("`{}` has too {amount} parts", Shown(text)));
        }
    };
    let tcp = match protocol {
        "tcp" => true,
        "udp" => false,
        _ => return Err(no("protocol that can be forwarded (tcp or udp)", protocol)),
    };
    let port = |text: &str| {
        let port = text.parse().ok().filter(|port| *port != 0);
        port.ok_or_else(|| no("port (1 to 65535)", text))
    };
    let guest = |text: &str| text.parse().map_err(|_| no("IPv4 address of a guest", text));
    let address = address.map(guest).transpose()?;
    Ok(Forward { nic, tcp, port: port(from)?, address, guest_port: port(to)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        thread,
        time::{Duration, Instant},
    };

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
        let cases = [
            ("", "`` has too few parts"),
            ("tcp", "`tcp` has too few parts"),
            ("tcp:80", "`tcp:80` has too few parts"),
            ("nic1:tcp:80", "`nic1:tcp:80` has too few parts"),
            ("tcp:1:2:3:4", "`tcp:1:2:3:4` has too many parts"),
            ("sctp:1:2", "`sctp` is no protocol that can be forwarded (tcp or udp)"),
            ("tcp:0:80", "`0` is no port (1 to 65535)"),
            ("tcp:80:0", "`0` is no port (1 to 65535)"),
            ("tcp:65536:80", "`65536` is no port (1 to 65535)"),
            ("tcp:1:2,guestfwd=x", "`2,guestfwd=x` is no port (1 to 65535)"),
            ("tcp:1:guest:2", "`guest` is no IPv4 address of a guest"),
            ("nic:tcp:1:2", "`nic` is no network controller, such as nic0"),
            ("nic-1:tcp:1:2", "`nic-1` is no network controller, such as nic0"),
            ("a\nb:1:2", "`a\\nb` is no protocol that can be forwarded (tcp or udp)"),
        ];
        for (text, wrong) in cases {
            let error = text.parse::<Forward>().unwrap_err().to_string();
            let said = format!("{wrong}; write protocol, port and the guest's port, such as tcp:");
            assert!(error.starts_with(&said), "{error}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let forward: Forward = format!("tcp:{port}:80").parse().unwrap();
        let error = forward.check_free().unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} of this machine can't be had")), "{error}");
        drop(taken);
        // A child of another test's has it, too, between fork and exec.
        let start = Instant::now();
        while forward.check_free().is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "it stays taken");
            thread::yield_now();
        }
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
