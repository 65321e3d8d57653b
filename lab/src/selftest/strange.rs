//! Machines of kinds that servers are and the usual test machine isn't: each comes to a guest whose
//! device interrupts it a hundred times, or is refused by one sentence.

use super::case::{Case, Cores, Expect, Guest, Special, Strange};
use super::cases::{case, guest};
use plan::Policy;

/// As the usual one.
pub const USUAL: Strange =
    Strange { cpus: 3, cpu: "max", memory: 1, iommu: true, image: true, arguments: &[] };

/// Two sockets, each with memory of its own, a second root bus at the second, and nothing of a PC's
/// that a server may lack.
const TWO_NODES: Strange = Strange {
    cpus: 4,
    arguments: &[
        "-machine",
        "hpet=off,pic=off,i8042=off",
        "-smp",
        "4,sockets=2",
        "-object",
        "memory-backend-ram,id=near,size=512M",
        "-object",
        "memory-backend-ram,id=far,size=512M",
        "-numa",
        "node,cpus=0-1,memdev=near",
        "-numa",
        "node,cpus=2-3,memdev=far",
        "-device",
        "pxb-pcie,bus_nr=0x40,id=second,bus=pcie.0,numa_node=1",
    ],
    ..USUAL
};
/// APIC ids beyond 255, which only remapped interrupts reach.
const MANY_CPUS: Strange = Strange { cpus: 300, memory: 2, ..USUAL };
/// Places for 61 CPUs more, which firmware lists as absent.
const ABSENT_CPUS: Strange = Strange { arguments: &["-smp", "3,maxcpus=64"], ..USUAL };
const MUCH_MEMORY: Strange = Strange {
    memory: 900,
    arguments: &[
        "-machine",
        "memory-backend=all",
        "-object",
        "memory-backend-ram,id=all,size=900G,reserve=off",
    ],
    ..USUAL
};
/// More than a terabyte, behind which addresses of 40 bits end.
const MOST_MEMORY: Strange = Strange {
    cpu: "max,phys-bits=46",
    memory: 2048,
    arguments: &[
        "-machine",
        "memory-backend=all",
        "-object",
        "memory-backend-ram,id=all,size=2T,reserve=off",
    ],
    ..USUAL
};
/// The firmware of this machine has its tables in the last page of memory, where QEMU puts the end
/// of a boot image, too.
const NO_PM_TIMER: Strange = Strange {
    iommu: false,
    image: false,
    arguments: &["-machine", "microvm,acpi=on,pcie=on,ioapic2=on"],
    ..USUAL
};

/// All of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, machine, core| {
        let machine = Special::Strange(machine);
        let guest = Guest { cores: Cores::At(core), ..guest("delivery", Policy::Direct) };
        Case { machine, ..case(format!("strange/{name}"), false, [guest]) }
    };
    let refused = Expect::Refused(vec!["PM timer"]);
    vec![
        Case {
            log: vec!["VM \"first\": its cores and its memory are of node 1"],
            silent: true,
            ..of("two-nodes", TWO_NODES, 3)
        },
        of("many-cpus", MANY_CPUS, 299),
        Case { silent: true, ..of("absent-cpus", ABSENT_CPUS, 2) },
        of("much-memory", MUCH_MEMORY, 1),
        of("most-memory", MOST_MEMORY, 1),
        Case { expect: refused, ..of("no-pm-timer", NO_PM_TIMER, 1) },
    ]
}
