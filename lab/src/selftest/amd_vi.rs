//! The same cases on machines whose IOMMU is AMD's. What must come of them is the same: guests see
//! nothing of it, and the host's other code doesn't know whose it is.

use super::case::{Case, Expect, Guest, Special, Strange};
use super::cases::{case, guest};
use super::names::named;
use super::strange::USUAL;
use super::{inventory, planted};
use exitless::qemu::Iommu;
use plan::{DeviceName, Policy};

/// Begins the names of these cases.
const GROUP: &str = "amd-vi/";

/// Begins the names of those in which a guest is told of its devices' faults.
const GUEST_FAULTS: [&str; 2] = ["vtd-guest/faults", "amdvi-guest/faults"];

/// Those that every whole test has: a kind of each thing that the IOMMU has a part in.
const WHOLE: [&str; 28] = [
    "trap/delivery",
    "eli/delivery",
    "direct/delivery",
    "eli/msi-program",
    "eli/dma-confine",
    "eli/bus-master",
    "eli/restart-devices",
    "direct/hello",
    "smp-eli/affinity",
    "shared-eli/delivery",
    "topology/two-ports",
    "virtio/nvme-direct-two",
    "viommu/translated-direct",
    "viommu/nvme-exits",
    "viommu/hostile",
    "vtd-guest/translated-direct",
    "vtd-guest/interrupts-eli",
    "vtd-guest/nvme-exits",
    "vtd-guest/hostile",
    "planted/dma-host",
    "planted/interrupt-owner",
    "planted/context-stranger",
    "planted/unit-off",
    "hostile/devices-eli",
    "inventory/whole",
    "refuse/iommu",
    "refuse/ioapic-id",
    "refuse/no-dma-translation",
];

/// Whether a whole test has this one, without being asked for these machines.
pub fn is_usual(case: &Case) -> bool {
    case.name.strip_prefix(GROUP).is_some_and(|name| WHOLE.contains(&name))
}

/// Whether this text asks for these machines.
pub fn is_asked_for(text: &str) -> bool {
    text.contains("amd-vi")
}

/// Those of `cases` for which a machine's IOMMU matters, and what only these machines have.
pub fn of(cases: Vec<Case>) -> Vec<Case> {
    let concerned = |case: &Case| {
        let has_one = match &case.machine {
            Special::Strange(machine) => machine.iommu,
            machine => !matches!(machine, Special::NoIommu | Special::BareWithoutIommu),
        };
        // QEMU garbles interrupts that its unit is to forward as they are (11.1.3, seen): what is
        // sent to a vector of a CPU arrives at none.
        let garbled = !case.remaps() && case.expect == Expect::Ends;
        // And it tells of a page that it blocks as of an interrupt, without the address.
        let untold = GUEST_FAULTS.iter().any(|faults| case.name.starts_with(faults));
        has_one && !garbled && !untold && !matches!(case.expect, Expect::Rejected(_))
    };
    let moved =
        |case: Case| Case { name: format!("{GROUP}{}", case.name), iommu: Iommu::AmdVi, ..case };
    let cases =
        cases.into_iter().filter(concerned).map(planted::on_amd_vi).map(inventory::on_amd_vi);
    cases.chain(own()).map(moved).collect()
}

/// Functions that can't be a guest's: the unit is one, and another has the I/O APIC's id. And a
/// unit that firmware keeps from translating.
fn own() -> [Case; 3] {
    let refused = |name: &str, device, words: [&'static str; 2], machine| {
        let devices = vec![DeviceName::Address { segment: 0, bus: 0, device, function: 0 }];
        let guest = Guest { devices, ..guest("hello", Policy::Eli) };
        let expect = Expect::Refused(words.to_vec());
        Case { expect, machine, ..case(format!("refuse/{name}"), false, [guest]) }
    };
    let there = Special::Devices(&["edu,addr=14.0"]);
    let disabled = Strange { arguments: &["-global", "amd-iommu.dma-translation=off"], ..USUAL };
    let disabled = Case {
        machine: Special::Strange(disabled),
        expect: Expect::Refused(vec!["can't confine DMA", "HATDis"]),
        ..case("refuse/no-dma-translation".to_owned(), false, [guest("hello", Policy::Eli)])
    };
    [
        refused("iommu", 0x01, ["00:01.0", "an IOMMU of the machine"], Special::None),
        refused("ioapic-id", 0x14, ["00:14.0", "is that of I/O APIC 0"], there),
        disabled,
    ]
}

/// Whether a case's name, without these machines' part, has this text in it ([`named`]).
pub fn is_named(case: &Case, text: &str) -> bool {
    named(&case.name, text) || case.name.strip_prefix(GROUP).is_some_and(|name| named(name, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::all;

    #[test]
    fn the_usual_ones_are_there() {
        let there = of(all());
        assert_eq!(there.iter().filter(|case| is_usual(case)).count(), WHOLE.len());
        assert!(!all().iter().any(is_usual));
        assert!(there.iter().all(|case| is_asked_for(&case.name)));
        assert!(!there.iter().any(|case| case.name.ends_with("/no-iommu")));
    }

    #[test]
    fn names_are_those_of_the_other_machines() {
        let case = of(all()).into_iter().find(|c| c.name == "amd-vi/eli/delivery").unwrap();
        assert!(is_named(&case, "^eli/delivery$") && is_named(&case, "amd-vi/eli"));
        assert!(!is_named(&case, "^delivery"));
    }
}
