//! The guest's own IOMMU with registers, VT-d's or AMD-Vi's: the test kernel's driver, with a
//! sidecore that polls them and without, Debian's kernel, and an attacker beside a neighbour.

use super::case::{Case, Expected, Guest, Special};
use super::cases::{again, case, edu, guest, heartbeat, nvme, second};
use super::cost::Budget;
use super::kernel::Variant;
use exitless::report::VmReport;
use ledger::Reason;
use plan::{DeviceName, GuestIommu, Policy};

/// A vendor's unit: what the cases and the tests are called by, and what is its own.
struct Unit {
    group: &'static str,
    tests: Tests,
    iommu: GuestIommu,
    optimistic: GuestIommu,
    /// Host instructions that a map and an unmap may cost, each with its exit: the unit looks for
    /// both in the guest's tables.
    pair_budget: u64,
    /// What Debian's kernel is told.
    linux: &'static str,
    /// Behind the group, the cases that a whole test has without being asked; none: all.
    usual: &'static [&'static str],
}

/// The test kernel's tests.
struct Tests {
    translated: &'static str,
    interrupts: &'static str,
    nvme: &'static str,
    optimistic: &'static str,
    faults: &'static str,
    held: &'static str,
    exits: &'static str,
    cost: &'static str,
    hostile: &'static str,
    restart: &'static str,
}

/// Those whose names begin so.
macro_rules! tests {
    ($unit:literal) => {
        Tests {
            translated: $unit,
            interrupts: concat!($unit, "-interrupts"),
            nvme: concat!($unit, "-nvme"),
            optimistic: concat!($unit, "-optimistic"),
            faults: concat!($unit, "-faults"),
            held: concat!($unit, "-held"),
            exits: concat!($unit, "-exits"),
            cost: concat!($unit, "-cost"),
            hostile: concat!($unit, "-hostile"),
            restart: concat!($unit, "-restart"),
        }
    };
}

const VT_D: Unit = Unit {
    group: "vtd-guest/",
    tests: tests!("vtd"),
    iommu: GuestIommu::VtD,
    optimistic: GuestIommu::VtDOptimistic,
    pair_budget: 12_000,
    linux: "intel_iommu=on iommu.passthrough=0 iommu.strict=1 exitless.workload=verify exitless.disk=nvme0n1",
    usual: &[],
};

const AMD_VI: Unit = Unit {
    group: "amdvi-guest/",
    tests: tests!("amdvi"),
    iommu: GuestIommu::AmdVi,
    optimistic: GuestIommu::AmdViOptimistic,
    pair_budget: 12_700,
    linux: "iommu.passthrough=0 iommu.strict=1 exitless.workload=verify exitless.disk=nvme0n1",
    usual: &[
        "translated-direct",
        "interrupts-direct",
        "interrupts-eli",
        "nvme",
        "nvme-exits",
        "optimistic",
        "faults",
        "no-exit",
        "one-exit",
        "cost",
        "hostile",
        "hostile-exits",
        "linux",
        "restart",
    ],
};

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
/// Commands that the unit has for them: each block is written and read, mapped and unmapped, each
/// with a command to wait by.
const REQUESTS: u64 = 2 * 2 * 2 * ((2 << 20) / 4096);
/// Exits for the unit that it has at most, before it is polled.
const SET_UP: u64 = 64;

/// Tests of which a seed decides what they do to the guest's own IOMMU.
pub const ATTACKERS: [(&str, GuestIommu); 3] = [
    ("viommu-hostile", GuestIommu::Virtio),
    (VT_D.tests.hostile, VT_D.iommu),
    (AMD_VI.tests.hostile, AMD_VI.iommu),
];

/// One of [`ATTACKERS`], with this one of the machine's test devices behind its unit.
pub fn attacker((test, iommu): (&'static str, GuestIommu), device: u8, policy: Policy) -> Guest {
    Guest { iommu, devices: vec![edu(device)], counts: Vec::new(), ..guest(test, policy) }
}

/// All of them.
pub fn all() -> Vec<Case> {
    [VT_D, AMD_VI].iter().flat_map(Unit::cases).collect()
}

impl Unit {
    fn cases(&self) -> Vec<Case> {
        let mut cases = self.of_devices();
        cases.extend(self.of_the_unit());
        for case in &mut cases {
            let is_usual = self.usual.is_empty() || self.usual.contains(&case.name.as_str());
            case.long = !is_usual;
            case.name.insert_str(0, self.group);
        }
        cases
    }

    fn guest(&self, tests: &'static str, policy: Policy) -> Guest {
        Guest { iommu: self.iommu, counts: Vec::new(), ..guest(tests, policy) }
    }

    /// What devices do behind it.
    fn of_devices(&self) -> Vec<Case> {
        let tests = &self.tests;
        let mut cases = Vec::new();
        for policy in [Policy::Eli, Policy::Direct] {
            let translated = [self.guest(tests.translated, policy)];
            let name = |what: &str| format!("{what}-{}", policy.label());
            let quick = policy == Policy::Direct;
            cases.push(polled(case(name("translated"), quick, translated)));
            // Interrupts of a device, remapped by the guest, are no exits.
            let remapped = self.guest(tests.interrupts, policy);
            let remapped = Guest { options: "exits=0", cpus: 2, ..remapped };
            cases.push(polled(case(name("interrupts"), quick, [remapped])));
        }
        let trapped = Guest { cpus: 2, ..self.guest(tests.interrupts, Policy::Trap) };
        cases.push(case("interrupts-trap".to_owned(), false, [trapped]));
        let by_exits = self.guest(tests.translated, Policy::Direct);
        cases.push(case("translated-exits".to_owned(), false, [by_exits]));
        let controller = |iommu, tests| {
            let guest = self.guest(tests, Policy::Direct);
            [Guest { iommu, devices: vec![nvme(0)], ..guest }]
        };
        let translated = || controller(self.iommu, tests.nvme);
        cases.push(polled(case("nvme".to_owned(), false, translated())));
        cases.push(case("nvme-exits".to_owned(), true, translated()));
        let optimistic = controller(self.optimistic, tests.optimistic);
        cases.push(polled(case("optimistic".to_owned(), true, optimistic)));
        let linux = polled(case("linux".to_owned(), false, [self.linux()]));
        cases.push(Case { machine: Special::Arguments(&KEEPING), ..linux });
        cases
    }

    /// What the unit itself does.
    fn of_the_unit(&self) -> Vec<Case> {
        let tests = &self.tests;
        let mut cases = Vec::new();
        // The interrupt is sent by core 0 to a vCPU that takes its own, and to one that doesn't.
        let faults = |policy| [self.guest(tests.faults, policy)];
        cases.push(polled(case("faults".to_owned(), true, faults(Policy::Direct))));
        cases.push(polled(case("faults-eli".to_owned(), false, faults(Policy::Eli))));
        cases.push(case("faults-exits".to_owned(), false, faults(Policy::Trap)));
        // One keeps its unit busy, and what another's device does is told of by the interrupt for
        // it.
        let busy = self.guest(tests.held, Policy::Direct);
        let held = [busy, second(guest("dma-slow", Policy::Direct))];
        let log = vec!["by device 00:11.0 was blocked", "reported by elsewhere"];
        let held = case("faults-held".to_owned(), false, held);
        cases.push(Case { log, unsaid: vec!["reported by nobody"], ..held });
        let counted = |options| [Guest { options, ..self.guest(tests.exits, Policy::Direct) }];
        cases.push(polled(case("no-exit".to_owned(), true, counted("exits=0"))));
        cases.push(case("one-exit".to_owned(), true, counted("exits=1")));
        let pairs = case("cost".to_owned(), true, [self.guest(tests.cost, Policy::Direct)]);
        cases.push(cost(self.pair_budget, pairs));
        let attacker = |options| {
            let attacker = Guest { options, ..self.guest(tests.hostile, Policy::Direct) };
            [attacker, heartbeat("", Policy::Direct)]
        };
        cases.push(polled(case("hostile".to_owned(), false, attacker("seed=1"))));
        cases.push(case("hostile-exits".to_owned(), false, attacker("seed=2")));
        let restart = || {
            let guest = again(tests.restart, Policy::Direct);
            [Guest { iommu: self.iommu, counts: Vec::new(), ..guest }]
        };
        cases.push(polled(case("restart".to_owned(), false, restart())));
        cases.push(case("restart-exits".to_owned(), false, restart()));
        cases
    }

    /// Debian's kernel with its own driver of the unit, which writes blocks of a disk and verifies
    /// them; what it does for them is no exit.
    fn linux(&self) -> Guest {
        Guest {
            tests: "",
            variant: Variant::Linux,
            iommu: self.iommu,
            devices: vec![KEEPING_AT],
            end: Expected::PowerOff,
            options: self.linux,
            says: vec![VERIFIED],
            counts: vec![(Reason::GuestIommu, 1..=SET_UP)],
            ..guest("hello", Policy::Direct)
        }
    }
}

/// Did the unit have what Debian's kernel asks of it for its blocks?
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    let has_unit = matches!(guest.iommu, GuestIommu::VtD | GuestIommu::AmdVi);
    let done = vm.paravirtual.total().completed;
    if guest.variant == Variant::Linux && has_unit && done < REQUESTS {
        wrong.push(format!("its IOMMU did {done} commands, {REQUESTS} wanted at least"));
    }
}

/// The same with a window around a thousand pairs of map and unmap.
pub fn cost(host_each: u64, case: Case) -> Case {
    let what = "a map and an unmap, each by an exit";
    Case { windows: vec![Budget::new(what, 1000, host_each)], ..case }
}

/// The same with a sidecore.
pub fn polled(case: Case) -> Case {
    Case { sidecores: 1, ..case }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_there() {
        for unit in [VT_D, AMD_VI] {
            let cases = unit.cases();
            for usual in unit.usual {
                let name = format!("{}{usual}", unit.group);
                assert!(cases.iter().any(|case| case.name == name && !case.long), "{name}");
            }
        }
    }
}
