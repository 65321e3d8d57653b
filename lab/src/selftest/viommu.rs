//! The guest's own IOMMU: the test kernel's driver, with a sidecore that polls it and without, and
//! an attacker beside a neighbour.

use super::case::{Case, Expect, Guest};
use super::cases::{again, case, guest, heartbeat, nvme};
use exitless::report::VmReport;
use plan::{GuestIommu, Policy};

/// The test of which the report says what came back.
const OPTIMISTIC: &str = "viommu-optimistic";
/// Bytes of pages that the test maps again at once; half of them may come late on a busy computer.
const CAME_BACK: u64 = 1000 * 4096 / 2;

/// All of them.
pub fn all() -> Vec<Case> {
    let behind = |guest: Guest| Guest { iommu: GuestIommu::Virtio, counts: Vec::new(), ..guest };
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Eli, Policy::Direct] {
        let translated = behind(guest("viommu", policy));
        let name = format!("viommu/translated-{}", policy.label());
        cases.push(polled(case(name, policy == Policy::Direct, [translated])));
    }
    let controller = || {
        let devices = vec![nvme(0)];
        Guest { devices, ..behind(guest("viommu-nvme", Policy::Direct)) }
    };
    let counted = |options| Guest { options, ..behind(guest("viommu-exits", Policy::Direct)) };
    let attacker = |options| {
        let attacker = Guest { options, ..behind(guest("viommu-hostile", Policy::Direct)) };
        [attacker, heartbeat("", Policy::Direct)]
    };
    let restart = || [behind(again("viommu-restart", Policy::Direct))];
    // Each with a sidecore, and by exits.
    cases.push(polled(case("viommu/nvme".to_owned(), false, [controller()])));
    cases.push(case("viommu/nvme-exits".to_owned(), true, [controller()]));
    let optimistic = Guest {
        iommu: GuestIommu::VirtioOptimistic,
        devices: vec![nvme(0)],
        ..guest(OPTIMISTIC, Policy::Direct)
    };
    let optimistic = Guest { counts: Vec::new(), ..optimistic };
    cases.push(polled(case("viommu/optimistic".to_owned(), true, [optimistic])));
    let by_exits = behind(guest("viommu", Policy::Direct));
    cases.push(case("viommu/translated-exits".to_owned(), false, [by_exits]));
    cases.push(polled(case("viommu/no-exit".to_owned(), true, [counted("exits=0")])));
    cases.push(case("viommu/one-exit".to_owned(), true, [counted("exits=1")]));
    cases.push(polled(case("viommu/restart".to_owned(), false, restart())));
    cases.push(case("viommu/restart-exits".to_owned(), false, restart()));
    // What the audit finds is an error in the log, and no case may have one.
    cases.push(polled(case("viommu/hostile".to_owned(), false, attacker("seed=1"))));
    cases.push(case("viommu/hostile-exits".to_owned(), false, attacker("seed=2")));
    cases.extend(vtd());
    let alone = Guest { devices: Vec::new(), ..behind(guest("hello", Policy::Direct)) };
    let expect = Expect::Rejected(vec!["[vm.first] iommu", "nothing would be behind"]);
    cases.push(Case { expect, ..case("viommu/nothing-behind".to_owned(), false, [alone]) });
    cases
}

/// The same of a VT-d unit.
fn vtd() -> Vec<Case> {
    let behind = |guest: Guest| Guest { iommu: GuestIommu::VtD, counts: Vec::new(), ..guest };
    let mut cases = Vec::new();
    for policy in [Policy::Eli, Policy::Direct] {
        let translated = || [behind(guest("vtd", policy))];
        let name = |what: &str| format!("vtd-guest/{what}-{}", policy.label());
        let quick = policy == Policy::Direct;
        cases.push(polled(case(name("translated"), quick, translated())));
        // Interrupts of a device, remapped by the guest, are no exits.
        let remapped = guest("vtd-interrupts", policy);
        let remapped = Guest { options: "exits=0", cpus: 2, ..behind(remapped) };
        cases.push(polled(case(name("interrupts"), quick, [remapped])));
    }
    let trapped = Guest { cpus: 2, ..behind(guest("vtd-interrupts", Policy::Trap)) };
    cases.push(case("vtd-guest/interrupts-trap".to_owned(), false, [trapped]));
    let by_exits = behind(guest("vtd", Policy::Direct));
    cases.push(case("vtd-guest/translated-exits".to_owned(), false, [by_exits]));
    let controller = || {
        let devices = vec![nvme(0)];
        Guest { devices, ..behind(guest("vtd-nvme", Policy::Direct)) }
    };
    cases.push(polled(case("vtd-guest/nvme".to_owned(), false, [controller()])));
    cases.push(case("vtd-guest/nvme-exits".to_owned(), true, [controller()]));
    let counted = |options| Guest { options, ..behind(guest("vtd-exits", Policy::Direct)) };
    cases.push(polled(case("vtd-guest/no-exit".to_owned(), true, [counted("exits=0")])));
    cases.push(case("vtd-guest/one-exit".to_owned(), true, [counted("exits=1")]));
    let attacker = |options| {
        let attacker = Guest { options, ..behind(guest("vtd-hostile", Policy::Direct)) };
        [attacker, heartbeat("", Policy::Direct)]
    };
    cases.push(polled(case("vtd-guest/hostile".to_owned(), false, attacker("seed=1"))));
    cases.push(case("vtd-guest/hostile-exits".to_owned(), false, attacker("seed=2")));
    let restart = || [behind(again("vtd-restart", Policy::Direct))];
    cases.push(polled(case("vtd-guest/restart".to_owned(), false, restart())));
    cases.push(case("vtd-guest/restart-exits".to_owned(), false, restart()));
    cases
}

/// What the hypervisor says of mappings that came back, before they were taken away.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    let bytes = vm.paravirtual.total().bytes;
    if guest.tests == OPTIMISTIC && bytes < CAME_BACK {
        wrong.push(format!("{bytes} bytes of mappings came back, {CAME_BACK} wanted at least"));
    }
}

/// The same with a sidecore.
fn polled(case: Case) -> Case {
    Case { sidecores: 1, ..case }
}
