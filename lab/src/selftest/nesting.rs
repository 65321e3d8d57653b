//! The test kernel as a hypervisor: as a guest of Exitless, and on QEMU's own SVM.

use super::case::{Case, Expected, Guest, Special};
use super::cases::{again, case, edu, guest, heartbeat, nvme};
use super::cost::Budget;
use super::kernel::Variant;
use plan::{GuestIommu, Policy};

/// Its tests, and whether the quick test has them.
const TESTS: [(&str, bool); 10] = [
    ("svm-exits", true),
    ("svm-open", true),
    ("svm-invalid", false),
    ("svm-interrupts", true),
    ("svm-guarded", true),
    ("svm-paging", true),
    ("svm-avic", true),
    ("svm-delivered", true),
    ("svm-intercepts", true),
    ("svm-gif", true),
];

/// The same in one boot of the bare machine.
const ALL_BARE: &str = "svm-exits,svm-open,svm-invalid,svm-interrupts,svm-guarded,svm-paging,\
                        svm-delivered,svm-intercepts,svm-gif";

/// Host instructions that an exit of the inner guest may cost that is told, with the VMRUN that
/// follows it: for CPUID, the same of a clean block, for a port, for an MSR; and the first touch of
/// a page: a fault that is told, the VMRUN that puts the page in, and such a pair besides.
const BUDGETS: [u64; 5] = [867, 752, 900, 890, 3_450];
/// The same where no CPU keeps a guest's global interrupt flag.
const PLAIN_BUDGETS: [u64; 5] = [1_260, 1_145, 1_293, 1_282, 4_235];

/// Tests of which a seed decides what they do.
pub const ATTACKERS: [&str; 2] = ["svm-hostile", "svm-posted-chaos"];

/// One of [`ATTACKERS`], with these of the machine's test devices if it needs any.
pub fn attacker(test: &'static str, devices: [u8; 2]) -> Guest {
    match test {
        "svm-hostile" => with(guest(test, Policy::Direct)),
        _ => Guest { cpus: 2, devices: devices.map(edu).into(), ..posts(test) },
    }
}

/// It may run guests, and has no device.
pub fn with(guest: Guest) -> Guest {
    Guest { nested: true, devices: Vec::new(), ..guest }
}

/// A device posts interrupts to its guest.
fn posts(tests: &'static str) -> Guest {
    let guest = Guest { devices: vec![edu(0)], ..with(guest(tests, Policy::Trap)) };
    Guest { iommu: GuestIommu::AmdVi, ..guest }
}

fn cost(name: &str, [pair, clean, port, msr, touch]: [u64; 5]) -> Case {
    let windows = vec![
        Budget::new("CPUID of a guest's guest, told, and VMRUN", 1000, pair),
        Budget::new("the same, all of the block clean", 1000, clean),
        Budget::new("a port, told, and VMRUN", 1000, port),
        Budget::new("an MSR, told, and VMRUN", 1000, msr),
        Budget::new("a page's first touch, told, and a call", 64, touch),
    ];
    Case { windows, ..case(name.to_owned(), true, [with(guest("svm-cost", None))]) }
}

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases: Vec<_> = TESTS
        .into_iter()
        .map(|(test, quick)| {
            let guest = Guest { nested: true, devices: Vec::new(), ..guest(test, None) };
            case(format!("nesting/{test}"), quick, [guest])
        })
        .collect();
    // Without the CPU's flag, and VMLOAD by the guest.
    let plain =
        ["svm-exits", "svm-open", "svm-invalid", "svm-interrupts", "svm-guarded", "svm-avic"];
    for test in plain {
        let guest = Guest { nested: true, devices: Vec::new(), ..guest(test, None) };
        let machine = Special::Cpu("max,-vgif");
        cases.push(Case { machine, ..case(format!("nesting/{test}-plain"), false, [guest]) });
    }
    cases.push(cost("nesting/svm-cost", BUDGETS));
    let plain = Case { quick: false, long: true, ..cost("nesting/svm-cost-plain", PLAIN_BUDGETS) };
    cases.push(Case { machine: Special::Cpu("max,-vgif"), ..plain });
    let events = Guest { cpus: 2, ..with(guest("svm-events", None)) };
    cases.push(case("nesting/svm-events".to_owned(), true, [events]));
    for test in ["svm-endless", "svm-init-storm"] {
        let of_two = Guest { cpus: 2, ..with(guest(test, None)) };
        cases.push(case(format!("nesting/{test}"), false, [of_two]));
    }
    let trapped = Guest { cpus: 2, ..posts("svm-endless") };
    cases.push(case("nesting/svm-endless-trap".to_owned(), false, [trapped]));
    let doorbell = Guest { cpus: 2, ..with(guest("svm-avic-smp", None)) };
    cases.push(case("nesting/svm-avic-smp".to_owned(), true, [doorbell]));
    let registers = Guest { cpus: 2, devices: vec![nvme(0)], ..guest("svm-registers", None) };
    let registers = Guest { nested: true, ..registers };
    cases.push(case("nesting/svm-registers".to_owned(), true, [registers]));
    let lives = vec!["life 0\n", "life 1\n", "life 2\n"];
    for test in ["svm-restart", "svm-init-restart"] {
        let restart = again(test, Policy::Direct);
        let restart = Guest { cpus: 2, says: lives.clone(), ..with(restart) };
        cases.push(case(format!("nesting/{test}"), false, [restart]));
    }
    let end = Expected::Fault("triple fault");
    let shutdown = Guest { end, ..with(guest("svm-shutdown", None)) };
    let pair = [shutdown, heartbeat("", Policy::Direct)];
    cases.push(case("nesting/svm-shutdown".to_owned(), false, pair));
    let pair = [attacker(ATTACKERS[0], [0, 1]), heartbeat("", Policy::Direct)];
    cases.push(case("nesting/svm-hostile".to_owned(), false, pair));
    // Interrupts that a device posts to the guest of a guest.
    cases.push(case("nesting/svm-posted".to_owned(), false, [posts("svm-posted")]));
    let both = |test| Guest { devices: vec![edu(0), edu(1)], ..posts(test) };
    let others = [both("svm-posted-others")];
    cases.push(case("nesting/svm-posted-others".to_owned(), false, others));
    let smp = [Guest { cpus: 2, ..both("svm-posted-smp") }];
    cases.push(case("nesting/svm-posted-smp".to_owned(), false, smp));
    let anew = Guest { cpus: 2, restarts: true, says: lives, ..posts("svm-posted-restart") };
    cases.push(case("nesting/svm-posted-restart".to_owned(), false, [anew]));
    let pair = [posts("svm-posted-hostile"), heartbeat("", Policy::Direct)];
    cases.push(case("nesting/svm-posted-hostile".to_owned(), false, pair));
    // What is easily lost.
    cases.push(case("nesting/svm-posted-kept".to_owned(), false, [posts("svm-posted-kept")]));
    for test in ["svm-posted-offline", "svm-posted-rerouted"] {
        let guest = Guest { cpus: 2, ..posts(test) };
        cases.push(case(format!("nesting/{test}"), false, [guest]));
    }
    let moves = [Guest { cpus: 3, ..posts("svm-posted-moves") }];
    cases.push(case("nesting/svm-posted-moves".to_owned(), false, moves));
    let pair = [attacker(ATTACKERS[1], [0, 1]), heartbeat("", Policy::Direct)];
    cases.push(case("nesting/svm-posted-chaos".to_owned(), false, pair));
    let bare = guest(ALL_BARE, Policy::Trap);
    let bare = Guest { devices: Vec::new(), says: Vec::new(), variant: Variant::Pvh, ..bare };
    cases.push(Case { machine: Special::Bare, ..case("nesting/bare".to_owned(), false, [bare]) });
    cases
}
