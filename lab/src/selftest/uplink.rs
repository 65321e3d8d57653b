//! Uplinks: two switches, each with a network controller that a sidecore drives, and one wire
//! between the two. What the VMs send each other crosses it, and is compared by their kernels.

use super::case::{Case, Expect, Guest, Special};
use super::cases::{case, guest};
use super::kernel::Variant;
use super::network;
use super::switch::{self, at, pair};
use exitless::network::NicModel;
use plan::{Coalesce, Interface, Network, Policy};

/// The controllers, as QEMU has them: at the places of `nic0` and `nic1`, on one hub.
pub const WIRE: [&str; 8] = [
    "-netdev",
    "hubport,id=wire0,hubid=0",
    "-device",
    "igb,netdev=wire0,romfile=,addr=0x8",
    "-netdev",
    "hubport,id=wire1,hubid=0",
    "-device",
    "igb,netdev=wire1,romfile=,addr=0xa",
];

/// What a controller's line at the end has in front of its numbers.
const SENT: &str = ") has sent ";
/// The case whose network is outside.
const OUTSIDE: &str = "virtio/uplink-outside-direct";

/// All of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, quick, policy, vlan, sidecores| {
        let mut guests = pair("net-exchange", policy);
        for (guest, switch) in guests.iter_mut().zip(["one", "two"]) {
            for interface in &mut guest.interfaces {
                *interface = Interface { switch: switch.into(), vlan, ..interface.clone() };
            }
        }
        let case = case(format!("virtio/uplink-{name}"), quick, guests);
        let networks = vec![uplink(0, "one"), uplink(1, "two")];
        Case { sidecores, networks, machine: Special::Wired, ..case }
    };
    let mut cases = vec![
        of("direct", true, Policy::Direct, None, 1),
        of("eli", false, Policy::Eli, None, 2),
        of("vlan-direct", false, Policy::Direct, Some(7), 1),
    ];
    cases.push(between());
    cases.push(outside());
    cases.extend(refused());
    cases
}

/// Two VMs with Debian's kernel, each at a switch of its own: what they leave to the wire, the
/// controllers do.
fn between() -> Case {
    let mut guests = switch::linux(Policy::Direct);
    for (guest, switch) in guests.iter_mut().zip(["one", "two"]) {
        guest.interfaces.iter_mut().for_each(|one| one.switch = switch.to_owned());
    }
    let case = case("virtio/uplink-linux-direct".to_owned(), false, guests);
    let networks = vec![uplink(0, "one"), uplink(1, "two")];
    Case { sidecores: 1, networks, machine: Special::Wired, ..case }
}

/// One whose network is outside of the machine: five connections at once, there and back. What five
/// have under way, 64 KiB each, fits into a queue's ring: QEMU holds frames back for a controller
/// that has no buffer at all, and drops those for a queue without one.
fn outside() -> Case {
    let guest = Guest {
        devices: Vec::new(),
        interfaces: vec![at("lan", 1, 0)],
        options: "exitless.streams=5 exitless.bytes=262144",
        says: vec![
            "driver=virtio_net ",
            "address=10.0.2.",
            "@exitless echoed bytes=262144 streams=5",
        ],
        ..network::linux("nic0", "", Policy::Direct)
    };
    let case = case(OUTSIDE.to_owned(), false, [guest]);
    Case { sidecores: 1, networks: vec![uplink(0, "lan")], ..case }
}

/// What controllers say at the end that they did must fit what was sent.
pub fn complaints(case: &Case, log: &[String]) -> Vec<String> {
    let uplinks = case.networks.iter().filter(|one| one.uplink.is_some());
    let wrong = uplinks.filter_map(|one| {
        let nic = format!("nic{} (", one.nic);
        let line = log.iter().find(|line| line.contains(&nic) && line.contains(SENT));
        let Some(line) = line else { return Some(format!("{nic}…{SENT}… isn't in the log")) };
        let rest = line.split_once(SENT).map_or("", |(_, rest)| rest);
        let numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        // Kernels of tests leave no checksum to others; connections of one are spread.
        let left = u64::from(case.has(Variant::Linux));
        let spread = if case.name == OUTSIDE { 2 } else { 1 };
        let right = matches!(numbers[..], [sent, by, _, summed, cut, received, from, _, bad, resets]
            if sent > 0 && by > 0 && summed >= left && cut >= left
                && received > 0 && from >= spread && (bad, resets) == (0, 0));
        (!right).then(|| format!("{line:?} isn't right: {left} or more of each, {spread} queues"))
    });
    wrong.collect()
}

/// What can't be had.
fn refused() -> [Case; 3] {
    let of = |name: &str, devices: &[&str], expect| {
        let devices = devices.iter().filter_map(|device| device.parse().ok()).collect();
        let interfaces = vec![at("one", 1, 0)];
        let guest = Guest { devices, interfaces, ..guest("hello", Policy::Eli) };
        let case = case(format!("refuse/uplink-{name}"), false, [guest]);
        Case { sidecores: 1, networks: vec![uplink(0, "one")], expect, ..case }
    };
    let words = vec!["nic0", "VM", "first", "uplink stays the host's"];
    let too = of("assigned-too", &["nic0"], Expect::Rejected(words));
    // The same controller by its address.
    let words = vec!["00:08.0", "first", "as a switch's uplink", "nic0"];
    let alias = of("assigned-by-address", &["00:08.0"], Expect::Refused(words));
    let words = vec!["nic0", "00:08.0", "no Intel 82576"];
    let other = of("of-another-kind", &[], Expect::Refused(words));
    let other = Case { machine: Special::Nics([NicModel::E1000e; 2]), ..other };
    [too, alias, other]
}

/// A controller that is a switch's way out.
pub fn uplink(nic: u8, switch: &str) -> Network {
    Network {
        nic,
        vfs: None,
        macs: Vec::new(),
        uplink: Some(switch.to_owned()),
        coalesce: Coalesce::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_controller_says_is_looked_at() {
        let line = |numbers: [u64; 7]| {
            let [sent, by, summed, cut, received, from, resets] = numbers;
            vec![format!(
                "nic0 (00:08.0) has sent {sent} frames by {by} of 4 queues, made the checksums of {summed} and cut {cut}; has received {received} by {from} of 4, 0 bad; was reset {resets} times"
            )]
        };
        let good = [9, 1, 3, 2, 8, 2, 0];
        assert_eq!(complaints(&outside(), &line(good)), [""; 0]);
        for (at, bad) in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)] {
            let mut numbers = good;
            numbers[at] = bad;
            assert_eq!(complaints(&outside(), &line(numbers)).len(), 1, "{numbers:?}");
        }
        assert_eq!(complaints(&outside(), &[]).len(), 1);
    }
}
