//! Wrong entries of each kind in what confines a VM, planted while it runs: core 0's audit must
//! find each, tell of it, and stop the VM that it is about. In an image of its own (`hypervisor`'s
//! feature `plant`).

use super::case::{Case, Cores, Expect, Expected, Guest, Special};
use super::cases::{case, guest, heartbeat};
use super::{parts, virtio};
use plan::Policy;

/// A name, what is planted (`hypervisor/src/host/plant.rs`), what the finding says, and whether a
/// VM is stopped for it.
type Planted = (&'static str, &'static str, &'static str, bool);

const ALL: [Planted; 22] = [
    ("host-page", "what=0", "nested page tables of VM \"first\"", true),
    ("writable-ledger", "what=1", "nested page tables of VM \"first\"", true),
    ("led-astray", "what=2", "nested page tables of VM \"first\"", true),
    ("own-table", "what=3", "which is no table's frame", true),
    ("dma-host", "what=4", "DMA page tables of VM \"first\"", true),
    ("dma-table", "what=5", "DMA page tables of VM \"first\"", true),
    ("interrupt-core", "what=6", "nobody may by it", true),
    ("interrupt-vector", "what=7", "nobody may by it", true),
    ("interrupt-nmi", "what=8", "nobody may by it", true),
    ("interrupt-source", "what=9 told=1", "nobody may by it", false),
    ("interrupt-any-source", "what=10", "is none of this driver's", true),
    ("interrupt-owner", "what=11", "nobody may by it", true),
    ("context-through", "what=12", "is none of this driver's", true),
    ("context-stranger", "what=13 told=1", "isn't its own", false),
    ("bus", "what=14 told=1", "which the host didn't write", false),
    ("command", "what=16", "more than its guest switched on", true),
    ("bar", "what=17", "was written there", true),
    ("intercept", "what=18", "word 0x10 of its control block", true),
    ("msr-open", "what=19", "lets writes of MSR 0x1b pass", true),
    ("port-open", "what=20", "lets accesses to port 0x60 pass", true),
    ("local-source", "what=21", "local interrupt source at MSR 0x837 reads 0x20", true),
    ("unit-off", "what=15", "doesn't remap everything", true),
];

/// What the finding says where the unit is AMD's, for what is another thing there
/// (`hypervisor/src/host/plant/amd.rs`).
const ON_AMD_VI: [(&str, &str); 6] = [
    ("interrupt-nmi", "is none of this driver's"),
    ("interrupt-source", "for interrupts, which the host didn't write"),
    ("interrupt-any-source", "for interrupts, which the host didn't write"),
    ("context-through", "isn't its own"),
    ("bus", "is none of this driver's"),
    ("unit-off", "doesn't confine every device by the host's table"),
];

/// The same case, where the unit is AMD's.
pub fn on_amd_vi(mut case: Case) -> Case {
    let same = |(name, _): &(&str, &str)| case.name.strip_prefix("planted/") == Some(name);
    if let Some((_, finding)) = ON_AMD_VI.into_iter().find(same) {
        case.finding = Some(finding);
        if let Some(guest) = case.guests.first_mut()
            && let Expected::Fault(told) = &mut guest.end
        {
            *told = finding;
        }
    }
    case
}

/// All of them; beside each a VM that must not notice.
pub fn all() -> Vec<Case> {
    let of = |(name, options, finding, stopped): Planted| {
        let end = if stopped { Expected::Fault(finding) } else { Expected::Passed };
        let planter = Guest { end, options, ..guest("planted", Policy::Eli) };
        let pair = [planter, heartbeat("", Policy::Eli)];
        let case = case(format!("planted/{name}"), name == "host-page", pair);
        Case { machine: Special::Planted, finding: Some(finding), ..case }
    };
    // Not for the audit: interrupts by vectors that are exceptions to the host, on a core that a
    // guest has left.
    let late = [guest("late-interrupts", Policy::Direct), heartbeat("beats=20", Policy::Eli)];
    let late = case("planted/late-interrupts".to_owned(), false, late);
    let late = Case { machine: Special::Planted, ..late };
    // The host's own exception among them is a bug, and is told as one.
    let faulting = Guest { options: "fault=1", ..guest("late-interrupts", Policy::Direct) };
    let faulting = [faulting, heartbeat("beats=2000", Policy::Eli)];
    let faulting = case("planted/late-exception".to_owned(), false, faulting);
    let expect = Expect::Panics("exception 13 with error code 0x0");
    let faulting = Case { machine: Special::Planted, expect, ..faulting };
    let others = [late, faulting, driven(), inner("", "what=25"), inner("-registers", "what=26")];
    ALL.into_iter().map(of).chain(others).chain(cores_left_out()).collect()
}

/// A page of a guest's guest leads to the host, or to registers of nobody's.
fn inner(kind: &str, options: &'static str) -> Case {
    let finding = "page tables of the guests of VM \"first\"";
    let end = Expected::Fault(finding);
    let planter = guest("planted-inner", Policy::Direct);
    let planter = Guest { end, options, nested: true, ..planter };
    let case = case(format!("planted/inner{kind}"), false, [planter, heartbeat("", Policy::Eli)]);
    Case { machine: Special::Planted, finding: Some(finding), ..case }
}

/// A controller that a sidecore drives for a VM reaches the host: it is cut off, and the VMs go on.
fn driven() -> Case {
    let planter = parts::on_part(virtio::with_disk(guest("planted", Policy::Eli)), 0);
    let (devices, options) = (guest("planted", Policy::Eli).devices, "what=24 told=1");
    let planter = Guest { devices, options, ..planter };
    let pair = [planter, heartbeat("", Policy::Eli)];
    let finding = Some("which a sidecore drives, the page of");
    let case = case("planted/driven".to_owned(), false, pair);
    let log = vec!["00:04.0 reaches no memory any more"];
    Case { machine: Special::Planted, sidecores: 1, finding, log, ..case }
}

/// Core 5 never starts (`hypervisor/src/cpu/startup.rs`): those beside it run VMs, and it runs
/// none. Nor does core 7, whose virtualisation reads as locked off.
fn cores_left_out() -> [Case; 3] {
    let at = |core, guest: Guest| Guest { cores: Cores::At(core), ..guest };
    let told = "core 5 (APIC id 5) doesn't start, though the firmware lists it";
    let beside =
        [at(4, guest("delivery", Policy::Direct)), at(6, heartbeat("beats=20", Policy::Eli))];
    let left_out = case("planted/silent-core".to_owned(), false, beside);
    let needed = [at(4, guest("hello", Policy::Eli)), at(5, heartbeat("beats=20", Policy::Eli))];
    let needed = case("planted/silent-core-needed".to_owned(), false, needed);
    let refused = vec!["second", "core 5 can't run it: the core didn't start"];
    let locked = [at(4, guest("hello", Policy::Eli)), at(7, heartbeat("beats=20", Policy::Eli))];
    let locked = case("planted/locked-core".to_owned(), false, locked);
    let why = "core 7 can't run it: the firmware has locked virtualisation off there";
    [
        Case { machine: Special::Planted, log: vec![told], ..left_out },
        Case { machine: Special::Planted, expect: Expect::Refused(refused), ..needed },
        Case { machine: Special::Planted, expect: Expect::Refused(vec!["second", why]), ..locked },
    ]
}
