//! Network controllers: Debian's kernel with its own driver on each, under each policy, two VMs at
//! a time; and what is refused of them.

use super::case::{Case, Expect, Expected, Guest, Special};
use super::cases::{case, guest};
use super::kernel::Variant;
use exitless::network::NicModel;
use ledger::Reason;
use plan::{Coalesce, Coalescing, DeviceName, Mac, Network, Policy};
use std::ops::RangeInclusive;

/// What a megabyte each way takes at the least, with frames of 1,500 bytes and any number of them
/// to an interrupt that Linux makes of it.
const SOME: RangeInclusive<u64> = 50..=u64::MAX;
const NONE: RangeInclusive<u64> = 0..=0;
/// The address that QEMU gives the first controller.
const FIRST_MAC: Mac = Mac([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
const GIVEN: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Eli, Policy::Direct] {
        let name = |what| format!("nic/{what}-{}", policy.label());
        let whole = [linux("nic0", "driver=igb ", policy), linux("nic1", "driver=e1000e ", policy)];
        let machine = Special::Nics([NicModel::Igb, NicModel::E1000e]);
        cases.push(Case { machine, ..case(name("whole"), false, whole) });
        let parts = [
            linux("nic0.vf0", "driver=igbvf ", policy),
            linux("nic0.vf1", "driver=igbvf ", policy),
        ];
        cases.push(Case {
            networks: vec![network(Some(3), &[GIVEN])],
            ..case(name("functions"), false, parts)
        });
        cases.push(case(name("moving"), false, [moving(policy)]));
        if policy == Policy::Trap {
            continue;
        }
        // Once, in the middle of it; then all goes as before. How a device is reset doesn't depend
        // on the policy, and what takes its interrupts away and back is the same for trap and eli.
        let resets = |device, driver| {
            let guest = linux(device, driver, policy);
            let says = [guest.says, vec!["@exitless resets received="]].concat();
            Guest { options: "exitless.resets=1", says, ..guest }
        };
        let pair = [resets("nic0.vf0", "driver=igbvf "), resets("nic1", "driver=e1000e ")];
        let machine = Special::Nics([NicModel::Igb, NicModel::E1000e]);
        cases.push(Case { machine, ..case(name("resets"), false, pair) });
    }
    let parts = ["nic0.vf0", "nic0.vf1"].map(|name| linux(name, "driver=igbvf ", Policy::Direct));
    let machine = Special::NicBehindPort;
    cases.push(Case { machine, ..case("nic/behind-port".to_owned(), false, parts) });
    cases.push(held_back());
    cases.extend(refusals());
    cases
}

/// A VM with Debian's kernel that takes an address by DHCP and has a megabyte sent back.
pub fn linux(device: &str, driver: &'static str, policy: Policy) -> Guest {
    let device_exits = [Reason::DeviceInterrupt, Reason::DeviceEoi];
    Guest {
        tests: "",
        variant: Variant::Linux,
        devices: vec![name(device)],
        end: Expected::PowerOff,
        says: vec![driver, "address=10.0.2.", "@exitless echoed bytes=1048576"],
        counts: match policy {
            Policy::Trap => device_exits.map(|r| (r, SOME)).into(),
            Policy::Direct => device_exits.map(|r| (r, NONE)).into(),
            _ => Vec::new(),
        },
        // How often it is in injection mode when one arrives is chance, but it mostly isn't.
        by_host: (policy == Policy::Eli).then_some(50),
        incident: None,
        ..guest("hello", policy)
    }
}

/// The same with three CPUs, three queues each way, and no interrupt that stays where it was.
pub fn moving(policy: Policy) -> Guest {
    Guest {
        cpus: 3,
        options: "exitless.streams=4 exitless.moving=1",
        says: vec!["moved vectors=7 cpus=3", "@exitless echoed bytes=1048576 streams=4"],
        ..linux("nic0", "", policy)
    }
}

/// A virtual function whose interrupts the host has its throttle hold back, after each 20 ms with a
/// frame in them.
fn held_back() -> Case {
    let coalesce = Coalesce::On(Coalescing {
        in_flight: 1,
        rate: 50,
        epoch_us: 20_000,
        deferral_us: 0,
        adapted: false,
    });
    Case {
        networks: vec![Network { coalesce, ..network(None, &[GIVEN]) }],
        log: vec!["nic0.vf0 held interrupts back after"],
        ..case(
            "nic/held-back-direct".to_owned(),
            false,
            [linux("nic0.vf0", "driver=igbvf ", Policy::Direct)],
        )
    }
}

fn refusals() -> Vec<Case> {
    let refused = |words: &[&'static str]| Expect::Refused(words.to_vec());
    let rejected = |words: &[&'static str]| Expect::Rejected(words.to_vec());
    let one = |what: &str, device, networks, expect| {
        let guest = Guest { devices: vec![name(device)], ..guest("hello", Policy::Eli) };
        Case { networks, expect, ..case(format!("refuse/{what}"), false, [guest]) }
    };
    let twice = vec![network(None, &[GIVEN, GIVEN])];
    vec![
        one(
            "function-absent",
            "nic0.vf4",
            vec![network(Some(4), &[])],
            rejected(&["nic0.vf4", "vfs = 4"]),
        ),
        one("function-address", "00:18.6", vec![network(Some(3), &[])], refused(&["00:18.6"])),
        one(
            "functions-too-many",
            "nic0.vf0",
            vec![network(Some(9), &[])],
            refused(&["nic0", "00:08.0", "at most 8", "9 are asked"]),
        ),
        Case {
            machine: Special::Nics([NicModel::E1000e; 2]),
            quick: true,
            ..one("no-functions", "nic0.vf0", vec![], refused(&["nic0", "00:08.0", "no SR-IOV"]))
        },
        one(
            "mac-twice",
            "nic0.vf0",
            twice,
            rejected(&["network.nic0", "02:00:00:00:00:01", "twice"]),
        ),
        one(
            "mac-of-controller",
            "nic0.vf0",
            vec![network(None, &[FIRST_MAC])],
            refused(&["nic0", "vf0", "52:54:00:12:34:56"]),
        ),
        one(
            "shared-whole",
            "nic0",
            vec![network(Some(1), &[])],
            rejected(&["nic0", "stays the host's"]),
        ),
        one(
            "shared-by-address",
            "00:08.0",
            vec![network(Some(1), &[])],
            refused(&["00:08.0", "stays the host's"]),
        ),
    ]
}

fn network(vfs: Option<u8>, macs: &[Mac]) -> Network {
    Network { nic: 0, vfs, macs: macs.to_vec(), uplink: None, coalesce: Coalesce::Off }
}

/// # Panics
/// When it is no device's name.
fn name(text: &str) -> DeviceName {
    text.parse().expect("the names here are well formed")
}
