//! VMs with several vCPUs: every test of the kernel for them, under every policy, and what
//! one VM's CPUs do beside another VM.

use super::case::{Case, Expected, Guest, Special};
use super::cases::{case, guest, heartbeat, nvme};
use super::cost::Budget;
use super::kernel::Variant;
use ledger::Reason;
use plan::Policy;

/// vCPUs of a VM that isn't about their number.
const CPUS: u32 = 3;
/// The most there are tests for: a host core more than this makes the machine.
const MANY: u32 = 4;

const POLICIES: [Policy; 3] = [Policy::Trap, Policy::Eli, Policy::Direct];

/// Tests that end well, and whether the quick test has them (under `direct` and `eli`).
pub const TESTS: [(&str, bool); 21] = [
    ("ap-start", true),
    ("ap-restart", true),
    ("ipi-fixed", false),
    ("ipi-ring", true),
    ("xapic-ipi", true),
    ("xapic-start", false),
    ("ipi-all", true),
    ("ipi-nmi", true),
    ("ipi-void", true),
    ("shootdown", false),
    ("bar-move-smp", true),
    ("start-flush", false),
    ("affinity", true),
    ("offline-interrupt", true),
    ("idt-smp", true),
    ("idt-remote", false),
    ("timers", true),
    ("icr-storm", true),
    ("start-storm", false),
    ("init-self", false),
    ("ipi-exits", true),
];

/// The same in one boot of the bare machine; last what leaves an interrupt behind. Not `xapic-ipi`
/// and `xapic-start`, which never end there.
const ALL_BARE: &str = "ap-start,ap-restart,ipi-fixed,ipi-ring,ipi-all,ipi-nmi,ipi-void,shootdown,\
    bar-move-smp,start-flush,affinity,idt-smp,idt-remote,timers,icr-storm,start-storm,init-self,ipi-exits,ipi-cost,\
    offline-interrupt";

/// Tests after which the VM is gone, whatever its other CPUs do.
pub const ENDS: [(&str, Expected); 3] = [
    ("ap-power-off", Expected::PowerOff),
    ("ap-reset", Expected::Reset),
    ("ap-triple-fault", Expected::Fault("triple fault")),
];

/// What a VM's CPUs do while its neighbour's heartbeat must go on.
const ATTACKS: [(&str, Expected); 4] = [
    ("icr-storm", Expected::Passed),
    ("start-storm", Expected::Passed),
    ("ipi-void", Expected::Passed),
    ("ap-triple-fault", Expected::Fault("triple fault")),
];

/// Host instructions that an interrupt from one vCPU to another may cost its sender's core.
const IPI_BUDGET: u64 = 150;
const CPUID_BUDGET: u64 = 1000;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in POLICIES {
        let group = policy.label();
        for (test, quick) in TESTS {
            let quick = quick && policy == Policy::Direct;
            cases.push(case(format!("smp-{group}/{test}"), quick, [several(test, policy)]));
        }
        for (test, end) in ENDS {
            let guest = Guest { end, ..several(test, policy) };
            cases.push(case(format!("smp-{group}/{test}"), false, [guest]));
        }
        for test in ["ap-start", "ipi-all"] {
            let guest = Guest { cpus: MANY, ..several(test, policy) };
            cases.push(case(format!("smp-{group}/{test}-{MANY}"), false, [guest]));
        }
    }
    let end = Expected::Fault("it called a BIOS, and a VM has none");
    let caller = Guest { end, ..several("ap-bios", Policy::Direct) };
    cases.push(case("smp-direct/ap-bios".to_owned(), false, [caller]));
    for policy in [Policy::Eli, Policy::Direct] {
        let guest = Guest { devices: vec![nvme(0)], ..several("reset-rewrites", policy) };
        cases.push(case(format!("smp-{}/reset-rewrites", policy.label()), false, [guest]));
    }
    for policy in [Policy::Trap, Policy::Direct] {
        // In the image that takes its time before it looks for the last time.
        let kicks =
            case(format!("smp-{}/kicks", policy.label()), false, [several("kicks", policy)]);
        cases.push(Case { machine: Special::Planted, ..kicks });
    }
    for (test, end) in ATTACKS {
        let attacker = Guest { end, ..several(test, Policy::Direct) };
        let quick = test == "icr-storm";
        let pair = [attacker, heartbeat("", Policy::Direct)];
        cases.push(case(format!("smp-pair/{test}"), quick, pair));
    }
    let pair = [
        several("ipi-all", Policy::Eli),
        Guest { devices: Vec::new(), ..several("ipi-all", Policy::Direct) },
    ];
    cases.push(case("smp-pair/ipi-all".to_owned(), false, pair));

    let windows = vec![
        Budget::new("an IPI to one vCPU", 1000, IPI_BUDGET),
        Budget::new("an IPI of a command to both others", 2000, IPI_BUDGET),
        Budget::new("a CPUID", 1000, CPUID_BUDGET),
    ];
    let cost = case("smp-direct/ipi-cost".to_owned(), true, [several("ipi-cost", Policy::Direct)]);
    cases.push(Case { windows, ..cost });

    let bare = Guest {
        says: Vec::new(),
        cpus: MANY,
        variant: Variant::Pvh,
        ..guest(ALL_BARE, Policy::Trap)
    };
    let bare = case("bare/smp".to_owned(), false, [bare]);
    cases.push(Case { machine: Special::BareWithoutIommu, ..bare });
    cases
}

/// A VM of several vCPUs with the first `edu`.
pub fn several(tests: &'static str, policy: Policy) -> Guest {
    let mut guest = Guest { cpus: CPUS, ..guest(tests, policy) };
    if tests == "timers" && policy == Policy::Direct {
        guest.counts = [Reason::TimerInterrupt, Reason::TimerEoi].map(|r| (r, 0..=0)).into();
    }
    guest
}
