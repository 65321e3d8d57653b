//! VMs on Bochs' machine, which has Intel's VMX, no IOMMU and no MSI: the test kernels under each
//! policy, on cores of their own or on one, with interrupts of their own timers and of their other
//! vCPUs.
//!
//! Not here: what is about a device's interrupts, of which the machine has none that a VM could be
//! given. A VM without devices never enters ELI mode; in the image of the audit's tests it does.
//! Nor `lowest-vectors`, which only QEMU's local APIC takes.

use super::case::{Case, Cores, Expect, Expected, Guest, Special};
use super::cases::{again, case, guest, heartbeat};
use super::costs;
use super::hostile;
use super::names::named;
use super::rare::is_rare;
use super::{smp, timers};
use ledger::Reason;
use plan::Policy;

/// Tests of one vCPU that end well.
const TESTS: [&str; 23] = [
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
    "legacy-modes",
];

/// Of these, what is seen under `eli`: as under `trap`, without devices.
const UNDER_ELI: [&str; 3] = ["hello", "timer", "self-ipi"];

/// Those of three vCPUs, under `direct` and `posted`.
const SMP_TESTS: [&str; 14] = [
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
    "init-self",
];

/// Of kicks: few exits a round, so that many come at its last one; half a second of Bochs', after
/// which core 0 announces again what was lost, is some million steps.
const KICKS: &str = "exits=6 far=200000";

/// Those of one vCPU on a core that another VM's heart beats on.
const SHARED: [&str; 12] = [
    "hello",
    "exceptions",
    "debugged",
    "timer",
    "self-ipi",
    "apic-modes",
    "self-nmi",
    "bad-msr",
    "bad-xcr",
    "bad-cr4",
    "lock-mov-cr0",
    "compatibility",
];

/// What Linux under `direct` has none of, from its entry to power-off.
const NO_INTERRUPTS: [Reason; 6] = [
    Reason::TimerInterrupt,
    Reason::TimerEoi,
    Reason::OtherEoi,
    Reason::HostInterrupt,
    Reason::InterruptWindow,
    Reason::Kick,
];

/// Those of three, all on one core.
const SHARED_SMP: [&str; 8] = [
    "ap-start",
    "ap-restart",
    "ipi-ring",
    "ipi-all",
    "ipi-nmi",
    "shootdown",
    "timers",
    "xapic-ipi",
];

/// Those of one vCPU, and of three, that take their interrupts themselves.
const TAKEN: [&str; 7] =
    ["hello", "self-ipi", "self-nmi", "debugged", "bad-cr4", "compatibility", "legacy-modes"];
const TAKEN_SMP: [&str; 5] = ["ipi-ring", "ipi-all", "ipi-nmi", "ipi-exits", "timers"];

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

/// Those whose name has `only` in it, or all, of which the rare ones are for a long test; a quick
/// one has none.
pub fn chosen(quick: bool, long: bool, only: Option<&str>) -> Vec<Case> {
    let usual = |case: &Case| !quick && (long || !case.long && !is_rare(&case.name));
    let is_chosen = |case: &Case| only.map_or_else(|| usual(case), |text| named(&case.name, text));
    all().into_iter().filter(is_chosen).collect()
}

/// All of them.
pub fn all() -> Vec<Case> {
    let one = |test: &str, policy: Policy, guest| {
        of(format!("bochs-{}/{test}", policy.label()), 2, guest)
    };
    // It takes the longest, and is begun first.
    let mut cases = linux();
    for policy in [Policy::Trap, Policy::Direct, Policy::Posted] {
        // Bochs' PM timer answers reads of all four bytes only.
        let plain = |test| Guest { options: "timer=whole", ..guest(test, policy) };
        cases.extend(TESTS.map(|test| one(test, policy, plain(test))));
        let ends = ENDS.map(|(test, end)| one(test, policy, Guest { end, ..guest(test, policy) }));
        cases.extend(ends);
        cases.extend(["restart", "reset-state"].map(|test| one(test, policy, again(test, policy))));
    }
    cases.extend(UNDER_ELI.map(|test| one(test, Policy::Eli, guest(test, Policy::Eli))));
    let under_trap = SMP_UNDER_TRAP.map(|test| (test, Policy::Trap));
    let under_direct = SMP_TESTS.map(|test| (test, Policy::Direct));
    let posted = SMP_TESTS.iter().chain(&["ipi-exits"]).map(|test| (*test, Policy::Posted));
    for (test, policy) in under_trap.into_iter().chain(under_direct).chain(posted) {
        let name = format!("bochs-smp-{}/{test}", policy.label());
        let options = match (test, policy) {
            ("ipi-exits", _) => "ipis=1000",
            ("kicks", _) => KICKS,
            // The core's own local APIC is Bochs'.
            ("icr-storm", Policy::Trap | Policy::Direct) => "spurious=spared",
            _ => "",
        };
        cases.push(of(name, 4, Guest { options, ..smp::several(test, policy) }));
    }
    for policy in [Policy::Trap, Policy::Direct, Policy::Posted] {
        // Few exits a round and no third vCPU: a million of them take a quarter of an hour.
        let options = "rounds=1000000 exits=6 far=200000";
        let guest = Guest { options, cpus: 2, ..smp::several("kicks", policy) };
        let name = format!("bochs-smp-{}/kicks-often", policy.label());
        cases.push(Case { long: true, ..of(name, 3, guest) });
        let name = format!("bochs-smp-{}/start-storm", policy.label());
        let storm = smp::several("start-storm", policy);
        cases.push(Case { long: true, ..of(name, 4, storm) });
    }
    cases.extend(hostile::on_bochs());
    cases.extend(shared());
    cases.extend(taken());
    cases.extend(costs::POLICIES.map(costs::of));
    cases.extend(costs::counted());
    for policy in [Policy::Trap, Policy::Direct, Policy::Posted] {
        let shadow = Guest { options: "device=none", ..guest("interrupt-shadow", policy) };
        cases.push(one("interrupt-shadow", policy, shadow));
    }
    let ticks = Guest { options: "device=none", ..guest("ticks", Policy::Posted) };
    cases.push(one("ticks", Policy::Posted, ticks));
    cases.push(one("heartbeat", Policy::Posted, heartbeat("beats=20", Policy::Posted)));
    let nested = Guest { nested: true, ..guest("hello", Policy::Direct) };
    let expect = Expect::Refused(vec![
        "guests of a guest aren't there on VMX yet",
        "leave nested out, or take a machine of AMD's",
    ]);
    cases.push(Case { expect, ..of("bochs-refuse/nested".to_owned(), 2, nested) });
    cases
}

/// Several vCPUs on one core: of two VMs, of which the second beats six times, and
/// of one.
fn shared() -> Vec<Case> {
    let mut cases = Vec::new();
    // How many exits there are depends on who has the core when.
    let beside = |g: Guest| of_guest(Guest { cores: Cores::First, counts: Vec::new(), ..g });
    for policy in [Policy::Trap, Policy::Eli] {
        let mut pair = |name: &str, guests: [Guest; 2]| {
            let name = format!("bochs-shared-{}/{name}", policy.label());
            let machine = Special::Bochs(2);
            cases.push(Case { machine, ..case(name, false, guests.map(beside)) });
        };
        let plain = |test, options| Guest { options, ..guest(test, policy) };
        for test in SHARED {
            pair(test, [plain(test, "timer=whole"), heartbeat("beats=6", policy)]);
        }
        let busy = heartbeat("beats=6 busy=1", policy);
        pair("deaf-wanted", [plain("deaf-wanted", ""), busy]);
        pair("heartbeats", ["beats=6"; 2].map(|options| heartbeat(options, policy)));
        pair("states", ["own=1", "own=2"].map(|own| plain("state", own)));
        pair("reset-state", [again("reset-state", policy), heartbeat("beats=6", policy)]);
        for test in SHARED_SMP {
            let several = smp::several(test, policy);
            let one = Guest { cores: Cores::One, counts: Vec::new(), ..several };
            cases.push(of(format!("bochs-shared-smp-{}/{test}", policy.label()), 2, one));
        }
    }
    cases
}

/// ELI guests that take their interrupts themselves, in the image of the audit's tests: on cores of
/// their own, and on one. What comes is their timers' and their other vCPUs'.
fn taken() -> Vec<Case> {
    let policy = Policy::Eli;
    let on = |name: String, cpus, guests: Vec<Guest>| {
        let guests = guests.into_iter().map(of_guest).collect();
        Case { machine: Special::BochsPlanted(cpus), guests, ..case(name, false, []) }
    };
    let none = |reasons: &[Reason]| reasons.iter().map(|r| (*r, 0..=0)).collect();
    let beats = |options| heartbeat(options, policy);
    let counts = none(&[Reason::TimerInterrupt, Reason::TimerEoi, Reason::OtherEoi]);
    let mut cases =
        vec![on("bochs-taken/heartbeat".into(), 2, vec![Guest { counts, ..beats("beats=6") }])];
    for test in TAKEN {
        cases.push(on(format!("bochs-taken/{test}"), 2, vec![guest(test, policy)]));
    }
    for test in TAKEN_SMP {
        let several = smp::several(test, policy);
        let one = Guest { cores: Cores::One, ..smp::several(test, policy) };
        cases.push(on(format!("bochs-taken-smp/{test}"), 4, vec![several]));
        cases.push(on(format!("bochs-taken-shared-smp/{test}"), 2, vec![one]));
    }
    let beside = |g: Guest| Guest { cores: Cores::First, counts: Vec::new(), ..g };
    let ticks = || beside(Guest { options: "device=none", ..guest("ticks", policy) });
    let beats = |options| beside(beats(options));
    for (name, second) in [
        ("ticks", beats("beats=20")),
        ("ticks-busy", beats("beats=20 busy=1")),
        ("ticks-both", ticks()),
    ] {
        cases.push(on(format!("bochs-taken-shared/{name}"), 2, vec![ticks(), second]));
    }
    let deaf = beside(guest("deaf-wanted", policy));
    let pair = vec![deaf, beats("beats=20 busy=1")];
    cases.push(on("bochs-taken-shared/deaf-wanted".to_owned(), 2, pair));
    cases
}

/// Debian's kernel, from its entry to power-off, with a program that does nothing but wait for a
/// timer. Under `direct` it compares itself: it fails when a window of it has an exit. Under the
/// others its ticks exit, which Debian's Bochs doesn't do right behind a fault of the guest's.
fn linux() -> Vec<Case> {
    let counts = NO_INTERRUPTS.map(|reason| (reason, 0..=0)).into();
    let direct = of("bochs-linux/direct".into(), 2, Guest { counts, ..timers::cyclictest() });
    let others = [
        ("trap", Policy::Trap),
        ("eli-delivery", Policy::EliDelivery),
        ("eli", Policy::Eli),
        ("posted", Policy::Posted),
    ];
    let others = others.map(|(name, policy)| {
        let guest = timers::cyclictest_that_exits(policy);
        let case = of(format!("bochs-linux/{name}"), 2, guest);
        Case { machine: Special::BochsMended(2), long: true, ..case }
    });
    [direct].into_iter().chain(others).collect()
}

/// A VM without devices, on this many CPUs.
fn of(name: String, cpus: u32, guest: Guest) -> Case {
    Case { machine: Special::Bochs(cpus), ..case(name, false, [of_guest(guest)]) }
}

fn of_guest(guest: Guest) -> Guest {
    Guest { devices: Vec::new(), ..guest }
}
