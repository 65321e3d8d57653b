//! Devices that a machine may have: which may go to different VMs, by where they are, and what the
//! log says of those that are of little use.

use super::case::{Case, Expect, Guest, Special};
use super::cases::{again, case, guest};
use plan::{DeviceName, GuestIommu, Policy};

/// One device with two functions, without ACS.
const ONE_DEVICE: &[&str] = &["edu,addr=3.0,multifunction=on", "edu,addr=3.1"];
/// Two endpoints (03:00.0, 04:00.0) below one switch, whose ports have no ACS.
const ONE_SWITCH: &[&str] = &[
    "pcie-root-port,id=root,addr=3,chassis=1",
    "x3130-upstream,id=switch,bus=root",
    "xio3130-downstream,id=left,bus=switch,chassis=2,slot=1",
    "xio3130-downstream,id=right,bus=switch,chassis=3,slot=2",
    "e1000e,bus=left,romfile=",
    "e1000e,bus=right,romfile=",
];
/// Two endpoints (01:00.0, 02:00.0) below ports that are functions of one device. The ports have
/// ACS, which is off until somebody switches it on.
const TWO_PORTS: &[&str] = &[
    "pcie-root-port,id=left,addr=3.0,chassis=1,multifunction=on",
    "pcie-root-port,id=right,addr=3.1,chassis=2",
    "e1000e,bus=left,romfile=",
    "e1000e,bus=right,romfile=",
];
/// Two endpoints' functions (01:00.0, 01:00.1) below one port.
const ONE_PORT: &[&str] = &[
    "pcie-root-port,id=above,addr=3,chassis=1",
    "e1000e,bus=above,addr=0.0,multifunction=on,romfile=",
    "e1000e,bus=above,addr=0.1,romfile=",
];

/// An endpoint (41:00.0) below a port of a second root bus, and one on the first.
const TWO_ROOTS: &[&str] = &[
    "edu,addr=3",
    "pxb-pcie,id=second,bus_nr=0x40,addr=4",
    "pcie-root-port,id=below,bus=second,chassis=9",
    "e1000e,bus=below,romfile=",
];

/// The same, with a second root bus that no IOMMU serves.
const NOT_SERVED: &[&str] = &[
    "edu,addr=3",
    "pxb-pcie,id=second,bus_nr=0x40,addr=4,bypass_iommu=on",
    "pcie-root-port,id=below,bus=second,chassis=9",
    "e1000e,bus=below,romfile=",
];

/// A controller (01:00.0) below a port.
const UNPLACED: &[&str] =
    &["edu,addr=3", "pcie-root-port,id=above,addr=4,chassis=1", "nvme,serial=unplaced,bus=above"];

/// All of them.
pub fn all() -> Vec<Case> {
    let apart = |name: &str, devices, [a, b]: [DeviceName; 2], expect| Case {
        machine: Special::Devices(devices),
        expect,
        ..case(format!("topology/{name}"), false, [vm(&[a]), vm(&[b])])
    };
    let refused = |words: &[&'static str]| {
        let words = words.iter().copied().chain(["ACS", "second", "first"]);
        Expect::Refused(words.collect())
    };
    let functions = [at(0, 3, 0), at(0, 3, 1)];
    let switch = [at(3, 0, 0), at(4, 0, 0)];
    let cards = [at(1, 0, 0), at(2, 0, 0)];
    let card = [at(1, 0, 0), at(1, 0, 1)];
    let policy = Some(Policy::Direct);
    let unplaced =
        Guest { devices: vec![at(0, 3, 0), at(1, 0, 0)], ..again("restart-devices", Policy::Eli) };
    vec![
        apart("one-device", ONE_DEVICE, functions, refused(&["00:03.1", "00:03.0"])),
        apart("one-switch", ONE_SWITCH, switch, refused(&["04:00.0", "03:00.0", "port 02:0"])),
        apart("one-port", ONE_PORT, card, refused(&["01:00.1", "01:00.0"])),
        apart("two-ports", TWO_PORTS, cards, Expect::Ends),
        apart("two-roots", TWO_ROOTS, [at(0, 3, 0), at(0x41, 0, 0)], Expect::Ends),
        apart(
            "not-served",
            NOT_SERVED,
            [at(0, 3, 0), at(0x41, 0, 0)],
            Expect::Refused(vec!["second", "41:00.0", "behind no IOMMU"]),
        ),
        Case {
            machine: Special::Devices(NOT_SERVED),
            log: vec!["no IOMMU serves 41:00.0, whose bus mastering is off"],
            ..case("topology/not-served-silenced".to_owned(), false, [vm(&functions[..1])])
        },
        // Its registers are found, used and found again after a reset.
        Case {
            machine: Special::Unplaced(UNPLACED),
            log: vec!["BAR 0 of 01:00.0, which firmware left without an address, is at 0x"],
            ..case("topology/unplaced".to_owned(), false, [unplaced])
        },
        Case {
            machine: Special::Devices(&["rtl8139,addr=3,romfile="]),
            log: vec!["device 00:03.0 has neither MSI nor MSI-X"],
            ..case("topology/intx-only".to_owned(), false, [vm(&functions[..1])])
        },
        Case {
            machine: Special::Devices(ONE_SWITCH),
            ..case("topology/together".to_owned(), false, [vm(&switch)])
        },
        // Its own hypervisor would take them for devices that have nothing in common.
        Case {
            machine: Special::Devices(ONE_SWITCH),
            expect: Expect::Refused(vec!["04:00.0", "03:00.0", "port 02:0", "its own hypervisor"]),
            ..case(
                "topology/handed-on".to_owned(),
                false,
                [Guest { nested: true, iommu: GuestIommu::VtD, policy, ..vm(&switch) }],
            )
        },
    ]
}

fn at(bus: u8, device: u8, function: u8) -> DeviceName {
    DeviceName::Address { segment: 0, bus, device, function }
}

fn vm(devices: &[DeviceName]) -> Guest {
    Guest { devices: devices.to_vec(), ..guest("hello", Policy::Eli) }
}
