//! Several vCPUs on one core: every delivery situation beside a neighbour whose heartbeat must go
//! on beating on the same core, the host's critical interrupt under each of its protections while a
//! guest lets nothing in, two guests whose devices interrupt by the same vector, what it costs to
//! give the core to another, and that it goes by weight who has it.

use super::case::{Case, Cores, Cue, Expected, Guest};
use super::cases::{TESTS, again, case, guest, heartbeat, second};
use super::cost::Budget;
use super::smp::{self, several};
use ledger::Reason;
use plan::{Class, DeviceName, Host, Policy, Protection};

/// What a vCPU that shares its core does under `trap`; under `eli` it does everything.
const TRAP: [&str; 6] =
    ["delivery", "delivery-masked", "no-eoi", "timer-mixed", "ticks", "low-vectors"];
/// Of these, what the quick test has.
const QUICK: [&str; 5] = ["delivery-masked", "no-eoi", "idt-remap", "timer-mixed", "ticks"];

/// Host instructions that it may take to give the core to another vCPU, with the two exits that
/// bring it: an interrupt sent and HLT.
const SWITCH_BUDGET: u64 = 1_600;
/// The same when an entry of the remapping table is rewritten, too.
const SWITCH_BUDGET_WITH_DEVICE: u64 = 2_300;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    // How many exits there are depends on who has the core when.
    let beside = |g: Guest| Guest { cores: Cores::First, counts: Vec::new(), ..g };
    for policy in [Policy::Trap, Policy::Eli] {
        let group = format!("shared-{}", policy.label());
        let neighbour = |options| beside(heartbeat(options, policy));
        let two = [neighbour("beats=20"), neighbour("beats=20")];
        cases.push(case(format!("{group}/heartbeats"), policy == Policy::Eli, two));
        let two = [guest("halt", policy), second(guest("halt", policy))].map(beside);
        cases.push(case(format!("{group}/same-vector"), policy == Policy::Eli, two));
        let own = |g: Guest, own| beside(Guest { options: own, ..g });
        let two =
            [own(guest("state", policy), "own=1"), own(second(guest("state", policy)), "own=2")];
        cases.push(case(format!("{group}/states"), policy == Policy::Eli, two));
        // Where nobody else wants the core to the end, that one has no second time slice.
        let wanted =
            |test: &str| test != "state" && (policy == Policy::Eli || TRAP.contains(&test));
        for (test, _) in TESTS.into_iter().filter(|(test, _)| wanted(test)) {
            let quick = policy == Policy::Eli && QUICK.contains(&test);
            let two = [beside(guest(test, policy)), neighbour("")];
            cases.push(case(format!("{group}/{test}"), quick, two));
        }
        // Both want the core all the time, and set their timers without end.
        let ticks = |g: Guest| beside(Guest { options: "slices=contested", ..g });
        let both = [guest("ticks", policy), second(guest("ticks", policy))].map(ticks);
        cases.push(case(format!("{group}/ticks-both"), policy == Policy::Eli, both));
        // Its second life begins on a core that holds the neighbour's state, or its own of the
        // first.
        let two = [beside(again("reset-state", policy)), neighbour("")];
        cases.push(case(format!("{group}/reset-state"), false, two));
        cases.push(cost(policy));
        // All vCPUs of a VM on one core.
        let ends = smp::ENDS.into_iter().map(|(test, end)| (test, end, false));
        let passes =
            smp::TESTS.into_iter().map(|(test, _)| (test, Expected::Passed, test == "ipi-all"));
        for (test, end, quick) in passes.chain(ends).filter(|_| policy == Policy::Eli) {
            let guest =
                Guest { end, cores: Cores::One, counts: Vec::new(), ..several(test, policy) };
            cases.push(case(format!("shared-smp/{test}"), quick, [guest]));
        }
    }
    // A slice that is longer than it takes core 0 to look again.
    let deaf = Guest { options: "slice=20000000", ..guest("deaf", Policy::Eli) };
    let two = [deaf, second(guest("hello", Policy::Eli))].map(beside);
    let case_of = case("shared-eli/deaf".to_owned(), false, two);
    cases.push(Case { slice_us: 20_000, ..case_of });
    for (name, protection) in Protection::ALL {
        let deaf = Guest { options: "deaf=1", ..guest("dma-confine", Policy::Eli) };
        let two = [deaf, heartbeat("", Policy::Eli)].map(beside);
        let told = match protection {
            Protection::Elsewhere => "reported by elsewhere",
            Protection::Nmi => "reported by nmi",
            Protection::Limit => "reported by limit",
        };
        let host = Host { iommu_faults: protection, ..Host::default() };
        let case = case(format!("critical/{name}"), protection == Protection::Limit, two);
        cases.push(Case { host, log: vec![told], audited: true, ..case });
    }
    let device = DeviceName::Named { class: Class::Nvme, index: 0 };
    let storm = Guest { devices: vec![device], ..guest("fault-storm", Policy::Eli) };
    let two = [storm, heartbeat("", Policy::Eli)].map(beside);
    let host = Host { iommu_faults: Protection::Limit, ..Host::default() };
    cases.push(Case {
        host,
        log: vec!["reported by limit"],
        ..case("critical/storm".to_owned(), false, two)
    });
    cases.push(empty_core());
    cases.push(deaf_to_the_end());
    cases.push(sleeper());
    cases.push(weights());
    cases
}

/// A core that several vCPUs shared gets the IOMMU's interrupt, above the limit of their IDTs; when
/// the last of them is gone core 0 gets it. What a VM elsewhere tries only then is told because it
/// arrived.
fn empty_core() -> Case {
    let bare = |cores| Guest { devices: Vec::new(), cores, ..guest("hello", Policy::Eli) };
    let late = Guest { options: "after=typed", ..guest("dma-confine", Policy::Eli) };
    let guests = [bare(Cores::Next), bare(Cores::First), late];
    let host = Host { iommu_faults: Protection::Limit, ..Host::default() };
    let case = case("critical/empty-core".to_owned(), false, guests);
    Case { host, log: vec!["reported by limit"], typed: Some(Cue::Ended(2)), ..case }
}

/// Nobody else wants the core of a guest that lets nothing in, so that it never has to leave it:
/// the host takes what is its own all the same.
fn deaf_to_the_end() -> Case {
    let beside = |g: Guest, cores| Guest { cores, counts: Vec::new(), ..g };
    let hello = Guest { devices: Vec::new(), ..guest("hello", Policy::Eli) };
    let deaf = Guest { options: "deaf=1 until=typed", ..guest("dma-confine", Policy::Eli) };
    let guests = [beside(hello, Cores::Next), beside(deaf, Cores::First)];
    let host = Host { iommu_faults: Protection::Limit, ..Host::default() };
    let told = "reported by limit";
    let case = case("critical/deaf".to_owned(), false, guests);
    Case { host, log: vec![told], typed: Some(Cue::Log(told)), ..case }
}

/// A guest that sleeps between two beats has a core that another one wants all the time: each HLT
/// gives it away.
fn sleeper() -> Case {
    let beside = |g: Guest, counts| Guest { cores: Cores::First, counts, ..g };
    let busy = beside(guest("state", Policy::Eli), Vec::new());
    let counts = vec![(Reason::Halt, 10..=u64::MAX)];
    let guests = [busy, beside(heartbeat("", Policy::Eli), counts)];
    case("shared-eli/sleeper".to_owned(), false, guests)
}

/// Weights of 300 and 100, and a slice that isn't the plan's own.
fn weights() -> Case {
    let guest = |tests, options, weight| {
        let (devices, cores, counts) = (Vec::new(), Cores::First, Vec::new());
        Guest { devices, cores, counts, options, weight, ..guest(tests, Policy::Eli) }
    };
    let light = guest("weights-light", "slice=20 times=3", 100);
    let heavy = guest("weights-heavy", "slice=20", 300);
    let case = case("shared-eli/weights".to_owned(), false, [light, heavy]);
    Case { slice_us: 20_000, ..case }
}

/// Two vCPUs of one VM that wake each other.
fn cost(policy: Policy) -> Case {
    let two = Guest { cpus: 2, cores: Cores::One, ..guest("shared-cost", policy) };
    let group = policy.label();
    let cost = case(format!("shared-{group}/shared-cost"), policy == Policy::Eli, [two]);
    let windows = vec![
        Budget::new("a switch, with an IPI and HLT", 2000, SWITCH_BUDGET),
        Budget::new(
            "the same, with a device's interrupt routed elsewhere and back",
            2000,
            SWITCH_BUDGET_WITH_DEVICE,
        ),
    ];
    Case { windows, ..cost }
}
