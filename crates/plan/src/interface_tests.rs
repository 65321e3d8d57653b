//! Each rule of interfaces, broken alone; and how they are written.

use super::*;
use crate::{Backing, Control, Disk, file::parse, sample};

fn interface(switch: &str, last: u8) -> Interface {
    Interface {
        switch: switch.into(),
        mac: Mac([2, 0, 0, 0, 0, last]),
        vlan: None,
        queues: 1,
        mtu: DEFAULT_MTU,
        rate: None,
        flood: None,
        kicks: false,
    }
}

fn vm(name: &str, core: u32, interfaces: Vec<Interface>) -> Vm<()> {
    Vm { interfaces, ..sample::vm(name, core) }
}

fn plan() -> Plan<()> {
    let web = vm("web", 1, vec![interface("lan", 1), interface("store", 2)]);
    let mut plan = Plan::new(vec![web, vm("db", 2, vec![interface("store", 3)])]);
    plan.sidecores = vec![3];
    plan
}

/// The sentence that a plan gets after `spoil` changed it.
fn sentence(spoil: impl FnOnce(&mut Plan<()>)) -> String {
    let mut plan = plan();
    assert_eq!(plan.check(), Ok(()));
    spoil(&mut plan);
    plan.check().expect_err("the spoilt plan must be refused").to_string()
}

#[test]
fn what_just_keeps_to_every_limit_passes() {
    let mut plan = plan();
    let all = Interface {
        vlan: Some(4094),
        queues: 7,
        mtu: 65535,
        rate: Some(1),
        flood: Some(1),
        ..interface("x", 9)
    };
    let least = Interface { vlan: Some(1), mtu: 1280, ..interface(&"s".repeat(32), 10) };
    plan.vms[0].interfaces.extend([all, least]);
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn interfaces_are_ones_that_can_be_served() {
    let of_one = |spoil: fn(&mut Interface)| sentence(|plan| spoil(&mut plan.vms[0].interfaces[1]));
    let found = [
        of_one(|i| i.switch.clear()),
        of_one(|i| i.switch = "a b".into()),
        of_one(|i| i.switch = "s".repeat(33)),
        of_one(|i| i.mac = Mac([1, 0, 0, 0, 0, 0])),
        of_one(|i| i.mac = Mac([2, 0, 0, 0, 0, 1])),
        of_one(|i| i.vlan = Some(0)),
        of_one(|i| i.vlan = Some(4095)),
        of_one(|i| i.queues = 0),
        of_one(|i| i.queues = 8),
        of_one(|i| i.mtu = 1279),
        of_one(|i| i.rate = Some(0)),
        of_one(|i| i.flood = Some(0)),
    ];
    let wrong =
        "can't name a switch; use 1 to 32 letters, digits, `-` and `_`, a letter or digit first";
    let expected = [
        format!("switch: `` {wrong}"),
        format!("switch: `a b` {wrong}"),
        format!("switch: `{}` {wrong}", "s".repeat(33)),
        "mac: 01:00:00:00:00:00 can't be an interface's address: it is a group's, or nobody's; with 02 as its first byte it can".into(),
        "mac: 02:00:00:00:00:01 is the address of [vm.web] network0 already; give one of them another, such as mac = \"02:00:00:00:00:02\", or leave `mac` out".into(),
        "vlan: 0 is no VLAN; they are 1 to 4094, and without one leave the key out".into(),
        "vlan: 4095 is no VLAN; they are 1 to 4094, and without one leave the key out".into(),
        "queues: 0 is out of range; a network may have 1 to 7 pairs of queues".into(),
        "queues: 8 is out of range; a network may have 1 to 7 pairs of queues".into(),
        "mtu: an MTU of 1279 is out of range; use 1280 to 65535".into(),
        "rate: with a rate of 0 nothing could be sent; give one such as \"100M/s\"".into(),
        "flood: with a flood of 0 no frame could be for all, and no station would be found; give one such as \"10M/s\"".into(),
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.strip_prefix("[vm.web] network1 "), Some(&*expected), "{found}");
    }
    let taken = sentence(|plan| plan.vms[1].interfaces[0].mac = Mac([2, 0, 0, 0, 0, 2]));
    assert!(
        taken.contains(
            "[vm.db] network0 mac: 02:00:00:00:00:02 is the address of [vm.web] network1"
        ),
        "{taken}"
    );
}

#[test]
fn they_need_a_sidecore_and_room_on_the_bus() {
    assert_eq!(
        sentence(|plan| plan.sidecores.clear()),
        "[vm.web] network: a sidecore serves it, and the plan has none; give it a core with sidecores = 1 in [host]"
    );
    assert_eq!(
        sentence(|plan| plan.vms[1].interfaces = (9..14).map(|n| interface("lan", n)).collect()),
        "[vm.db] network: 5 networks are given; a VM may have at most 4"
    );
}

#[test]
fn a_switch_has_one_sidecore_with_all_its_ports() {
    let mut plan = plan();
    plan.sidecores = vec![3, 4, 5];
    let disk = Disk {
        size: 1 << 20,
        backing: Backing::Null,
        read_only: false,
        serial: String::new(),
        queues: 2,
        image: None,
        control: Control::default(),
    };
    plan.vms[1].disks = vec![disk; 3];
    assert_eq!(plan.switches(), ["lan", "store"]);
    let of = |name| plan.sidecore_of_switch(name);
    assert_eq!([of("lan"), of("store"), of("other")], [Some(0), Some(1), None]);
    assert_eq!([0, 1, 2].map(|disk| plan.sidecore_of_disk(disk)), [Some(2), Some(0), Some(1)]);
    assert_eq!(plan.served_queues(), [3 + 2, 6 + 2, 2]);
    plan.sidecores.clear();
    assert_eq!((plan.sidecore_of_switch("lan"), plan.sidecore_of_disk(0)), (None, None));
}

#[test]
fn too_many_ports_for_one_sidecore_are_told() {
    let many = |plan: &mut Plan<()>| {
        let mut number = 9;
        for at in 0..5 {
            let ports = [0; 4].map(|_| {
                number += 1;
                Interface { queues: 3, ..interface("store", number) }
            });
            plan.vms.push(vm(&format!("v{at}"), 10 + at, ports.into()));
        }
        // A second one is no help: the ports of a switch stay together.
        plan.sidecores.push(4);
    };
    assert_eq!(
        sentence(many),
        "[host] sidecores: core 4 would have 146 queues of disks and networks to serve, and a sidecore has at most 128; give the host one more, or devices fewer queues"
    );
}

#[test]
fn addresses_that_are_derived_are_a_station_s_own() {
    let mut seen = std::collections::BTreeSet::new();
    for vm in ["a", "b", "web", "web1", "web2", ""] {
        for index in 0..MAX_INTERFACES {
            let mac = derived_mac(vm, index);
            assert!(mac.is_a_stations() && mac.0[0] == 2 && seen.insert(mac.0), "{mac}");
        }
    }
    // What guests know their interfaces by: another version of the program finds the same.
    assert_eq!(derived_mac("web", 0).to_string(), "02:fe:10:96:2e:09");
}

/// What `network` of a VM comes to in a file.
fn read(says: &str) -> Result<Vec<Interface>, String> {
    let text = format!("[host]\nsidecores = 1\n[vm.web]\ncpus = [1, 1]\nkernel = 'k'\n{says}\n");
    parse("f", &text).map(|plan| plan.vms[0].interfaces.clone()).map_err(|e| e.to_string())
}

#[test]
fn what_a_file_leaves_out_is_filled_in() {
    let usual =
        |index| Interface { mac: derived_mac("web", index), queues: 2, ..interface("lan", 0) };
    assert_eq!(read("network = { switch = 'lan' }"), Ok(vec![usual(0)]));
    let list = "network = [{ switch = 'lan' }, { switch = 'lan', vlan = 0x10, queues = 1 }]";
    let second = Interface { vlan: Some(16), queues: 1, ..usual(1) };
    assert_eq!(read(list), Ok(vec![usual(0), second]));
    let tables = "[[vm.web.network]]\nswitch = 'lan'\n[[vm.web.network]]\nswitch = 'lan'\nrate = '1M/s'\nflood = '1K/s'";
    let second = Interface { rate: Some(1 << 20), flood: Some(1 << 10), ..usual(1) };
    assert_eq!(read(tables), Ok(vec![usual(0), second]));
}

#[test]
fn what_is_wrong_in_a_file_has_its_line() {
    for (says, expected) in [
        (
            "network = 'lan'",
            "network: this is a string, but it has to be a table such as { switch = \"lan\" }, or a list of such tables",
        ),
        (
            "network = {}",
            "network0: it has no `switch`; name one, such as switch = \"lan\", and VMs that name the same can reach each other",
        ),
        (
            "network = { switch = 1 }",
            "network0 switch: this is a number, but it has to be a switch's name in quotes, such as \"lan\"",
        ),
        ("network = { swich = 'a' }", "network0: unknown key `swich`; did you mean `switch`?"),
        ("network = { vlan = 4095 }", "network0 vlan: `4095` is out of range; use 1 to 4094"),
        (
            "network = { vlan = '1' }",
            "network0 vlan: this is a string, but it has to be a whole number, that of a VLAN, such as 10",
        ),
        (
            "network = { flood = 10 }",
            "network0 flood: this is a number, but it has to be a rate in quotes, such as \"10M/s\"",
        ),
        ("network = { flod = '1M/s' }", "network0: unknown key `flod`; did you mean `flood`?"),
        ("network = { queues = 0 }", "network0 queues: `0` is out of range; use 1 to 7"),
        ("network = { mtu = 70000 }", "network0 mtu: `70000` is out of range; use 1280 to 65535"),
        (
            "network = { rate = '5' }",
            "network0 rate: `5` is no rate; write bytes in a second with K, M, G or T, such as \"100M/s\"",
        ),
        (
            "network = { mac = '5' }",
            "network0 mac: `5` is no MAC address; write six pairs of hexadecimal digits, such as \"02:00:00:00:00:01\"",
        ),
        (
            "network = { switch = '' }",
            "network0 switch: `` can't name a switch; use 1 to 32 letters, digits, `-` and `_`, a letter or digit first",
        ),
    ] {
        assert_eq!(read(says).unwrap_err(), format!("f:6: [vm.web] {expected}"));
    }
    let elsewhere = read("switch = 'lan'").unwrap_err();
    assert!(
        elsewhere
            .ends_with("it belongs into a VM's network, such as network = { switch = \"lan\" }"),
        "{elsewhere}"
    );
    let twice = "network = [{ switch = 'a' },\n{ switch = 'a', mac = '02:00:00:00:00:01' },\n{ switch = 'a', mac = '02:00:00:00:00:01' }]";
    let said = read(twice).unwrap_err();
    assert!(
        said.starts_with(
            "f:8: [vm.web] network2 mac: 02:00:00:00:00:01 is the address of [vm.web] network1"
        ),
        "{said}"
    );
}
