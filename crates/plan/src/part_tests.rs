//! Each rule of parts, broken alone; that parts don't overlap, by property.

use super::*;
use crate::{Control, sample};
use alloc::{format, vec, vec::Vec};
use proptest::prelude::*;

const NVME0: DeviceName = DeviceName::Named { class: Class::Nvme, index: 0 };

fn disk(device: DeviceName, offset: u64, size: u64) -> Disk<()> {
    Disk {
        size,
        backing: Backing::Part(Part { device, offset }),
        read_only: false,
        serial: String::new(),
        queues: 1,
        image: None,
        control: Control::default(),
    }
}

fn vm(name: &str, core: u32, disks: Vec<Disk<()>>) -> Vm<()> {
    Vm { disks, ..sample::vm(name, core) }
}

fn plan() -> Plan<()> {
    let disks = |first| vec![disk(NVME0, first, 1 << 20), disk(NVME0, first + (1 << 20), 1 << 20)];
    let mut plan = Plan::new(vec![vm("web", 1, disks(0)), vm("db", 2, disks(2 << 20))]);
    plan.sidecores = vec![3];
    plan
}

fn sentence(spoil: impl FnOnce(&mut Plan<()>)) -> String {
    let mut plan = plan();
    assert_eq!(plan.check(), Ok(()));
    spoil(&mut plan);
    plan.check().expect_err("the spoilt plan must be refused").to_string()
}

fn of_disk(spoil: impl FnOnce(&mut Disk<()>)) -> String {
    sentence(|plan| spoil(&mut plan.vms[1].disks[0]))
}

fn moved(device: DeviceName, offset: u64) -> Backing {
    Backing::Part(Part { device, offset })
}

#[test]
fn parts_are_ones_that_can_be_served() {
    let nic = DeviceName::Named { class: Class::Nic, index: 0 };
    assert_eq!(
        of_disk(|d| d.backing = moved(nic, 0)),
        "[vm.db] disk0 device: nic0 is no NVMe controller; disks are cut from those, such as \"nvme0\""
    );
    let function = DeviceName::Virtual { nic: 0, function: 1 };
    assert!(of_disk(|d| d.backing = moved(function, 0)).contains("nic0.vf1 is no NVMe"));
    let address = DeviceName::Address { segment: 0, bus: 1, device: 32, function: 0 };
    assert_eq!(
        of_disk(|d| d.backing = moved(address, 0)),
        "[vm.db] disk0 device: 01:20.0 is not a PCI address; a bus has devices 00 to 1f with functions 0 to 7"
    );
    assert_eq!(
        of_disk(|d| d.backing = moved(NVME0, 5 << 20 | 512)),
        "[vm.db] disk0 offset: 5243392 bytes are not a multiple of 4K, the largest block that a controller may have"
    );
    assert_eq!(
        of_disk(|d| d.backing = moved(NVME0, 1 << 63)),
        "[vm.db] disk0 offset: 8388608T is too much; a disk may begin at 256T at most"
    );
    assert_eq!(
        of_disk(|d| d.size = 4096 + 512),
        "[vm.db] disk0 size: 4608 bytes are not a multiple of 4K, the largest block that a controller may have"
    );
    assert_eq!(
        of_disk(|d| d.image = Some(())),
        "[vm.db] disk0 image: what is on a controller stays there; leave the image out"
    );
    assert_eq!(
        sentence(|plan| plan.sidecores.clear()),
        "[vm.web] disk: a sidecore serves it, and the plan has none; give it a core with sidecores = 1 in [host]"
    );
}

#[test]
fn a_controller_with_disks_is_the_hosts() {
    assert_eq!(
        sentence(|plan| plan.vms[1].devices = vec![NVME0]),
        "[vm.web] disk0 device: nvme0 is VM `db`'s; a controller that disks are cut from stays the host's, so take it from the VM's devices"
    );
}

#[test]
fn disks_have_no_byte_in_common() {
    assert_eq!(
        of_disk(|d| d.backing = moved(NVME0, (2 << 20) - 4096)),
        "[vm.db] disk0 offset: it has bytes of nvme0 in common with disk1 of VM `web`, which is there from 1M to 2M; give it an offset of its own, or make both read-only"
    );
    // The same bytes of another controller are others; readers share.
    let mut plan = plan();
    let nvme1 = DeviceName::Named { class: Class::Nvme, index: 1 };
    plan.vms[1].disks[0].backing = moved(nvme1, 0);
    assert_eq!(plan.check(), Ok(()));
    assert_eq!(plan.part_devices().collect::<Vec<_>>(), [NVME0, nvme1]);
    assert_eq!(plan.disk_memory(), 0);
    plan.vms[1].disks[0] = Disk { read_only: true, ..plan.vms[0].disks[0].clone() };
    assert!(plan.check().is_err(), "one of them writes");
    plan.vms[0].disks[0].read_only = true;
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn a_controller_has_so_many_disks() {
    let disks = |vm: u64| (0..4).map(|n| disk(NVME0, (vm * 4 + n) << 20, 1 << 20)).collect();
    let vms = (0..5).map(|n| vm(&format!("vm{n}"), n as u32 + 1, disks(n)));
    let mut plan = Plan::new(vms.collect());
    plan.sidecores = vec![9];
    let said = plan.check().unwrap_err().to_string();
    assert_eq!(said, "[vm.vm4] disk0 device: nvme0 has more than 16 disks");
    plan.vms[4].disks.clear();
    assert_eq!(plan.check(), Ok(()));
}

proptest! {
    /// In a plan that passes, each byte of a controller is one disk's, or only read.
    #[test]
    fn each_byte_is_one_disks(
        parts in proptest::collection::vec((0u64..12, 1u64..5, 0u8..2, any::<bool>()), 1..4),
    ) {
        let disks: Vec<_> = parts.iter().map(|(at, len, index, read_only)| {
            let device = DeviceName::Named { class: Class::Nvme, index: *index };
            Disk { read_only: *read_only, ..disk(device, at << 12, len << 12) }
        }).collect();
        let mut plan = Plan::new(vec![vm("a", 1, disks)]);
        plan.sidecores = vec![2];
        let mut apart = true;
        for index in 0..2 {
            for page in 0..20 {
                let has = parts.iter().filter(|(at, len, i, _)| {
                    *i == index && (*at..at + len).contains(&page)
                });
                apart &= has.clone().count() <= 1 || has.clone().all(|part| part.3);
            }
        }
        prop_assert_eq!(apart, plan.check().is_ok());
    }
}
