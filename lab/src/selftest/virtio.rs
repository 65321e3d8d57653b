//! Paravirtual disks: each test of the kernel's virtio-blk driver under each policy, on a core of
//! its own and on one that a neighbour has, too; and the same on the bare machine, whose disks are
//! QEMU's, so that the tests themselves are tested.

use super::case::{Case, Cores, Cue, Expect, Expected, Guest, HEARTBEAT, Special};
use super::cases::{again, case, guest, heartbeat, nothing_by_host};
use super::hostile;
use super::kernel::Variant;
use super::smp;
use anyhow::{Context as _, Result};
use exitless::report::VmReport;
use ledger::Reason;
use plan::{Backing, Coalesce, Control, Disk, Policy};
use proto::Served;
use std::{ffi::OsString, fs::File, path::Path};

/// Under each of these.
pub const POLICIES: [Policy; 4] = [Policy::Trap, Policy::EliDelivery, Policy::Eli, Policy::Direct];

/// Tests of one CPU, and whether the quick test has them (under `direct`, and shared under `eli`).
const TESTS: [(&str, bool); 7] = [
    ("virtio", true),
    ("virtio-negotiation", false),
    ("virtio-load", true),
    ("virtio-flags", false),
    ("virtio-poll", false),
    ("virtio-mask", true),
    ("virtio-reset", true),
];
/// Tests of several.
const SMP: [(&str, bool); 2] = [("virtio-queues", false), ("virtio-move", true)];

/// The same in one boot of the bare machine.
const BARE: &str = "virtio,virtio-negotiation,virtio-load,virtio-flags,virtio-poll,virtio-mask,virtio-reset,\
    virtio-queues,virtio-move";

/// The disk's sectors, and what the kernel is told of it.
pub const SECTORS: u64 = 32_768;
const SERIAL: &str = "exitless-virtio";
const OPTIONS: &str = "sectors=32768 serial=exitless-virtio";
const QUEUES: u16 = 4;
/// Bytes of a disk that keeps nothing, which its largest requests are within.
const NULL_BYTES: u64 = 4 << 30;
/// Requests of a load, and kicks that may come to the host meanwhile.
const REQUESTS: u64 = 20_000;
const MOST_KICKS: u64 = 10;

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in POLICIES {
        let of = |test: &'static str| with_disk(guest(test, policy));
        let of_several = |test: &'static str| with_disk(smp::several(test, policy));
        let quick = |quick| quick && policy == Policy::Direct;
        for (test, is_quick) in TESTS {
            cases.push(served(policy, test, quick(is_quick), [of(test)]));
        }
        for (test, is_quick) in SMP {
            cases.push(served(policy, test, quick(is_quick), [of_several(test)]));
        }
        cases.push(served(policy, "virtio-read-only", false, [read_only(policy)]));
        let again = with_disk(again("virtio-restart", policy));
        cases.push(served(policy, "virtio-restart", quick(true), [again]));
        // A device of its own beside it, whose interrupts take the other way.
        let devices = guest("delivery", policy).devices;
        let beside = Guest { devices, counts: Vec::new(), ..of("delivery,virtio-load") };
        cases.push(served(policy, "virtio-beside-device", quick(true), [beside]));
        // One sidecore, two VMs; and a sidecore for each.
        let two = || [of("virtio-load"), of("virtio-load")];
        cases.push(served(policy, "virtio-two", quick(true), two()));
        let each = served(policy, "virtio-two-sidecores", false, two());
        cases.push(Case { sidecores: 2, ..each });
        cases.push(controlled(policy));
        cases.push(limited(policy));
        cases.push(moved_often(policy));
        cases.extend(shared(policy));
    }
    cases.push(anew());
    let none = served(Policy::Eli, "virtio-no-sidecore", false, [with_disk(guest("hello", None))]);
    let expect = Expect::Rejected(vec!["[vm.first] disk", "sidecores = 1"]);
    cases.push(Case { sidecores: 0, expect, ..none });
    cases.push(bare("bare/virtio", BARE, false));
    cases.push(bare("bare/virtio-read-only", "virtio-read-only", true));
    cases
}

/// Served as what is compared with is: the driver kicks, and each completion is told.
fn controlled(policy: Policy) -> Case {
    let control = Control { kicks: true, coalesce: Coalesce::Off, ..Control::default() };
    let guest = with_disk(guest("virtio,virtio-mask,virtio-reset", policy));
    let guest = Guest { disks: vec![Disk { control, ..disk(false) }], ..guest };
    served(policy, "virtio-kicked", policy == Policy::Trap, [guest])
}

/// Its interrupt goes from CPU to CPU and from vector to vector under load, under all policies
/// together a million times.
fn moved_often(policy: Policy) -> Case {
    let options = "sectors=32768 serial=exitless-virtio moves=250000";
    let guest = Guest { options, ..with_disk(smp::several("virtio-move", policy)) };
    Case { long: true, ..served(policy, "virtio-many-moves", false, [guest]) }
}

/// A VM of the least weight has its queue begin anew all the time, beside one of the largest.
fn anew() -> Case {
    let null = Disk { size: NULL_BYTES, backing: Backing::Null, ..disk(false) };
    let of = |test, weight| {
        let guest = with_disk(guest(test, Policy::Direct));
        Guest { weight, disks: vec![null.clone()], counts: Vec::new(), ..guest }
    };
    let guests = [of("virtio-anew", 1), of("virtio-backlog", plan::MAX_WEIGHT)];
    let case = served(Policy::Direct, "virtio-anew", false, guests);
    Case { typed: Some(Cue::Ended(1)), ..case }
}

/// No more requests a second than its VM may have.
fn limited(policy: Policy) -> Case {
    let options = "sectors=32768 serial=exitless-virtio iops=500";
    let guest = Guest { options, ..with_limit(policy) };
    served(policy, "virtio-limit", policy == Policy::Direct, [guest])
}

/// A VM that may have 500 requests a second; its kernel is to be told by `iops=500`.
pub fn with_limit(policy: Policy) -> Guest {
    let limit = plan::Limit { iops: Some(500), rate: None };
    Guest { limit, ..with_disk(guest("virtio-limit", policy)) }
}

/// The same where another vCPU wants the core, too.
fn shared(policy: Policy) -> Vec<Case> {
    if policy == Policy::Direct {
        return Vec::new();
    }
    // How many exits there are depends on who has the core when.
    let beside = |g: Guest| Guest { cores: Cores::First, counts: Vec::new(), ..g };
    let one = TESTS.into_iter().map(|(test, quick)| {
        let two = [beside(with_disk(guest(test, policy))), beside(heartbeat("", policy))];
        served_shared(policy, test, quick && policy == Policy::Eli, two.into())
    });
    let several = SMP.into_iter().map(|(test, _)| {
        let guest = Guest { counts: Vec::new(), ..with_disk(smp::several(test, policy)) };
        served_shared(policy, test, false, vec![Guest { cores: Cores::One, ..guest }])
    });
    one.chain(several).collect()
}

/// `virtio/POLICY-TEST`, with a sidecore.
fn served<const N: usize>(policy: Policy, test: &str, quick: bool, guests: [Guest; N]) -> Case {
    let case = case(format!("virtio/{}-{}", policy.label(), short(test)), quick, guests);
    Case { sidecores: 1, ..case }
}

fn served_shared(policy: Policy, test: &str, quick: bool, guests: Vec<Guest>) -> Case {
    let case = case(format!("virtio/shared-{}-{}", policy.label(), short(test)), quick, []);
    Case { sidecores: 1, guests, ..case }
}

/// A test's name without what all have.
pub fn short(test: &str) -> &str {
    test.strip_prefix("virtio-").unwrap_or("requests")
}

/// A VM with a disk and no other device. Where it has interrupts of the disk, they come as its
/// policy says.
pub fn with_disk(guest: Guest) -> Guest {
    let some = 1..=u64::MAX;
    let interrupts = matches!(guest.tests, "virtio-load" | "virtio-flags");
    let counts = match guest.policy {
        _ if !interrupts => guest.counts,
        Some(Policy::Trap) => {
            vec![(Reason::DeviceInterrupt, some.clone()), (Reason::DeviceEoi, some)]
        }
        Some(Policy::EliDelivery) => {
            vec![(Reason::DeviceInterrupt, 0..=0), (Reason::DeviceEoi, some)]
        }
        _ => nothing_by_host(),
    };
    Guest { disks: vec![disk(false)], devices: Vec::new(), options: OPTIONS, counts, ..guest }
}

fn read_only(policy: Policy) -> Guest {
    Guest { disks: vec![disk(true)], ..with_disk(guest("virtio-read-only", policy)) }
}

fn disk(read_only: bool) -> Disk<String> {
    Disk {
        size: SECTORS * plan::SECTOR,
        backing: Backing::Ram,
        read_only,
        serial: SERIAL.to_owned(),
        queues: QUEUES,
        image: None,
        control: Control::default(),
    }
}

/// On the bare machine, where QEMU serves the disk.
fn bare(name: &str, tests: &'static str, is_read_only: bool) -> Case {
    let guest = Guest {
        says: Vec::new(),
        end: Expected::Passed,
        cpus: u32::from(QUEUES),
        variant: Variant::Pvh,
        disks: vec![disk(is_read_only)],
        ..with_disk(guest(tests, Policy::Trap))
    };
    // The plan must have one, though the machine takes no notice of it.
    let case = case(name.to_owned(), false, [guest]);
    Case { machine: Special::BareWithoutIommu, sidecores: 1, ..case }
}

/// What the hypervisor says that it did for a VM's disks must fit what its kernel did.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    let least = match guest.tests {
        _ if guest.disks.is_empty() => return,
        "virtio-negotiation" | "planted" | HEARTBEAT => 0,
        "virtio-load" | "virtio-flags" | "virtio-poll" => REQUESTS,
        _ => 1,
    };
    let Served { completed: requests, calls, kicks, held, .. } = vm.paravirtual.total();
    if requests < least {
        wrong.push(format!("{requests} requests were reported, {least} wanted"));
    }
    wrong.extend(hostile::served(guest, &vm.paravirtual.total()));
    if kicks == 0 && requests > 0 && guest.disks.iter().all(|disk| disk.control.kicks) {
        wrong.push(format!("no kick was reported for {requests} requests"));
    }
    match guest.limit == plan::Limit::default() {
        true if held > 0 => {
            wrong.push(format!("it was at a limit for {held} cycles, and has none"));
        }
        false if held == 0 => wrong.push("it was never reported to be at its limit".to_owned()),
        _ => {}
    }
    if calls > requests {
        wrong.push(format!("{calls} calls were reported for {requests} requests"));
    }
    if least == REQUESTS && kicks > MOST_KICKS {
        wrong.push(format!("{kicks} kicks were reported, {MOST_KICKS} wanted at most"));
    }
}

/// QEMU's arguments for such disks, on files in the directory.
pub fn emulated(disks: &[Disk<exitless::load::File>], directory: &Path) -> Result<Vec<OsString>> {
    let mut arguments = Vec::new();
    for (i, disk) in disks.iter().enumerate() {
        let path = directory.join(format!("virtio{i}"));
        let file = File::create(&path).context("no file can be made for a disk")?;
        file.set_len(disk.size)?;
        let read_only = if disk.read_only { "on" } else { "off" };
        let file = format!(
            "raw,node-name=virtio{i},discard=unmap,read-only={read_only},file.driver=file,file.filename="
        );
        let (serial, queues) = (&disk.serial, disk.queues);
        let device = format!(
            "virtio-blk-pci,drive=virtio{i},disable-legacy=on,num-queues={queues},queue-size=128,serial={serial}"
        );
        arguments.extend([
            "-blockdev".into(),
            exitless::options::file_option(&file, &path),
            "-device".into(),
            device.into(),
        ]);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ServedDevice;
    use std::collections::HashSet;

    #[test]
    fn each_test_runs_under_each_policy_that_it_can() {
        let cases = all();
        let names: HashSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        for policy in POLICIES {
            let count = |prefix: &str| names.iter().filter(|n| n.starts_with(prefix)).count();
            let label = policy.label();
            let own = TESTS
                .iter()
                .chain(&SMP)
                .filter(|(test, _)| names.contains(&*format!("virtio/{label}-{}", short(test))));
            assert_eq!(own.count(), TESTS.len() + SMP.len(), "{label}");
            let wanted = if policy == Policy::Direct { 0 } else { TESTS.len() + SMP.len() };
            let shared = format!("virtio/shared-{label}-");
            // `eli` begins the other's name, too.
            let longer =
                if policy == Policy::Eli { count("virtio/shared-eli-delivery-") } else { 0 };
            assert_eq!(count(&shared) - longer, wanted, "{label}");
        }
    }

    #[test]
    fn what_the_kernel_is_told_of_the_disk_is_right() {
        assert_eq!(OPTIONS, format!("sectors={SECTORS} serial={SERIAL}"));
        let tests = BARE.split(',').collect::<HashSet<_>>();
        assert!(TESTS.iter().chain(&SMP).all(|(test, _)| tests.contains(test)));
    }

    #[test]
    fn what_was_served_must_fit() {
        let complaints = |tests, served: Served| {
            let mut vm = VmReport::default();
            vm.paravirtual.see(ServedDevice::Disk(0), 0, served);
            let mut wrong = Vec::new();
            super::reported(&with_disk(guest(tests, Policy::Eli)), &vm, &mut wrong);
            wrong.len()
        };
        let good =
            Served { completed: 20_000, calls: 15_000, kicks: 10, bytes: 1, ..Served::default() };
        assert_eq!(complaints("virtio-load", good), 0);
        assert_eq!(complaints("virtio-load", Served { completed: 19_999, calls: 9, ..good }), 1);
        assert_eq!(complaints("virtio-load", Served { kicks: 11, ..good }), 1);
        assert_eq!(complaints("virtio-load", Served { held: 1, ..good }), 1);
        assert_eq!(complaints("virtio-mask", Served { kicks: 11, ..good }), 0);
        assert_eq!(complaints("virtio-mask", Served { calls: 20_001, ..good }), 1);
        assert_eq!(complaints("virtio-mask", Served::default()), 1);
        assert_eq!(complaints("virtio-negotiation", Served::default()), 0);
        let mut wrong = Vec::new();
        super::reported(&guest("hello", Policy::Eli), &VmReport::default(), &mut wrong);
        assert!(wrong.is_empty());
        let mut vm = VmReport::default();
        vm.paravirtual.see(ServedDevice::Disk(0), 0, good);
        super::reported(&with_limit(Policy::Eli), &vm, &mut wrong);
        assert_eq!(wrong, ["it was never reported to be at its limit"]);
    }

    #[test]
    fn a_disk_is_served_wherever_there_is_one() {
        for case in all() {
            let disks = case.guests.iter().any(|guest| !guest.disks.is_empty());
            let rejected = matches!(case.expect, Expect::Rejected(_));
            assert!(disks, "{}", case.name);
            assert_eq!(case.sidecores > 0, !rejected, "{}", case.name);
            assert!(rejected || case.sidecores == 1 || case.is_alone(), "{}", case.name);
        }
    }
}
