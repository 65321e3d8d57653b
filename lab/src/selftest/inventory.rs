//! What the hypervisor tells of a machine when it is started without a plan.

use super::case::{Case, Expect, Special, Strange};
use super::cases::{case, guest};
use super::strange::USUAL;
use plan::Policy;

/// What is said of the machine's unit.
const ON_VT_D: &str = "IOMMU: VT-d at 0xfed90000, remaps interrupts";
const ON_AMD_VI: &str = "IOMMU: AMD-Vi at 0xfed80000, remaps interrupts";

/// The same case, where the unit is AMD's.
pub fn on_amd_vi(case: Case) -> Case {
    let Expect::Tells(parts) = case.expect else { return case };
    let same = |part: &'static str| if part == ON_VT_D { ON_AMD_VI } else { part };
    Case { expect: Expect::Tells(parts.into_iter().map(same).collect()), ..case }
}

/// A machine that has everything, one whose CPU won't do, and one without an IOMMU.
pub fn all() -> Vec<Case> {
    let of = |name: &str, cpu, parts| {
        let (machine, expect) = (Special::NoImage(cpu), Expect::Tells(parts));
        // What a plan would have asked for.
        let case = case(format!("inventory/{name}"), true, [guest("hello", Policy::Eli)]);
        Case { machine, expect, ..case }
    };
    let whole = of(
        "whole",
        "max",
        vec![
            "processor: ",
            "cores for guests: 1",
            ON_VT_D,
            "1234:11e8 class 00ff00: edu0; 1 MSI; no reset",
            "is a bridge",
            "no VM can have interrupts posted here: ",
        ],
    );
    let lacking = of(
        "no-svm",
        "max,-svm",
        vec!["no VM can run here: the CPU has neither SVM (AMD-V) nor VMX", "edu0"],
    );
    let mut bare =
        of("no-iommu", "max", vec!["no VM can have a device here: the machine has no us"]);
    bare.machine = Special::Strange(Strange { iommu: false, image: false, ..USUAL });
    vec![whole, lacking, bare]
}
