//! VMs on Bochs' machine, which has Intel's VMX, no IOMMU and no MSI: the test kernels under each
//! policy, on cores of their own, with interrupts of their own timers and of their other vCPUs.
//!
//! Not here: what is about a device's interrupts, of which the machine has none that a VM could be
//! given; so ELI mode, which such a VM never enters, and restarts, which are counted in one's
//! registers. Nor `lowest-vectors`, which only QEMU's local APIC takes.

use super::case::{Case, Cores, Expect, Expected, Guest, Special};
use super::cases::{case, guest};
use super::hostile;
use super::names::named;
use super::smp;
use plan::Policy;

/// Tests of one vCPU that end well.
const TESTS: [&str; 22] = [
    "hello",
    "exceptions",
    "debugged",
    "own-cr4",
    "timer",
    "self-ipi",
    "apic-modes",
    "apic-xapic",
    "self-nmi",
    "state",
    "bad-msr",
    "bad-port",
    "bad-efer",
    "bad-xcr",
    "bad-cr3",
    "bad-cr4",
    "bad-control",
    "bad-instruction",
    "mmio-forms",
    "lock-mov-cr0",
    "direction",
    "compatibility",
];

/// Of these, what is seen under `eli`: as under `trap`, without devices.
const UNDER_ELI: [&str; 3] = ["hello", "timer", "self-ipi"];

/// Those of three vCPUs, under `direct`.
const SMP_TESTS: [&str; 13] = [
    "icr-storm",
    "ap-start",
    "ap-restart",
    "ipi-fixed",
    "ipi-ring",
    "xapic-ipi",
    "xapic-start",
    "ipi-all",
    "ipi-nmi",
    "ipi-void",
    "shootdown",
    "timers",
    "kicks",
];

/// Those under `trap`.
const SMP_UNDER_TRAP: [&str; 5] = ["ap-start", "ipi-all", "ipi-nmi", "kicks", "icr-storm"];

const ENDS: [(&str, Expected); 5] = [
    ("power-off", Expected::PowerOff),
    ("reset-acpi", Expected::Reset),
    ("reset-keyboard", Expected::Reset),
    ("triple-fault", Expected::Fault("triple fault")),
    (
        "wild-jump",
        Expected::Fault("ran code or used page tables at guest-physical address 0x90000000"),
    ),
];

/// Those whose name has `only` in it, or all; a quick test has none.
pub fn chosen(quick: bool, only: Option<&str>) -> Vec<Case> {
    let is_chosen = |case: &Case| only.map_or(!quick, |text| named(&case.name, text));
    all().into_iter().filter(is_chosen).collect()
}

fn all() -> Vec<Case> {
    let one = |test: &str, policy: Policy, guest| {
        of(format!("bochs-{}/{test}", policy.label()), 2, guest)
    };
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Direct] {
        // Bochs' PM timer answers reads of all four bytes only.
        let plain = |test| Guest { options: "timer=whole", ..guest(test, policy) };
        cases.extend(TESTS.map(|test| one(test, policy, plain(test))));
        let ends = ENDS.map(|(test, end)| one(test, policy, Guest { end, ..guest(test, policy) }));
        cases.extend(ends);
    }
    cases.extend(UNDER_ELI.map(|test| one(test, Policy::Eli, guest(test, Policy::Eli))));
    let under_trap = SMP_UNDER_TRAP.map(|test| (test, Policy::Trap));
    let under_direct = SMP_TESTS.map(|test| (test, Policy::Direct));
    for (test, policy) in under_trap.into_iter().chain(under_direct) {
        let name = format!("bochs-smp-{}/{test}", policy.label());
        // The core's own local APIC is Bochs'.
        let options = if test == "icr-storm" { "spurious=spared" } else { "" };
        cases.push(of(name, 4, Guest { options, ..smp::several(test, policy) }));
    }
    cases.extend(hostile::on_bochs());
    let plain = |policy| of_guest(guest("hello", policy));
    let shared = [Policy::Eli; 2].map(|policy| Guest { cores: Cores::First, ..plain(policy) });
    let nested = [Guest { nested: true, ..plain(Policy::Direct) }];
    for (name, guests, why) in [
        ("shared", Vec::from(shared), "shared cores aren't there on VMX yet"),
        ("nested", Vec::from(nested), "guests of a guest aren't there on VMX yet"),
    ] {
        let case = Case { guests, ..case(format!("bochs-refuse/{name}"), false, []) };
        let expect = Expect::Refused(vec![why]);
        cases.push(Case { machine: Special::Bochs(2), expect, ..case });
    }
    cases
}

/// A VM without devices, on this many CPUs.
fn of(name: String, cpus: u32, guest: Guest) -> Case {
    Case { machine: Special::Bochs(cpus), ..case(name, false, [of_guest(guest)]) }
}

fn of_guest(guest: Guest) -> Guest {
    Guest { devices: Vec::new(), ..guest }
}
