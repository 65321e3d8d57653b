//! Each rule of disks and sidecores, broken alone.

use super::*;
use crate::{Policy, sample};
use proptest::prelude::*;

fn disk() -> Disk<()> {
    Disk {
        size: 64 << 20,
        backing: Backing::Ram,
        read_only: false,
        serial: "s".into(),
        queues: 2,
        image: None,
        control: Control::default(),
    }
}

fn vm(name: &str, core: u32, disks: Vec<Disk<()>>) -> Vm<()> {
    Vm { disks, ..sample::vm(name, core) }
}

fn plan() -> Plan<()> {
    let mut plan = Plan::new(vec![vm("web", 1, vec![disk()]), vm("db", 2, vec![disk()])]);
    plan.sidecores = vec![3];
    plan
}

/// The sentence that a plan gets after `spoil` changed it.
fn sentence(spoil: impl FnOnce(&mut Plan<()>)) -> String {
    let mut plan = plan();
    assert_eq!(plan.check(), Ok(()));
    spoil(&mut plan);
    plan.check().expect_err("the spoilt plan must be refused").to_string()
}

fn of_disk(spoil: impl FnOnce(&mut Disk<()>)) -> String {
    sentence(|plan| spoil(&mut plan.vms[1].disks[0]))
}

#[test]
fn what_just_keeps_to_every_limit_passes() {
    let mut plan = plan();
    let all = Disk { size: 16 << 40, serial: " ".repeat(20), queues: 16, ..disk() };
    let null = Disk { size: 1 << 48, backing: Backing::Null, ..disk() };
    let little = Disk { size: 512, queues: 1, serial: "~".into(), ..null.clone() };
    let held = Disk { image: Some(()), read_only: true, serial: String::new(), ..disk() };
    plan.vms[0].disks = vec![all, null, held, little];
    plan.sidecores = (1008..=1023).collect();
    assert_eq!(plan.check(), Ok(()));
    // Interrupts and shared cores are the same to it.
    plan.vms[0].interrupts = Some(Policy::Direct);
    plan.vms[1].cpus = vec![2, 2];
    assert_eq!(plan.check(), Ok(()));
}

/// A boot image may be anybody's: the name is looked at later than the sidecores.
#[test]
fn a_name_in_a_sentence_stays_on_its_line() {
    let said = sentence(|plan| {
        plan.vms[1].name = "d\0\nb".into();
        plan.sidecores = vec![2];
    });
    assert!(!said.contains(char::is_control), "{said:?}");
}

#[test]
fn sidecores_run_no_guest() {
    assert_eq!(
        sentence(|plan| plan.sidecores = vec![3, 2]),
        "[host] sidecores: core 2 is VM `db`'s; a sidecore runs no guest, so give one of them another core"
    );
    assert_eq!(
        sentence(|plan| plan.sidecores = vec![0]),
        "[host] sidecores: core 0 is the host's own; use core 1 or above"
    );
    assert_eq!(
        sentence(|plan| plan.sidecores = vec![1024]),
        "[host] sidecores: core 1024 is out of range; use 1 to 1023"
    );
    assert_eq!(
        sentence(|plan| plan.sidecores = vec![3, 4, 3]),
        "[host] sidecores: core 3 is given twice; name each sidecore once"
    );
    assert_eq!(
        sentence(|plan| plan.sidecores = (3..20).collect()),
        "[host] sidecores: 17 sidecores are given; a plan may have at most 16"
    );
}

#[test]
fn disks_need_a_sidecore_and_room_on_the_bus() {
    assert_eq!(
        sentence(|plan| plan.sidecores.clear()),
        "[vm.web] disk: a sidecore serves it, and the plan has none; give it a core with sidecores = 1 in [host]"
    );
    assert_eq!(
        sentence(|plan| plan.vms[1].disks = vec![disk(); 5]),
        "[vm.db] disk: 5 disks are given; a VM may have at most 4"
    );
    let device = |bus| crate::DeviceName::Address { segment: 0, bus, device: 1, function: 0 };
    assert_eq!(
        sentence(|plan| plan.vms[1].devices = (0..31).map(device).collect()),
        "[vm.db] devices: 32 devices are given, disks and networks among them; a VM may have at most 31"
    );
}

#[test]
fn disks_are_ones_that_can_be_served() {
    let found = [
        of_disk(|d| d.size = 0),
        of_disk(|d| d.size = 513),
        of_disk(|d| d.size = (1 << 48) + 512),
        of_disk(|d| d.size = (16 << 40) + 512),
        of_disk(|d| d.serial = "x".repeat(21)),
        of_disk(|d| d.serial = "a\tb".into()),
        of_disk(|d| d.serial = "ä".into()),
        of_disk(|d| d.queues = 0),
        of_disk(|d| d.queues = 17),
        of_disk(|d| (d.image, d.backing) = (Some(()), Backing::Null)),
        of_disk(|d| d.control.latency_us = 1),
        of_disk(|d| (d.control.latency_us, d.backing) = (1_000_001, Backing::Null)),
    ];
    let expected = [
        "size: the disk has no byte; give a size such as \"64M\"",
        "size: 513 bytes are not a multiple of 512, a sector's size",
        "size: 281474976711168 is too much; a disk may have at most 256T",
        "size: 17592186044928 is more memory than a machine has; a disk in memory may have at most 16T, one cut from a controller (device = \"nvme0\") more",
        "serial: it has 21 bytes; a disk's serial number may have at most 20",
        "serial: `a\\tb` is no serial number; use printable ASCII characters",
        "serial: `ä` is no serial number; use printable ASCII characters",
        "queues: 0 is out of range; a disk may have 1 to 16 queues",
        "queues: 17 is out of range; a disk may have 1 to 16 queues",
        "image: backing is \"null\", and such a disk holds nothing; use \"ram\", or leave the image out",
        "latency: only a null disk has a time of its own to take; use backing = \"null\", or leave it out",
        "latency: 1000001us is too much; a request may wait for at most 1s",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.strip_prefix("[vm.db] disk0 "), Some(expected), "{found}");
    }
}

#[test]
fn a_sidecore_has_no_more_queues_than_it_can_serve() {
    let full = |count| vec![Disk { queues: 16, ..disk() }; count];
    let mut plan = plan();
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        plan.vms.push(vm(name, 4 + at as u32, full(4)));
    }
    (plan.vms[0].disks, plan.vms[1].disks) = (vec![], vec![]);
    assert_eq!((plan.check(), plan.served_queues()), (Ok(()), vec![128]));
    plan.vms[0].disks = vec![Disk { queues: 1, ..disk() }];
    let said = "[host] sidecores: core 3 would have 129 queues of disks and networks to serve, and a sidecore has at most 128; give the host one more, or devices fewer queues";
    assert_eq!(plan.check().unwrap_err().to_string(), said);
    plan.sidecores.push(9);
    assert_eq!((plan.check(), plan.served_queues()), (Ok(()), vec![65, 64]));
}

#[test]
fn the_second_disk_is_named() {
    let found = sentence(|plan| plan.vms[0].disks.push(Disk { size: 0, ..disk() }));
    assert!(found.starts_with("[vm.web] disk1 size: "), "{found}");
}

#[test]
fn memory_is_ram_disks_in_large_pages() {
    let mut plan = plan();
    plan.vms[0].disks.push(Disk { size: 512, ..disk() });
    plan.vms[1].disks.push(Disk { size: 1 << 40, backing: Backing::Null, ..disk() });
    assert_eq!(plan.disk_memory(), (64 + 2 + 64) << 20);
    plan.vms[0].disks[0].size = u64::MAX;
    assert_eq!(plan.disk_memory(), u64::MAX);
}

proptest! {
    #[test]
    fn given_cores_are_the_lowest_free_ones(count in 0usize..17, used in prop::collection::btree_set(1u32..30, 1..9)) {
        let mut plan = plan();
        plan.vms[0].cpus = used.iter().copied().collect();
        plan.vms[1].cpus = vec![31];
        let cores = free_cores(&plan, count);
        prop_assert_eq!(cores.len(), count);
        let highest = cores.last().copied().unwrap_or(0);
        prop_assert!((1..=highest).all(|c| cores.contains(&c) != (used.contains(&c) || c == 31)));
        plan.sidecores = cores;
        prop_assert!(plan.check_sidecores().is_ok());
    }

    #[test]
    fn default_queues_are_in_range(vcpus: usize) {
        let queues = default_queues(vcpus);
        prop_assert!((1..=MAX_QUEUES).contains(&queues));
        prop_assert!(usize::from(queues) == vcpus || vcpus == 0 || vcpus > 16);
    }
}
