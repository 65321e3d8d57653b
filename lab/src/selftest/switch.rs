//! Paravirtual networks: two VMs with the test kernel's virtio-net driver at a switch, under each
//! policy, on cores of their own and beside a neighbour; and what a switch keeps apart.

use super::case::{Case, Cores, Expected, Guest};
use super::cases::{again, case, guest, heartbeat, nothing_by_host};
use super::kernel::Variant;

use exitless::report::VmReport;
use ledger::Reason;
use plan::{Interface, Mac, Policy};
use proto::{Served, ServedDevice};

const POLICIES: [Policy; 4] = [Policy::Trap, Policy::EliDelivery, Policy::Eli, Policy::Direct];

/// Tests of two VMs with one interface each, and whether the quick test has them (under `direct`).
const TESTS: [(&str, bool); 4] =
    [("net-exchange", true), ("net-spoof", true), ("net-rate", false), ("net-reset", true)];

/// Frames of an exchange, each way, and kicks that may come to the host meanwhile.
const FRAMES: u64 = 3_000;
const MOST_KICKS: u64 = 20;
/// Frames that are sent in vain.
const APART: u64 = 1_000;
const SPOOFED: u64 = 875;
/// As the kernel knows it.
const RATE: u64 = 1 << 20;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in POLICIES {
        let quick = |quick| quick && policy == Policy::Direct;
        for (test, is_quick) in TESTS {
            let [asks, echoes] = pair(test, policy);
            let asks = Guest { interfaces: rated(test, asks.interfaces), ..asks };
            cases.push(served(policy, short(test), quick(is_quick), vec![asks, echoes]));
        }
        let one = Guest { interfaces: vec![at("lan", 1, 0)], ..guest("net-negotiation", policy) };
        let one = Guest { devices: Vec::new(), options: "peer=2", ..one };
        cases.push(served(policy, "negotiation", false, vec![one]));
        let [asks, echoes] = pair("net-restart", policy);
        let echoes = Guest { says: again("", policy).says, restarts: true, ..echoes };
        cases.push(served(policy, "restart", quick(true), vec![asks, echoes]));
        // The second interfaces are in different VLANs, or at different switches, of one sidecore
        // or of two.
        let vlans = [Interface { vlan: Some(7), ..at("lan", 1, 1) }, at("lan", 2, 1)];
        let numbers = [
            Interface { vlan: Some(6), ..at("lan", 1, 1) },
            Interface { vlan: Some(7), ..at("lan", 2, 1) },
        ];
        let switches = [at("one", 1, 1), at("other", 2, 1)];
        for (name, [first, second], sidecores) in [
            ("vlan", vlans, 1),
            ("vlans", numbers, 1),
            ("switches", switches.clone(), 1),
            ("switches-two-sidecores", switches, 2),
        ] {
            let [mut asks, mut echoes] = pair("net-apart", policy);
            asks.interfaces.push(first);
            echoes.interfaces.push(second);
            let case = served(policy, name, quick(name == "vlans"), vec![asks, echoes]);
            cases.push(Case { sidecores, ..case });
        }
        let vlan = |guest: Guest| Guest {
            interfaces: guest
                .interfaces
                .into_iter()
                .map(|i| Interface { vlan: Some(9), ..i })
                .collect(),
            ..guest
        };
        let within = pair("net-exchange", policy).map(vlan);
        cases.push(served(policy, "exchange-within-vlan", false, within.into()));
        let kicks = [
            ("net-kicked", "kicked"),
            ("net-halts", "kicked-halts"),
            ("net-reset", "kicked-reset"),
        ];
        for (test, name) in kicks {
            let quick = quick(name == "kicked");
            cases.push(served(policy, name, quick, pair(test, policy).map(kicked).into()));
        }
        if policy == Policy::Trap {
            let two = linux(policy).map(kicked);
            cases.push(served(policy, "kicked-linux", false, two.into()));
        }
        cases.extend(shared(policy));
        if matches!(policy, Policy::Eli | Policy::Direct) {
            cases.push(served(policy, "linux", false, linux(policy).into()));
        }
    }
    cases
}

/// Two VMs with Debian's kernel: netperf and a comparison between them, with offloads.
pub fn linux(policy: Policy) -> [Guest; 2] {
    let of = |number, options, says| Guest {
        tests: "",
        variant: Variant::Linux,
        interfaces: vec![at("lan", number, 0)],
        devices: Vec::new(),
        end: Expected::PowerOff,
        options,
        says,
        counts: if policy == Policy::Direct { nothing_by_host() } else { Vec::new() },
        ..guest("hello", policy)
    };
    let server = "exitless.workload=between exitless.role=server exitless.network=10.9.0.2/24";
    let client = "exitless.workload=between exitless.network=10.9.0.1/24 exitless.host=10.9.0.2 exitless.port=7 exitless.bytes=4194304";
    let says = vec![
        "driver=virtio_net ",
        "@exitless echoed bytes=4194304",
        "@exitless between rr=",
        "checksums=on tso=on",
    ];
    [of(1, client, says), of(2, server, vec!["driver=virtio_net ", "@exitless served"])]
}

/// Its driver tells of each frame, as it does where a classical host serves it.
fn kicked(mut guest: Guest) -> Guest {
    guest.interfaces.iter_mut().for_each(|interface| interface.kicks = true);
    guest
}

/// The same where another vCPU wants the core of the first, too.
fn shared(policy: Policy) -> Vec<Case> {
    if policy == Policy::Direct {
        return Vec::new();
    }
    let of = |test: &'static str| {
        // How many exits there are depends on who has the core when.
        let [asks, echoes] = pair(test, policy);
        let interfaces = rated(test, asks.interfaces);
        let asks = Guest { cores: Cores::First, counts: Vec::new(), interfaces, ..asks };
        let beside = Guest { cores: Cores::First, counts: Vec::new(), ..heartbeat("", policy) };
        // The other one has the next core to itself.
        let echoes = Guest { cores: Cores::At(2), ..echoes };
        let quick = test == "net-exchange" && policy == Policy::Eli;
        served(policy, &format!("shared-{}", short(test)), quick, vec![asks, beside, echoes])
    };
    TESTS.into_iter().map(|(test, _)| of(test)).collect()
}

/// `net/POLICY-TEST`, with a sidecore.
fn served(policy: Policy, test: &str, quick: bool, guests: Vec<Guest>) -> Case {
    let case = case(format!("virtio/net-{}-{test}", policy.label()), quick, []);
    Case { sidecores: 1, guests, ..case }
}

fn short(test: &str) -> &str {
    test.strip_prefix("net-").unwrap_or(test)
}

/// The one that begins, and the other.
pub fn pair(test: &'static str, policy: Policy) -> [Guest; 2] {
    let some = 1..=u64::MAX;
    let counts = match policy {
        _ if !matches!(test, "net-exchange" | "net-kicked") => Vec::new(),
        Policy::Trap => vec![(Reason::DeviceInterrupt, some.clone()), (Reason::DeviceEoi, some)],
        Policy::EliDelivery => vec![(Reason::DeviceInterrupt, 0..=0), (Reason::DeviceEoi, some)],
        _ => nothing_by_host(),
    };
    [(1, "peer=2"), (2, "peer=1")].map(|(number, options)| Guest {
        interfaces: vec![at("lan", number, 0)],
        devices: Vec::new(),
        options,
        counts: counts.clone(),
        ..guest(test, policy)
    })
}

fn rated(test: &str, interfaces: Vec<Interface>) -> Vec<Interface> {
    let rate = (test == "net-rate").then_some(RATE);
    interfaces.into_iter().map(|one| Interface { rate, ..one }).collect()
}

/// The interface with this place in the VM with this number.
pub fn at(switch: &str, number: u8, place: u8) -> Interface {
    Interface {
        switch: switch.to_owned(),
        mac: Mac([2, 0, 0, 0, place, number]),
        vlan: None,
        queues: 1,
        mtu: plan::DEFAULT_MTU,
        rate: None,
        flood: None,
        kicks: false,
    }
}

/// What the hypervisor says that it did for a VM's networks must fit what its kernel did.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    if guest.interfaces.is_empty() {
        return;
    }
    let of = |network, queue| vm.paravirtual.of(ServedDevice::Network(network), queue);
    let (received, sent) = (of(0, 0), of(0, 1));
    let begins = guest.options == "peer=2";
    let mut must = |right: bool, what: String| {
        if !right {
            wrong.push(what);
        }
    };
    match guest.tests {
        "net-exchange" | "net-kicked" => {
            let (out, back) = (sent.completed, received.completed);
            must(
                out >= FRAMES && back >= FRAMES,
                format!("{out} frames out and {back} in were reported, {FRAMES} wanted"),
            );
            let kicks = received.kicks + sent.kicks;
            let range =
                if guest.tests == "net-kicked" { MOST_KICKS + 1..=out } else { 0..=MOST_KICKS };
            must(range.contains(&kicks), format!("{kicks} kicks were reported, {range:?} wanted"));
            let Served { calls, dropped, .. } = received;
            must(
                calls > 0 && calls <= back,
                format!("{calls} calls were reported for {back} frames"),
            );
            must(dropped == 0, format!("{dropped} frames that came were reported as dropped"));
        }
        "net-apart" if begins => {
            let dropped = of(1, 1).dropped;
            must(
                dropped == APART,
                format!("{dropped} frames were reported as dropped, {APART} wanted"),
            );
        }
        "net-apart" => {
            let came = of(1, 0).completed;
            must(came == 0, format!("{came} frames were reported where none may come"));
        }
        // Those that greet before the other one is there are dropped, too.
        "net-spoof" if begins => {
            let dropped = sent.dropped;
            must(
                dropped >= SPOOFED,
                format!("{dropped} frames were reported as dropped, {SPOOFED} wanted"),
            );
        }
        _ if guest.interfaces.iter().any(|interface| interface.kicks) => {
            let kicks = received.kicks + sent.kicks;
            must(kicks > MOST_KICKS, format!("{kicks} kicks were reported, more are wanted"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_test_runs_under_each_policy_that_it_can() {
        let cases = all();
        let names: HashSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        for policy in POLICIES {
            for (test, _) in TESTS {
                let (label, test) = (policy.label(), short(test));
                assert!(names.contains(&*format!("virtio/net-{label}-{test}")));
                let shared = names.contains(&*format!("virtio/net-{label}-shared-{test}"));
                assert_eq!(shared, policy != Policy::Direct, "{label} {test}");
            }
        }
    }

    #[test]
    fn what_was_reported_must_fit() {
        let complaints = |tests: &'static str, which: usize, see: &[(u32, u32, Served)]| {
            let mut vm = VmReport::default();
            for (network, queue, served) in see {
                vm.paravirtual.see(ServedDevice::Network(*network), *queue, *served);
            }
            let mut wrong = Vec::new();
            reported(&pair(tests, Policy::Eli)[which], &vm, &mut wrong);
            wrong.len()
        };
        let good = Served { completed: FRAMES, calls: 5, kicks: 10, ..Served::default() };
        let kicked_often = Served { kicks: MOST_KICKS - 9, ..good };
        for (sent, wrong) in [(good, 1), (kicked_often, 0)] {
            assert_eq!(complaints("net-kicked", 0, &[(0, 0, good), (0, 1, sent)]), wrong);
            let mut vm = VmReport::default();
            vm.paravirtual.see(ServedDevice::Network(0), 0, good);
            vm.paravirtual.see(ServedDevice::Network(0), 1, sent);
            let mut said = Vec::new();
            let [guest, _] = pair("net-reset", Policy::Eli).map(kicked);
            reported(&guest, &vm, &mut said);
            assert_eq!(said.len(), wrong);
        }
        assert_eq!(complaints("net-exchange", 0, &[(0, 0, good), (0, 1, good)]), 0);
        let late = Served { kicks: 11, calls: 0, dropped: 1, completed: FRAMES - 1, ..good };
        assert_eq!(complaints("net-exchange", 1, &[(0, 0, late), (0, 1, good)]), 4);
        let lost = Served { dropped: APART, completed: APART, ..Served::default() };
        assert_eq!(complaints("net-apart", 0, &[(1, 1, lost)]), 0);
        assert_eq!(complaints("net-apart", 0, &[]), 1);
        assert_eq!(complaints("net-apart", 1, &[(1, 0, lost)]), 1);
        assert_eq!(
            complaints("net-spoof", 0, &[(0, 1, Served { dropped: SPOOFED - 1, ..lost })]),
            1
        );
        assert_eq!(complaints("net-spoof", 1, &[]), 0);
        assert_eq!(complaints("net-rate", 0, &[]), 0);
    }
}
