//! What plans ask of machines that have been recorded, and what people see of those.

use super::*;
use crate::recording::tests::{recording, whole, with_file};
use plan::{OnReset, Vm};

fn offered(offers: &[Offer]) -> Offered {
    with_file(&recording(offers), Offered::read).unwrap()
}

fn vm(name: &str, core: u32, devices: &[&str]) -> Vm<()> {
    Vm {
        name: name.to_owned(),
        cpus: vec![core],
        weight: 100,
        limit: plan::Limit::default(),
        memory: 1 << 30,
        kernel: (),
        initrd: None,
        cmdline: String::new(),
        devices: devices.iter().map(|d| d.parse().unwrap()).collect(),
        disks: vec![],
        interfaces: vec![],
        interrupts: None,
        reset: OnReset::Stop,
        nested: false,
        iommu: plan::GuestIommu::None,
    }
}

#[test]
fn a_recording_is_shown() {
    let shown = offered(&whole()).shown();
    assert!(shown.contains("cores for guests: 1 to 2; listed, but not started: 3"), "{shown}");
    assert!(shown.contains("memory for VMs: 2G"), "{shown}");
    assert!(shown.contains("00:00.0: is a bridge"), "{shown}");
    assert!(shown.contains("00:04.0: one VM has it and 00:04.1"), "{shown}");
}

#[test]
fn each_thing_that_a_machine_lacks_is_a_sentence() {
    let offered = offered(&whole());
    let lacks = |vms: Vec<Vm<()>>| offered.lacks(&Plan::new(vms), 0);
    assert_eq!(lacks(vec![vm("a", 1, &["nvme0", "nvme1"]), vm("b", 2, &["nic0.vf1"])]), [""; 0]);
    let said =
        "VM \"a\": core 3 can't run it; cores for guests: 1 to 2; listed, but not started: 3";
    assert_eq!(lacks(vec![vm("a", 3, &[])]), [said]);
    assert_eq!(
        lacks(vec![vm("a", 1, &["nvme2"])]),
        ["VM \"a\": device nvme2 isn't in the machine"]
    );
    assert_eq!(lacks(vec![vm("a", 1, &["00:00.0"])]), ["VM \"a\": device 00:00.0 is a bridge"]);
    let apart = lacks(vec![vm("a", 1, &["nvme0"]), vm("b", 2, &["nvme1"])]);
    assert_eq!(apart, ["VM \"b\": device nvme1 can't be kept apart from 00:04.0 of VM \"a\""]);
    let nested =
        Vm { nested: true, iommu: plan::GuestIommu::VtD, ..vm("a", 1, &["nvme0", "nvme1"]) };
    let handed_on = "VM \"a\": device nvme1 can't be kept apart from 00:04.0, which its own hypervisor can't see";
    assert_eq!(lacks(vec![nested]), [handed_on]);
    let twice = lacks(vec![vm("a", 1, &["nvme0"]), vm("b", 2, &["00:04.0"])]);
    assert_eq!(twice, ["VM \"b\": device 00:04.0 is VM \"a\"'s, too"]);
    let none = [vec![Offer::Missing("no SVM".into())], whole()].concat();
    let none = super::tests::offered(&none).lacks(&Plan::new(vec![vm("a", 1, &[])]), 0);
    assert_eq!(none, ["no VM can run here: no SVM"]);
}

#[test]
fn what_the_processor_lacks_is_told_of_the_vms_that_ask_for_it() {
    let without = [
        Offer::NoNesting("guests of a guest aren't there".into()),
        Offer::NoPosting("\"posted\" needs more".into()),
    ];
    let offered = offered(&[without.into(), whole()].concat());
    let plan = || {
        let nested = Vm { nested: true, ..vm("a", 1, &[]) };
        let posted = Vm { interrupts: Some(plan::Policy::Posted), ..vm("b", 2, &[]) };
        vec![nested, posted]
    };
    let said = ["VM \"a\": guests of a guest aren't there", "VM \"b\": \"posted\" needs more"];
    assert_eq!(offered.lacks(&Plan::new(plan()), 0), said);
    assert_eq!(super::tests::offered(&whole()).lacks(&Plan::new(plan()), 0), [""; 0]);
    assert_eq!(offered.lacks(&Plan::new(vec![vm("a", 1, &[])]), 0), [""; 0]);
}

#[test]
fn a_device_without_a_reset_is_warned_of() {
    let mut offers = whole();
    for offer in &mut offers {
        if let Offer::Function(f @ Function { address: 0x20 | 0x30, .. }) = offer {
            f.reset = Some("by function (FLR)".into());
        }
    }
    let offered = offered(&offers);
    let warnings = |devices: &[&str]| {
        offered.warnings(&Plan::new(vec![vm("a", 1, &["nvme0"]), vm("b", 2, devices)]))
    };
    assert_eq!(warnings(&["nic0", "nic0.vf1", "nvme7"]), [""; 0]);
    let [by_name] = &warnings(&["nvme1"])[..] else { panic!() };
    assert!(by_name.starts_with("VM \"b\": device nvme1 has no reset: "), "{by_name}");
    let [by_address] = &warnings(&["nic0", "00:04.1"])[..] else { panic!() };
    assert!(by_address.contains("device 00:04.1 has no reset"), "{by_address}");
    let erratum = [vec![Offer::Erratum("it counts wrong".into())], whole()].concat();
    let told = super::tests::offered(&erratum).warnings(&Plan::new(vec![vm("a", 1, &[])]));
    assert_eq!(told, ["of the processor: it counts wrong"]);
    // Nor one that is refused anyway: there the sentence is another.
    assert_eq!(warnings(&["00:00.0"]), [""; 0]);
}

#[test]
fn the_boot_image_is_in_memory_beside_the_vms() {
    let plan = Plan::new(vec![vm("a", 1, &[]), vm("b", 2, &[])]);
    assert_eq!(offered(&whole()).lacks(&plan, 0), [""; 0]);
    let said =
        "the VMs have 2G together, the machine has 2046M beside the boot image: lower theirs by 2M";
    assert_eq!(offered(&whole()).lacks(&plan, 1), [said]);
    let said =
        "the VMs have 2G together, the machine has 0 beside the boot image: lower theirs by 2G";
    assert_eq!(offered(&whole()).lacks(&plan, u64::MAX), [said]);
}

#[test]
fn controllers_that_disks_are_cut_from_are_there_and_the_hosts() {
    let part = |device: &str| plan::Disk {
        size: 1 << 30,
        backing: plan::Backing::Part(plan::Part { device: device.parse().unwrap(), offset: 0 }),
        read_only: false,
        serial: String::new(),
        queues: 1,
        image: None,
        control: plan::Control::default(),
    };
    let lacks = |device, devices: &[&str]| {
        let mut plan = Plan::new(vec![vm("a", 1, devices)]);
        (plan.sidecores, plan.vms[0].disks) = (vec![2], vec![part(device)]);
        offered(&whole()).lacks(&plan, 0)
    };
    assert_eq!(lacks("nvme0", &[]), [""; 0]);
    assert_eq!(lacks("nvme2", &[]), ["the host: device nvme2 isn't in the machine"]);
    let address = Address(offered(&whole()).find(&"nvme0".parse().unwrap()).unwrap().address);
    let said = "the host: device nvme0 is VM \"a\"'s, too";
    assert_eq!(lacks("nvme0", &[&address.to_string()]), [said]);
}

#[test]
fn sidecores_and_disks_take_cores_and_memory() {
    let mut plan = Plan::new(vec![vm("a", 1, &[])]);
    let disk = |size| plan::Disk {
        size,
        backing: plan::Backing::Ram,
        read_only: false,
        serial: String::new(),
        queues: 1,
        image: None,
        control: plan::Control::default(),
    };
    (plan.sidecores, plan.vms[0].disks) = (vec![2], vec![disk(1 << 30)]);
    assert_eq!(offered(&whole()).lacks(&plan, 0), [""; 0]);
    (plan.sidecores, plan.vms[0].disks) = (vec![3], vec![disk((1 << 30) + 512)]);
    assert_eq!(
        offered(&whole()).lacks(&plan, 0),
        [
            "core 3 can't be a sidecore; cores for guests: 1 to 2; listed, but not started: 3",
            "the VMs and their disks have 2050M together, the machine has 2G beside the boot image: lower theirs by 2M"
        ]
    );
}

#[test]
fn what_only_the_boot_shows_is_said() {
    let piece = "Each VM's memory must be in one piece, which is checked at boot only.";
    let unknown =
        |devices: &[&str]| offered(&whole()).unknown(&Plan::new(vec![vm("a", 1, devices)]));
    assert_eq!(unknown(&["nic0"]), [piece]);
    let functions = "Whether the controllers have these virtual functions is checked at boot only.";
    assert_eq!(unknown(&["nic0.vf0"]), [piece, functions]);
}

/// What a machine without interrupt remapping tells: no IOMMU is on.
fn without_remapping() -> Offered {
    let why = format!("{NO_REMAPPING} (DMAR flag INTR_REMAP is clear): without it …");
    let mut offers = [vec![Offer::NoDevices(why)], whole()].concat();
    for offer in &mut offers {
        if let Offer::Function(f @ Function { refused: None, .. }) = offer {
            f.refused = Some(format!("{NOT_SERVED}and can't be confined to the VM's memory"));
        }
    }
    offered(&offers)
}

#[test]
fn a_plan_that_trusts_every_guest_needs_no_interrupt_remapping() {
    let offered = without_remapping();
    let mut plan = Plan::new(vec![vm("a", 1, &["nvme0"])]);
    let refused = offered.lacks(&plan, 0);
    assert!(
        refused.len() == 1 && refused[0].starts_with("VM \"a\" is to have nvme0, but the IO"),
        "{refused:?}"
    );
    plan.host.without_remapping = WithoutRemapping::TrustEveryGuest;
    assert_eq!(offered.lacks(&plan, 0), [""; 0]);
    let served = "Whether an IOMMU serves the devices is checked at boot only, as none was on.";
    assert_eq!(offered.unknown(&plan).last().unwrap(), served);
    plan.vms[0].devices = vec!["00:00.0".parse().unwrap()];
    assert_eq!(offered.lacks(&plan, 0), ["VM \"a\": device 00:00.0 is a bridge"]);
    // As the boot refuses it, too.
    plan.vms = vec![vm("a", 1, &[]), vm("b", 1, &[])];
    let said = "core 1 is to be shared, and the IOMMU has no interrupt remapping: give each vCPU a core of its own";
    assert_eq!(offered.lacks(&plan, 0), [said]);
}

#[test]
fn a_plan_without_devices_needs_no_iommu() {
    let offers = vec![Offer::NoDevices("the machine has no usable IOMMU".into())];
    let offered = offered(&[offers, whole()].concat());
    let mut plan = Plan::new(vec![vm("a", 1, &[])]);
    assert_eq!(offered.lacks(&plan, 0), [""; 0]);
    plan.vms[0].devices = vec!["nvme0".parse().unwrap()];
    let said = "VM \"a\" is to have nvme0, but the machine has no usable IOMMU";
    assert_eq!(offered.lacks(&plan, 0), [said]);
    assert!(offered.shown().contains("no VM can have a device here: the machine has no"));
}

/// It would be refused by a sentence that isn't known for what it is.
#[test]
fn the_sentences_are_the_hypervisors() {
    let found = include_str!("../../hypervisor/src/iommu/found.rs");
    assert!(found.contains(&format!("\"{NO_REMAPPING} ({{why}}): ")));
    let assignment = include_str!("../../hypervisor/src/pci/assignment.rs");
    assert!(assignment.contains(&format!("\"{NOT_SERVED}and can't be confined")));
}
