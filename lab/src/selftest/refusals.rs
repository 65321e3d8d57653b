//! What can't run and must be told so in one sentence, with a non-zero status.

use super::case::{Case, Expect, Guest, Special};
use super::cases::{case, guest};
use super::kernel::Variant;
use plan::{Class, DeviceName, Policy};

/// A machine that lacks something, and what the sentence must name.
type Lack = (&'static str, Special, &'static [&'static str]);

const MACHINES: [Lack; 9] = [
    ("no-svm", Special::Cpu("max,-svm"), &["SVM"]),
    ("no-nested-paging", Special::Cpu("max,-npt"), &["nested paging"]),
    ("no-x2apic", Special::Cpu("max,-x2apic"), &["x2APIC"]),
    ("no-iommu", Special::NoIommu, &["first", "edu0", "IOMMU"]),
    (
        "no-interrupt-remapping",
        Special::NoInterruptRemapping,
        &["interrupt remapping", "trust-every-guest"],
    ),
    ("one-core", Special::OneCore, &["core 1"]),
    ("little-memory", Special::Memory(64), &["lower its memory"]),
    ("damaged-image", Special::DamagedImage, &["boot image"]),
    ("half-image", Special::HalfImage, &["boot image"]),
];

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, machine, words) in MACHINES {
        let expect = Expect::Refused(words.to_vec());
        let quick = matches!(name, "no-svm" | "no-iommu" | "damaged-image");
        cases.push(Case { machine, expect, ..plain(name, quick, vm()) });
    }
    let posted = Guest { policy: Some(Policy::Posted), ..vm() };
    let expect = Expect::Refused(vec!["first", "Intel's processors"]);
    cases.push(Case { expect, ..plain("posted", true, posted) });
    // What the command line would see, handed to the hypervisor all the same.
    let broken = || Guest { variant: Variant::Broken, ..vm() };
    let refused = Case {
        machine: Special::Unchecked,
        expect: Expect::Refused(vec!["first", "kernel"]),
        ..plain("broken-kernel", false, broken())
    };
    let rejected = Case {
        expect: Expect::Rejected(vec!["first", "kernel"]),
        ..plain("broken-kernel-early", true, broken())
    };
    cases.extend([refused, rejected]);
    // No such device; the host bridge; the bridge of the ISA devices.
    let address = |device, function| DeviceName::Address { segment: 0, bus: 0, device, function };
    let devices = [
        ("absent-address", address(0x1E, 0), "00:1e.0"),
        ("absent-class", DeviceName::Named { class: Class::Usb, index: 0 }, "usb0"),
        ("host-bridge", address(0, 0), "00:00.0"),
        ("isa-bridge", address(0x1F, 0), "00:1f.0"),
    ];
    for (name, device, word) in devices {
        let guest = Guest { devices: vec![device], ..vm() };
        let expect = Expect::Refused(vec![word]);
        cases.push(Case { expect, ..plain(name, name == "absent-class", guest) });
    }
    // Firmware put its registers over the IOMMU's.
    let guest = Guest { devices: vec![address(0x15, 0)], ..vm() };
    let machine = Special::Unplaced(&["edu,addr=15.0"]);
    let expect = Expect::Refused(vec!["00:15.0", "where memory or registers of the host's are"]);
    cases.push(Case { machine, expect, ..plain("misplaced", false, guest) });
    // Twice by one name, and by two names.
    let twice = case("refuse/assigned-twice".to_owned(), true, [vm(), vm()]);
    cases.push(Case { expect: Expect::Rejected(vec!["edu0", "first", "second"]), ..twice });
    let alias = Guest { devices: vec![address(0x10, 0)], ..vm() };
    let twice = case("refuse/assigned-twice-by-address".to_owned(), false, [vm(), alias]);
    cases.push(Case { expect: Expect::Refused(vec!["00:10.0", "first", "edu0"]), ..twice });
    cases
}

fn plain(name: &str, quick: bool, guest: Guest) -> Case {
    case(format!("refuse/{name}"), quick, [guest])
}

fn vm() -> Guest {
    guest("hello", Policy::Eli)
}
