//! What runs and ends: every test of the kernel on one CPU, alone and beside a neighbour.

use super::case::{Case, Cores, Cue, Expect, Expected, Guest, HEARTBEAT, Special};
use super::cost::{Budget, Than};
use super::kernel::Variant;
use exitless::qemu::Iommu;
use ledger::Reason;
use plan::{Choice, Class, DeviceName, Host, Policy};
use std::ops::RangeInclusive;

const NONE: RangeInclusive<u64> = 0..=0;

/// Tests of the kernel that end well, and whether the quick test has them.
pub const TESTS: [(&str, bool); 53] = [
    ("hello", true),
    ("exceptions", false),
    ("true-np", true),
    ("delivery", true),
    ("delivery-masked", true),
    ("no-eoi", true),
    ("halt", true),
    ("interrupt-shadow", false),
    ("timer", true),
    ("timer-mixed", true),
    ("ticks", true),
    ("timer-nested", true),
    ("timer-floor", false),
    ("lowest-vectors", false),
    ("idt-shown", false),
    ("idt-move", true),
    ("idt-limit", true),
    ("idt-write", true),
    ("idt-remap", false),
    ("self-ipi", false),
    ("apic-modes", false),
    ("apic-xapic", false),
    ("apic-interrupts", true),
    ("apic-disabled", true),
    ("apic-noise", false),
    ("self-nmi", false),
    ("msi-program", true),
    ("spurious-vector", false),
    ("low-vectors", true),
    ("nested", true),
    ("low-gates", false),
    ("stackless", true),
    ("bar-move", false),
    ("dma-confine", false),
    ("bus-master", false),
    ("state", false),
    ("bad-msr", false),
    ("bad-port", false),
    ("open-port", false),
    ("bad-config", false),
    ("config-memory", true),
    ("bad-efer", false),
    ("bad-xcr", false),
    ("bad-cr3", false),
    ("bad-cr4", false),
    ("bad-control", false),
    ("bad-instruction", false),
    ("mmio-forms", true),
    ("lock-mov-cr0", false),
    ("direction", false),
    ("compatibility", false),
    ("wild-load", false),
    ("wild-store", true),
];

/// Of these, what the quick test has under `direct`.
const QUICK_DIRECT: [&str; 2] = ["delivery", "timer"];

/// The same in one boot of the bare machine; last what leaves an interrupt behind. Not
/// `apic-disabled` and `apic-noise`: QEMU's own local APIC keeps its interrupts when it is switched
/// off, accepts more when it is disabled by software, and sends exceptions' vectors.
const ALL_BARE: &str = "hello,exceptions,true-np,delivery,delivery-masked,no-eoi,halt,\
    interrupt-shadow,timer,timer-mixed,ticks,timer-nested,idt-shown,idt-move,idt-limit,idt-write,idt-remap,self-ipi,self-nmi,\
    apic-modes,apic-xapic,apic-interrupts,msi-program,\
    spurious-vector,nested,low-gates,stackless,bar-move,dma-confine,bus-master,state,bad-msr,bad-port,bad-config,bad-efer,bad-xcr,\
    bad-cr3,bad-cr4,bad-control,bad-instruction,mmio-forms,lock-mov-cr0,wild-load,wild-store,low-vectors";

/// Tests after which the VM is gone.
const ENDS: [(&str, Expected, bool); 8] = [
    ("power-off", Expected::PowerOff, true),
    ("reset-acpi", Expected::Reset, false),
    ("reset-chipset", Expected::Reset, false),
    ("reset-keyboard", Expected::Reset, false),
    ("triple-fault", Expected::Fault("triple fault"), true),
    ("exchanged-code", Expected::Fault("that the guest has switched off"), false),
    (
        "wild-jump",
        Expected::Fault("ran code or used page tables at guest-physical address 0x90000000"),
        false,
    ),
    (
        "wild-tables",
        Expected::Fault("ran code or used page tables at guest-physical address 0x90000000"),
        false,
    ),
];

/// What a VM does while its neighbour's heartbeat must go on.
const ATTACKS: [(&str, Expected, bool); 13] = [
    ("triple-fault", Expected::Fault("triple fault"), true),
    ("wild-store", Expected::Passed, false),
    (
        "wild-jump",
        Expected::Fault("ran code or used page tables at guest-physical address 0x90000000"),
        false,
    ),
    ("bad-cr4", Expected::Passed, false),
    ("bad-control", Expected::Passed, false),
    ("bad-efer", Expected::Passed, false),
    ("bad-xcr", Expected::Passed, false),
    ("bad-msr", Expected::Passed, false),
    ("bad-port", Expected::Passed, false),
    ("bad-config", Expected::Passed, false),
    ("msi-program", Expected::Passed, false),
    ("dma-confine", Expected::Passed, false),
    ("self-nmi", Expected::Passed, false),
];

/// Of these, what a guest that owns its local APIC does beside one that does too.
const DIRECT_ATTACKS: [&str; 4] = ["bad-msr", "self-nmi", "low-vectors", "lowest-vectors"];

/// Host instructions that an interrupt of a guest's to itself may cost, sent and completed, with
/// nothing assigned: the same under `trap` and `eli`.
const UNASSIGNED_BUDGET: u64 = 1_100;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Eli, Policy::Direct] {
        let group = policy.label();
        for (test, quick) in TESTS {
            let quick = quick && (policy != Policy::Direct || QUICK_DIRECT.contains(&test));
            cases.push(case(format!("{group}/{test}"), quick, [guest(test, policy)]));
        }
        for (test, end, quick) in ENDS {
            let guest = Guest { end, ..guest(test, policy) };
            cases.push(case(format!("{group}/{test}"), quick && policy == Policy::Eli, [guest]));
        }
        let pvh = Guest { variant: Variant::Pvh, says: vec!["by pvh"], ..guest("hello", policy) };
        cases.push(case(format!("{group}/hello-pvh"), policy == Policy::Eli, [pvh]));
        cases.push(case(
            format!("{group}/restart"),
            policy == Policy::Direct,
            [again("restart", policy)],
        ));
        let faults = again("triple-fault-again", policy);
        let says = vec!["0 triple faults so far", "3 triple faults so far"];
        let faults = Guest { says, counts: vec![(Reason::Shutdown, 3..=3)], ..faults };
        cases.push(Case {
            log: vec!["triple fault; it starts again"],
            ..case(format!("{group}/triple-fault-again"), policy == Policy::Direct, [faults])
        });
        cases.push(case(
            format!("{group}/reset-state"),
            policy == Policy::Eli,
            [again("reset-state", policy)],
        ));
        let both = Guest { devices: vec![edu(0), nvme(0)], ..again("restart-devices", policy) };
        cases.push(case(format!("{group}/restart-devices"), policy == Policy::Eli, [both]));
        let pair = [guest("delivery", policy), second(guest("delivery", policy))];
        cases.push(case(format!("pair/delivery-{group}"), policy == Policy::Eli, pair));
    }
    cases.push(Case {
        log: vec!["reads at port 0x64, nothing there", "writes at 0x90000000, nothing there"],
        ..case("trap/poll-nothing".to_owned(), false, [guest("poll-nothing", Policy::Trap)])
    });
    let line = "uses its device 00:10.0 without MSI and MSI-X";
    cases.push(Case {
        log: vec![line],
        typed: Some(Cue::Log(line)),
        ..case("eli/intx".to_owned(), false, [guest("intx", Policy::Eli)])
    });
    // A second later nothing leads to its device any more, or from it.
    for policy in [Policy::Eli, Policy::Direct] {
        let pair = [guest("end-at-work", policy), heartbeat("beats=40", policy)];
        let ended = case(format!("ended/at-work-{}", policy.label()), false, pair);
        cases.push(Case { silent: true, ..ended });
    }
    let mixed = [guest("timer-mixed", Policy::Eli), second(guest("timer-mixed", Policy::Trap))];
    cases.push(case("pair/timer-mixed".to_owned(), false, mixed));
    let mixed = [guest("timer-mixed", Policy::Direct), second(guest("timer-mixed", Policy::Eli))];
    cases.push(case("pair/timer-mixed-direct".to_owned(), false, mixed));
    cases.push(case(
        "eli-delivery/delivery".to_owned(),
        true,
        [guest("delivery", Policy::EliDelivery)],
    ));
    cases.push(case("auto/delivery".to_owned(), true, [guest("delivery", None)]));
    for (test, end, quick) in ATTACKS {
        let attacker = Guest { end, ..guest(test, Policy::Eli) };
        cases.push(case(format!("pair/{test}"), quick, [attacker, heartbeat("", Policy::Eli)]));
    }
    for test in DIRECT_ATTACKS {
        let pair = [guest(test, Policy::Direct), heartbeat("", Policy::Direct)];
        cases.push(case(format!("pair/{test}-direct"), false, pair));
    }
    // The same counts and the same price, with nothing for ELI to gain.
    let both = [Policy::Trap, Policy::Eli]
        .map(|policy| Guest { devices: Vec::new(), ..guest("unassigned", policy) });
    let what = "an interrupt to itself and its completion";
    let trap = Budget::new(what, 1000, UNASSIGNED_BUDGET);
    let windows = vec![trap, Budget { than: Than::NotMoreThanBefore, ..trap }];
    cases.push(Case { windows, ..case("pair/unassigned".to_owned(), true, both) });
    let quiet = case("direct/watched".to_owned(), true, [guest("quiet", Policy::Direct)]);
    cases.push(Case { machine: Special::Watched, ..quiet });
    // A button's NMI: QEMU sends it to LINT1 of every CPU. No core sent it, and the guest has none
    // of it.
    let beats = heartbeat("beats=40", Policy::Direct);
    cases.push(Case {
        machine: Special::Monitored { when: "heartbeat 1\n", words: "nmi", arguments: &[] },
        log: vec!["NMIs that no core sent: 1; port 0x61 gives no reason"],
        ..case("direct/platform-nmi".to_owned(), false, [beats])
    });
    for (name, machine) in [("bare/all", Special::BareWithoutIommu), ("bare/iommu", Special::Bare)]
    {
        let guest = guest(ALL_BARE, Policy::Trap);
        let guest = Guest { says: Vec::new(), variant: Variant::Pvh, ..guest };
        cases.push(Case { machine, ..case(name.to_owned(), false, [guest]) });
    }
    cases
}

/// A case that is special in nothing.
pub fn case<const N: usize>(name: String, quick: bool, guests: [Guest; N]) -> Case {
    let (machine, expect) = (Special::None, Expect::Ends);
    Case {
        name,
        quick,
        long: false,
        guests: guests.into(),
        networks: Vec::new(),
        sidecores: 0,
        host: Host::default(),
        log: Vec::new(),
        unsaid: Vec::new(),
        audited: false,
        silent: false,
        finding: None,
        typed: None,
        iommu: Iommu::VtD,
        machine,
        slice_us: plan::DEFAULT_SLICE,
        expect,
        windows: Vec::new(),
        prices: Vec::new(),
    }
}

/// No interrupt of a device, nor its completion, may have come to the host.
pub fn nothing_by_host() -> Vec<(Reason, RangeInclusive<u64>)> {
    vec![(Reason::DeviceInterrupt, NONE), (Reason::DeviceEoi, NONE)]
}

/// A VM with the first `edu`.
pub fn guest(tests: &'static str, policy: impl Into<Choice>) -> Guest {
    let policy = policy.into();
    let counts = match (tests, policy) {
        ("delivery" | "halt", Some(Policy::Eli | Policy::Direct) | None) => nothing_by_host(),
        ("delivery", Some(Policy::EliDelivery)) => {
            vec![(Reason::DeviceInterrupt, NONE), (Reason::DeviceEoi, 100..=100)]
        }
        ("delivery", _) => {
            vec![(Reason::DeviceInterrupt, 100..=100), (Reason::DeviceEoi, 100..=100)]
        }
        ("timer" | HEARTBEAT, Some(Policy::Direct)) => {
            [Reason::TimerInterrupt, Reason::TimerEoi].map(|r| (r, NONE)).into()
        }
        ("timer" | HEARTBEAT, Some(Policy::Posted)) => {
            vec![(Reason::TimerInterrupt, 5..=u64::MAX), (Reason::TimerEoi, NONE)]
        }
        ("timer", _) => vec![(Reason::TimerInterrupt, 20..=100)],
        (HEARTBEAT, _) => vec![(Reason::TimerInterrupt, 5..=u64::MAX)],
        _ => Vec::new(),
    };
    let incident = matches!(tests, "wild-load" | "wild-store").then_some("90000000");
    Guest {
        tests,
        options: "",
        stream: None,
        cpus: 1,
        cores: Cores::Next,
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        variant: Variant::Multiboot,
        policy,
        devices: vec![edu(0)],
        disks: Vec::new(),
        interfaces: Vec::new(),
        restarts: false,
        nested: false,
        iommu: plan::GuestIommu::None,
        end: Expected::Passed,
        says: vec!["by multiboot"],
        counts,
        by_host: None,
        incident,
    }
}

/// A VM that resets once and starts again.
pub fn again(tests: &'static str, policy: Policy) -> Guest {
    Guest { restarts: true, says: vec!["life 0\n", "life 1\n"], ..guest(tests, policy) }
}

/// The same with the second `edu`.
pub fn second(guest: Guest) -> Guest {
    Guest { devices: vec![edu(1)], ..guest }
}

/// The neighbour: with `beats=N` so long, else until all others have ended.
pub fn heartbeat(options: &'static str, policy: Policy) -> Guest {
    Guest {
        options,
        devices: Vec::new(),
        says: vec!["heartbeat 5\n", "ok heartbeat: 0 of"],
        ..guest(HEARTBEAT, policy)
    }
}

/// An NVMe controller.
pub fn nvme(index: u8) -> DeviceName {
    DeviceName::Named { class: Class::Nvme, index }
}

/// A device that is QEMU's own, for learners.
pub fn edu(index: u8) -> DeviceName {
    DeviceName::Named { class: Class::Edu, index }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::{hostile, refusals, smp};
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for case in all().into_iter().chain(smp::all()).chain(refusals::all()).chain(hostile::all())
        {
            assert!(seen.insert(case.name.clone()), "{} stands twice", case.name);
        }
    }

    #[test]
    fn no_device_has_two_owners_unless_that_is_the_test() {
        for case in all().into_iter().chain(smp::all()).chain(hostile::all()) {
            let devices: Vec<_> = case.guests.iter().flat_map(|g| &g.devices).collect();
            let distinct: HashSet<_> = devices.iter().map(|d| d.to_string()).collect();
            assert_eq!(devices.len(), distinct.len(), "{}", case.name);
        }
    }
}
