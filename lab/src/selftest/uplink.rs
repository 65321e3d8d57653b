//! Uplinks: two switches, each with a network controller that a sidecore drives, and one wire
//! between the two. What the VMs send each other crosses it, and is compared by their kernels.

use super::case::{Case, Expect, Guest, Special};
use super::cases::{case, guest};
use super::switch::{at, pair};
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
    cases.extend(refused());
    cases
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
