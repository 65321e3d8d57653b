//! What the hypervisor tells of a machine when it is started without a plan.

use super::case::{Case, Expect, Special};
use super::cases::{case, guest};
use plan::Policy;

/// A machine that has everything, and one whose CPU won't do.
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
        &[
            "processor: ",
            "cores for guests: 1",
            "IOMMU: VT-d at 0xfed90000, remaps interrupts",
            "1234:11e8 class 00ff00: edu0; 1 MSI; no reset",
            "is a bridge",
        ],
    );
    let lacking = of("no-svm", "max,-svm", &["no VM can run here: the CPU has no SVM", "edu0"]);
    vec![whole, lacking]
}
