//! Each rule of a plan, broken alone.

use super::*;
use crate::{Choice, Vm};

fn vm(name: &str, core: u32) -> Vm<()> {
    Vm {
        name: name.into(),
        cpus: vec![core],
        memory: 128 << 20,
        kernel: (),
        initrd: None,
        cmdline: String::new(),
        devices: vec![],
        interrupts: Choice::Auto,
    }
}

fn two() -> Plan<()> {
    Plan { vms: vec![vm("web", 1), vm("db", 2)] }
}

/// The sentence that a plan gets after `spoil` changed its second VM.
fn sentence(spoil: impl FnOnce(&mut Vm<()>)) -> String {
    let mut plan = two();
    spoil(&mut plan.vms[1]);
    plan.check().expect_err("the spoilt plan must be refused").to_string()
}

#[test]
fn a_sound_plan_passes() {
    assert_eq!(two().check(), Ok(()));
}

#[test]
fn a_plan_has_one_to_32_vms() {
    assert_eq!(
        Plan::<()> { vms: vec![] }.check().unwrap_err().to_string(),
        "the plan has no VM; it needs at least one, such as [vm.web]"
    );
    let many = |n: u32| Plan { vms: (1..=n).map(|i| vm(&format!("v{i}"), i)).collect() };
    assert_eq!(many(32).check(), Ok(()));
    assert_eq!(many(33).check().unwrap_err().fault, Fault::ManyVms(33));
}

#[test]
fn names_are_plain_and_unique() {
    assert_eq!(
        sentence(|v| v.name = "web".into()),
        "[vm.web]: another VM has this name; each needs its own"
    );
    for bad in ["", "a b", "-a", "ä", "a/b", "abcdefghijklmnopqrstuvwxyz0123456"] {
        assert!(sentence(|v| v.name = bad.into()).contains("can't name a VM"), "{bad}");
    }
}

#[test]
fn a_vm_has_one_core_that_is_its_own() {
    assert_eq!(
        sentence(|v| v.cpus.clear()),
        "[vm.db] cpus: no core is given; name one, such as [1]"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![0]),
        "[vm.db] cpus: core 0 is the host's own; use core 1 or above"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![1]),
        "[vm.db] cpus: core 1 is VM `web`'s already; give each VM a core of its own"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![2, 3, 2]),
        "[vm.db] cpus: core 2 is given twice; each vCPU needs a core of its own"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![2, 1]),
        "[vm.db] cpus: core 1 is VM `web`'s already; give each VM a core of its own"
    );
    assert_eq!(
        sentence(|v| v.cpus = (2..67).collect()),
        "[vm.db] cpus: 65 cores are given; a VM may have at most 64 vCPUs, one on each core"
    );
    assert_eq!(
        sentence(|v| v.cpus = vec![1024]),
        "[vm.db] cpus: core 1024 is out of range; use 1 to 1023"
    );
}

#[test]
fn memory_is_enough_even_and_below_the_pci_window() {
    assert_eq!(
        sentence(|v| v.memory = 62 << 20),
        "[vm.db] memory: 62M is too little; a VM needs at least 64M"
    );
    assert_eq!(
        sentence(|v| v.memory = 255 << 30),
        "[vm.db] memory: 255G is too much; a VM may have at most 254G"
    );
    assert!(sentence(|v| v.memory = 65 << 20).contains("65M is not a multiple of 2M"));
}

#[test]
fn the_command_line_is_what_the_kernel_reads() {
    assert!(sentence(|v| v.cmdline = "x".repeat(2048)).contains("2048 bytes"));
    assert!(sentence(|v| v.cmdline = "a\0b".into()).contains("zero byte"));
    let mut plan = two();
    plan.vms[0].cmdline = "x".repeat(2047);
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn a_device_belongs_to_one_vm_once() {
    let device: DeviceName = "nvme0".parse().unwrap();
    assert_eq!(
        sentence(|v| v.devices = vec![device, device]),
        "[vm.db] devices: nvme0 is VM `db`'s already; a device belongs to one VM, once"
    );
    let mut plan = two();
    plan.vms[0].devices = vec![device];
    plan.vms[1].devices = vec![device];
    let fault = plan.check().unwrap_err().fault;
    assert_eq!(fault, Fault::DeviceTaken { device, by: "web".into() });
    let odd = DeviceName::Address { bus: 0, device: 32, function: 0 };
    assert!(sentence(|v| v.devices = vec![odd]).contains("00:20.0 is not a PCI address"));
    let all =
        |n: u8| (0..n).map(|i| DeviceName::Address { bus: i, device: 0, function: 0 }).collect();
    assert!(sentence(|v| v.devices = all(32)).contains("32 devices are given"));
}
