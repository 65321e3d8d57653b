//! The guest's own IOMMU: the test kernel's driver, with a sidecore that polls it and without, and
//! an attacker beside a neighbour.

use super::case::{Budget, Case, Expect, Expected, Guest, Special};
use super::cases::{again, case, guest, heartbeat, nvme, second};
use super::kernel::Variant;
use exitless::report::VmReport;
use ledger::Reason;
use plan::{DeviceName, GuestIommu, Policy};

/// The tests of which the report says what came back.
const OPTIMISTIC: [&str; 2] = ["viommu-optimistic", "vtd-optimistic"];
/// Bytes of pages that the test maps again at once; half of them may come late on a busy computer.
const CAME_BACK: u64 = 1000 * 4096 / 2;

/// Host instructions that a map and an unmap may cost, each with its exit.
const PAIR_BUDGET: u64 = 8_600;
/// The same of a VT-d unit, which looks for both in the guest's tables.
const VTD_PAIR_BUDGET: u64 = 12_000;

/// What Debian's kernel is told: to translate DMA, strictly, and to verify blocks.
const LINUX: &str = "intel_iommu=on iommu.passthrough=0 iommu.strict=1 exitless.workload=verify exitless.disk=nvme0n1";
/// What it says if all that it read was as it had been written.
const VERIFIED: &str = "@exitless verified status=0 errors=0 reads=";
/// Their controller, as QEMU has it: one that keeps what is written while it runs.
const KEEPING: [&str; 4] = [
    "-drive",
    "if=none,id=keeping,file.driver=null-co,file.size=2097152,file.read-zeroes=on,format=raw,snapshot=on",
    "-device",
    "nvme,serial=keeping,drive=keeping,addr=0x1a",
];
const KEEPING_AT: DeviceName =
    DeviceName::Address { segment: 0, bus: 0, device: 0x1A, function: 0 };
/// Descriptors that the unit has for them: each block is written and read, mapped and unmapped,
/// each with a descriptor to wait by.
const REQUESTS: u64 = 2 * 2 * 2 * ((2 << 20) / 4096);
/// Exits for the unit that it has at most, before it is polled.
const SET_UP: u64 = 64;

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
        ..guest(OPTIMISTIC[0], Policy::Direct)
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
    let optimistic = Guest { devices: vec![nvme(0)], ..guest(OPTIMISTIC[1], Policy::Direct) };
    let optimistic = Guest { iommu: GuestIommu::VtDOptimistic, counts: Vec::new(), ..optimistic };
    cases.push(polled(case("vtd-guest/optimistic".to_owned(), true, [optimistic])));
    // The interrupt is sent by core 0 to a vCPU that takes its own, and to one that doesn't.
    let faults = |policy| [behind(guest("vtd-faults", policy))];
    cases.push(polled(case("vtd-guest/faults".to_owned(), true, faults(Policy::Direct))));
    cases.push(polled(case("vtd-guest/faults-eli".to_owned(), false, faults(Policy::Eli))));
    cases.push(case("vtd-guest/faults-exits".to_owned(), false, faults(Policy::Trap)));
    // One keeps its unit busy, and what another's device does is told of by the interrupt for it.
    let held =
        [behind(guest("vtd-held", Policy::Direct)), second(guest("dma-slow", Policy::Direct))];
    let log = vec!["by device 00:11.0 was blocked", "reported by elsewhere"];
    let held = case("vtd-guest/faults-held".to_owned(), false, held);
    cases.push(Case { log, unsaid: vec!["reported by nobody"], ..held });
    let counted = |options| Guest { options, ..behind(guest("vtd-exits", Policy::Direct)) };
    cases.push(polled(case("vtd-guest/no-exit".to_owned(), true, [counted("exits=0")])));
    cases.push(case("vtd-guest/one-exit".to_owned(), true, [counted("exits=1")]));
    cases.push(cost(
        VTD_PAIR_BUDGET,
        case("vtd-guest/cost".to_owned(), true, [behind(guest("vtd-cost", Policy::Direct))]),
    ));
    let attacker = |options| {
        let attacker = Guest { options, ..behind(guest("vtd-hostile", Policy::Direct)) };
        [attacker, heartbeat("", Policy::Direct)]
    };
    cases.push(polled(case("vtd-guest/hostile".to_owned(), false, attacker("seed=1"))));
    cases.push(case("vtd-guest/hostile-exits".to_owned(), false, attacker("seed=2")));
    let machine = Special::Arguments(&KEEPING);
    let linux = polled(case("vtd-guest/linux".to_owned(), false, [linux()]));
    cases.push(Case { machine, ..linux });
    let restart = || [behind(again("vtd-restart", Policy::Direct))];
    cases.push(polled(case("vtd-guest/restart".to_owned(), false, restart())));
    cases.push(case("vtd-guest/restart-exits".to_owned(), false, restart()));
    cases
}

/// Debian's kernel with its own driver of the unit, which writes blocks of a disk and verifies
/// them; what it does for them is no exit.
fn linux() -> Guest {
    Guest {
        tests: "",
        variant: Variant::Linux,
        iommu: GuestIommu::VtD,
        devices: vec![KEEPING_AT],
        end: Expected::PowerOff,
        options: LINUX,
        says: vec![VERIFIED],
        counts: vec![(Reason::GuestIommu, 1..=SET_UP)],
        ..guest("hello", Policy::Direct)
    }
}

/// What the hypervisor says of mappings that came back, before they were taken away.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    if guest.variant == Variant::Linux && guest.iommu == GuestIommu::VtD {
        let done = vm.paravirtual.total().completed;
        if done < REQUESTS {
            wrong.push(format!("its IOMMU did {done} descriptors, {REQUESTS} wanted at least"));
        }
    }
    let bytes = vm.paravirtual.total().bytes;
    if OPTIMISTIC.contains(&guest.tests) && bytes < CAME_BACK {
        wrong.push(format!("{bytes} bytes of mappings came back, {CAME_BACK} wanted at least"));
    }
}

/// The same with a window around a thousand pairs of map and unmap.
fn cost(host_each: u64, case: Case) -> Case {
    let what = "a map and an unmap, each by an exit";
    Case { windows: vec![Budget { what, times: 1000, host_each, like_before: false }], ..case }
}

/// The same with a sidecore.
fn polled(case: Case) -> Case {
    Case { sidecores: 1, ..case }
}
