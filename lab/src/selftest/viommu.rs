//! The guest's own virtio-iommu: the test kernel's driver, with a sidecore that polls it and
//! without, and an attacker beside a neighbour. What the report says of any guest's own IOMMU.

use super::case::{Case, Expect, Guest};
use super::cases::{again, case, guest, heartbeat, nvme};
use super::units::{self, cost, polled};
use exitless::report::VmReport;
use plan::{GuestIommu, Policy};

/// Bytes of pages that the test maps again at once; half of them may come late on a busy computer.
const CAME_BACK: u64 = 1000 * 4096 / 2;

/// Host instructions that a map and an unmap may cost, each with its exit.
const PAIR_BUDGET: u64 = 8_600;

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
        ..guest("viommu-optimistic", Policy::Direct)
    };
    let optimistic = Guest { counts: Vec::new(), ..optimistic };
    cases.push(polled(case("viommu/optimistic".to_owned(), true, [optimistic])));
    let by_exits = behind(guest("viommu", Policy::Direct));
    cases.push(case("viommu/translated-exits".to_owned(), false, [by_exits]));
    cases.push(polled(case("viommu/no-exit".to_owned(), true, [counted("exits=0")])));
    cases.push(case("viommu/one-exit".to_owned(), true, [counted("exits=1")]));
    cases.push(polled(case("viommu/restart".to_owned(), false, restart())));
    cases.push(case("viommu/restart-exits".to_owned(), false, restart()));
    cases.push(cost(
        PAIR_BUDGET,
        case("viommu/cost".to_owned(), true, [behind(guest("viommu-cost", Policy::Direct))]),
    ));
    // What the audit finds is an error in the log, and no case may have one.
    cases.push(polled(case("viommu/hostile".to_owned(), false, attacker("seed=1"))));
    cases.push(case("viommu/hostile-exits".to_owned(), false, attacker("seed=2")));
    cases.extend(units::all());
    let alone = Guest { devices: Vec::new(), ..behind(guest("hello", Policy::Direct)) };
    let expect = Expect::Rejected(vec!["[vm.first] iommu", "nothing would be behind"]);
    cases.push(Case { expect, ..case("viommu/nothing-behind".to_owned(), false, [alone]) });
    cases
}

/// What the hypervisor says of mappings that came back, before they were taken away.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    units::reported(guest, vm, wrong);
    let bytes = vm.paravirtual.total().bytes;
    let optimistic = matches!(
        guest.iommu,
        GuestIommu::VirtioOptimistic | GuestIommu::VtDOptimistic | GuestIommu::AmdViOptimistic
    );
    if optimistic && bytes < CAME_BACK {
        wrong.push(format!("{bytes} bytes of mappings came back, {CAME_BACK} wanted at least"));
    }
}
