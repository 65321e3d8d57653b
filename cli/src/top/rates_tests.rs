//! Two states in, rates out.

use super::*;
use proptest::prelude::*;

/// The machine's clock in these tests.
const HZ: u64 = 1_000_000;

/// A vCPU at TSC `now` with so many exits for CPUID, port I/O and HLT.
fn vcpu(now: u64, host_cycles: u64, exits: [u64; 3]) -> VcpuState {
    let mut counters =
        Counters { host_cycles, exits: vec![0; Reason::COUNT], ..Counters::default() };
    for (reason, n) in [Reason::Cpuid, Reason::PortIo, Reason::Halt].into_iter().zip(exits) {
        counters.exits[reason as usize] = n;
    }
    VcpuState { core: 1, now, counters }
}

fn snapshot(vcpus: &[VcpuState]) -> Snapshot {
    let mut snapshot = Snapshot::new((0..vcpus.len()).map(|i| format!("vm{i}")));
    snapshot.tsc_hz = HZ;
    for (vm, vcpu) in snapshot.vms.iter_mut().zip(vcpus) {
        vm.vcpus.push(vcpu.clone());
    }
    snapshot
}

fn tally(old: VcpuState, new: VcpuState) -> Tally {
    Rates::between(&snapshot(&[old]), &snapshot(&[new])).sum()
}

#[test]
fn rates_are_per_second_of_the_machine() {
    // Half a second.
    let old = vcpu(2_000_000, 100_000, [10, 5, 7]);
    let new = vcpu(2_500_000, 225_000, [110, 5, 8]);
    let rates = Rates::between(&snapshot(std::slice::from_ref(&old)), &snapshot(&[new]));
    assert_eq!(rates.seconds, 0.5);
    let t = rates.sum();
    assert_eq!((t.exits, t.host_share), (202.0, 0.25));
    assert_eq!(t.reasons, [(Reason::Cpuid, 200.0), (Reason::Halt, 2.0), (Reason::PortIo, 0.0)]);
    assert_eq!(t.total.total(), 123);
}

#[test]
fn without_an_interval_there_are_totals_and_no_rates() {
    let new = vcpu(5, 9, [1, 0, 4]);
    for old in [Snapshot::default(), snapshot(std::slice::from_ref(&new))] {
        let rates = Rates::between(&old, &snapshot(std::slice::from_ref(&new)));
        let t = rates.sum();
        assert_eq!((rates.seconds, t.exits, t.host_share), (0.0, 0.0, 0.0));
        assert_eq!(t.reasons, [(Reason::Halt, 0.0), (Reason::Cpuid, 0.0)]);
    }
    let mut unknown = snapshot(&[vcpu(9, 9, [1; 3])]);
    unknown.tsc_hz = 0;
    assert_eq!(Rates::between(&snapshot(&[new]), &unknown).sum().exits, 0.0);
}

#[test]
fn a_counter_that_wraps_goes_on_and_one_that_starts_again_counts_from_there() {
    assert_eq!(difference(u64::MAX - 1, 3), 5);
    assert_eq!(difference(1_000, 12), 12);
    let wrapped = tally(vcpu(u64::MAX - 9, 0, [u64::MAX, 0, 0]), vcpu(999_990, 0, [4, 0, 0]));
    assert_eq!(wrapped.exits, 5.0);
}

#[test]
fn vcpus_add_up_and_their_shares_are_averaged() {
    let old = [vcpu(0, 0, [0; 3]), vcpu(0, 0, [0; 3])];
    let new = [vcpu(HZ, HZ / 2, [10, 0, 0]), vcpu(HZ, 0, [5, 1, 0])];
    let sum = Rates::between(&snapshot(&old), &snapshot(&new)).sum();
    assert_eq!((sum.exits, sum.host_share), (16.0, 0.25));
    assert_eq!(sum.reasons, [(Reason::Cpuid, 15.0), (Reason::PortIo, 1.0)]);
    assert_eq!(sum.total.of(Reason::Cpuid), 15);
}

#[test]
fn rows_are_sorted_by_what_hurts() {
    let old: Vec<_> = (0..3).map(|_| vcpu(0, 0, [0; 3])).collect();
    let new = [vcpu(HZ, 10, [900, 0, 0]), vcpu(HZ, 500, [3, 0, 0]), vcpu(HZ, 10, [901, 0, 0])];
    let rates = Rates::between(&snapshot(&old), &snapshot(&new));
    let order = |sort| rows(&rates, sort).iter().map(Row::name).collect::<Vec<_>>();
    assert_eq!(order(Sort::HostShare), ["vm1", "vm2", "vm0"]);
    assert_eq!(order(Sort::Exits), ["vm2", "vm0", "vm1"]);
    assert_eq!(order(Sort::Plan), ["vm0", "vm1", "vm2"]);
    // None was given any: by share, and those that are alike as in the plan.
    assert_eq!(order(Sort::Injected), ["vm1", "vm0", "vm2"]);
}

#[test]
fn a_vm_without_counters_has_a_row_and_several_vcpus_have_numbers() {
    let mut new = snapshot(&[vcpu(HZ, 0, [0; 3])]);
    new.vms[0].vcpus.push(vcpu(HZ, 0, [0; 3]));
    new.vms.push(Snapshot::new(["late".to_owned()]).vms.remove(0));
    let rates = Rates::between(&new, &new);
    let names: Vec<_> = rows(&rates, Sort::Plan).iter().map(Row::name).collect();
    assert_eq!(names, ["vm0/0", "vm0/1", "late"]);
}

#[test]
fn json_has_rates_and_totals_of_vms_and_vcpus() {
    let old = snapshot(&[vcpu(0, 0, [0; 3])]);
    let new = snapshot(&[vcpu(2 * HZ, HZ, [4, 0, 0])]);
    let json = Rates::between(&old, &new).json(42);
    let expected = json!({ "per_second": 2.0, "total": 4 });
    assert_eq!((&json["session"], &json["seconds"]), (&json!(42), &json!(2.0)));
    for object in [&json["vms"][0], &json["vms"][0]["vcpus"][0]] {
        assert_eq!(object["exits"], expected);
        assert_eq!(object["exits_by_reason"], json!({ "cpuid": expected }));
        assert_eq!(object["injected_timer"], json!({ "per_second": 0.0, "total": 0 }));
        assert_eq!(object["host_share"], 0.5);
    }
    assert_eq!(json["vms"][0]["name"], "vm0");
    assert_eq!(json["vms"][0]["state"], "starting");
    assert_eq!(json["vms"][0]["vcpus"][0]["core"], 1);
}

proptest! {
    #[test]
    fn no_counters_give_nonsense(
        old in (any::<u64>(), any::<u64>(), any::<[u64; 3]>()),
        new in (any::<u64>(), any::<u64>(), any::<[u64; 3]>()),
    ) {
        let t = tally(vcpu(old.0, old.1, old.2), vcpu(new.0, new.1, new.2));
        prop_assert!(t.exits.is_finite() && t.exits >= 0.0);
        prop_assert!((0.0..=1.0).contains(&t.host_share));
        prop_assert!(t.reasons.is_sorted_by(|a, b| a.1 >= b.1));
    }
}
