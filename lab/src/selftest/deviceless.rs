//! Machines on which no VM can have a device: without an IOMMU, with one that remaps no interrupts
//! or lacks something else, or with neither that nor configuration space in memory. What a VM has
//! of sidecores works, and the machine's functions are silent.

use super::case::{Case, Cores, Expect, Guest, Special, Strange};
use super::cases::{case, guest, heartbeat};
use super::{smp, strange::USUAL, switch, virtio};
use plan::{Choice, Policy};

/// A board of 1996: no IOMMU, and configuration space by ports alone. Besides, controllers that
/// could reach memory.
const I440FX: Special = Special::Strange(Strange {
    cpus: 4,
    iommu: false,
    arguments: &["-machine", "pc", "-device", "e1000,addr=3,romfile=", "-device", "nvme,serial=a"],
    ..USUAL
});
/// A later one, whose IOMMU isn't there.
const Q35: Special = Special::Strange(Strange {
    cpus: 4,
    iommu: false,
    arguments: &["-device", "e1000e,addr=3,romfile="],
    ..USUAL
});
/// One whose VT-d unit knows only APIC ids of 8 bits.
const NO_EIM: Special = Special::Strange(Strange {
    cpus: 4,
    iommu: false,
    arguments: &["-device", "intel-iommu,intremap=on,eim=off", "-device", "e1000e,romfile="],
    ..USUAL
});

/// All of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, machine, quick, guests: Vec<Guest>| {
        let log = vec!["no VM can have a device on this machine", "whose bus mastering is off"];
        let case = case(format!("deviceless/{name}"), quick, []);
        Case { machine, log, guests, ..case }
    };
    let mut cases = Vec::new();
    for (name, machine) in [("q35", Q35), ("i440fx", I440FX)] {
        let quick = name == "i440fx";
        let named = |test: &str| format!("{name}-{test}");
        let own = vec![plain("timer", Policy::Direct), plain("hello", None)];
        cases.push(of(&named("own"), machine, quick, own));
        let several = Guest { devices: Vec::new(), ..smp::several("ipi-all", Policy::Direct) };
        cases.push(of(&named("several"), machine, false, vec![several]));
        let shared = ["timer", "self-ipi"].map(|test| shared(test, Policy::Eli));
        cases.push(of(&named("shared"), machine, false, shared.into()));
        let disk = vec![virtio::with_disk(guest("virtio-load", Policy::Direct))];
        cases.push(Case { sidecores: 1, ..of(&named("disk"), machine, false, disk) });
        let pair = switch::pair("net-exchange", Policy::Direct).into();
        cases.push(Case { sidecores: 1, ..of(&named("network"), machine, quick, pair) });
        let nested = Guest { nested: true, ..plain("svm-exits", None) };
        cases.push(of(&named("nested"), machine, false, vec![nested]));
    }
    for (name, machine) in [("no-remapping", Special::NoInterruptRemapping), ("no-eim", NO_EIM)] {
        let pair = vec![plain("hello", Policy::Eli), heartbeat("", Policy::Eli)];
        cases.push(of(name, machine, false, pair));
    }
    let expect = Expect::Refused(vec!["first", "edu0", "MCFG", "IOMMU"]);
    let refused = of("refused", I440FX, false, vec![guest("hello", Policy::Eli)]);
    cases.push(Case { expect, log: Vec::new(), ..refused });
    let expect = Expect::Refused(vec!["first", "edu0", "can't be used", "x2APIC"]);
    let refused = of("no-eim-refused", NO_EIM, false, vec![guest("hello", Policy::Eli)]);
    cases.push(Case { expect, log: Vec::new(), ..refused });
    cases
}

fn plain(tests: &'static str, policy: impl Into<Choice>) -> Guest {
    Guest { devices: Vec::new(), ..guest(tests, policy) }
}

fn shared(tests: &'static str, policy: Policy) -> Guest {
    Guest { cores: Cores::First, counts: Vec::new(), ..plain(tests, policy) }
}
