//! Machines for plans, and the arguments QEMU gets.

use super::*;
use plan::{OnReset, Vm};

fn plan(memory: u64, devices: &[&str]) -> Plan<()> {
    let devices = devices.iter().map(|d| d.parse().unwrap()).collect();
    Plan::new(vec![Vm {
        name: "a".into(),
        cpus: vec![3],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory,
        kernel: (),
        initrd: None,
        cmdline: String::new(),
        devices,
        disks: vec![],
        interfaces: vec![],
        interrupts: None,
        reset: OnReset::Stop,
        nested: false,
        iommu: plan::GuestIommu::None,
    }])
}

#[test]
fn sidecores_and_their_disks_have_room() {
    let mut plan = plan(64 << 20, &[]);
    let small = Machine::memory_for(&plan, 0);
    plan.sidecores = vec![1, 6];
    plan.vms[0].disks = vec![plan::Disk {
        size: 32 << 20,
        backing: plan::Backing::Ram,
        read_only: false,
        serial: String::new(),
        queues: 1,
        image: None,
        control: plan::Control::default(),
    }];
    let machine = machine(&plan, vec![]).unwrap();
    assert_eq!((machine.cpus, machine.memory), (7, small + (32 << 20)));
}

fn machine(plan: &Plan<()>, disks: Vec<Disk>) -> Result<Machine> {
    Machine::exitless(Path::new("hv"), Path::new("image"), plan, disks)
}

fn line(machine: &Machine) -> String {
    machine.arguments().join(" ".as_ref()).into_string().unwrap()
}

#[test]
fn a_plan_gets_the_cores_memory_and_devices_it_names() {
    let machine = machine(&plan(64 << 20, &["nvme1", "edu0", "nic0"]), vec![]).unwrap();
    assert_eq!((machine.cpus, machine.disks.len(), machine.edus, machine.nics.len()), (4, 2, 1, 1));
    let line = line(&machine);
    assert!(line.contains("-smp 4 -m 320M -kernel hv -initrd image -device amd-iommu"), "{line}");
    assert!(line.contains("drive=disk1,addr=0x5") && line.contains("edu,addr=0x10"), "{line}");
    assert!(line.contains("user,id=net0 -device igb,netdev=net0,romfile=,addr=0x8"), "{line}");
}

#[test]
fn an_iommu_comes_before_the_devices_that_it_serves() {
    let mut machine = machine(&plan(64 << 20, &["edu3"]), vec![]).unwrap();
    let line = line(&machine);
    let place = |text: &str| line.find(text).unwrap();
    assert!(place("-device amd-iommu,intremap=on,xtsup=on") < place("-device edu,addr=0x10"));
    // Its fifth would be where the I/O APIC sends from.
    assert!(line.contains("edu,addr=0x13"), "{line}");
    let error = machine.add_devices(["edu4".parse().unwrap()].into_iter()).unwrap_err();
    let said = "edu4: the emulated machine has room for 4 devices of this kind, edu0 to edu3";
    assert_eq!(error.to_string(), said);
    machine.iommu = None;
    assert!(!self::line(&machine).contains("iommu"));
}

#[test]
fn other_segments_are_elsewhere() {
    let error = machine(&plan(64 << 20, &["0001:02:00.0"]), vec![]).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.starts_with("[vm.a] devices: 0001:02:00.0: the emulated machine has no PCI segment"),
        "{error}"
    );
}

#[test]
fn virtual_functions_come_with_their_controller() {
    let mut plan = plan(64 << 20, &["nic1.vf0"]);
    assert_eq!(machine(&plan, vec![]).unwrap().nics.len(), 2);
    plan.networks = vec![plan::Network {
        nic: 2,
        vfs: Some(1),
        macs: vec![],
        uplink: None,
        coalesce: plan::Coalesce::Off,
    }];
    assert_eq!(machine(&plan, vec![]).unwrap().nics.len(), 3);
}

#[test]
fn devices_are_where_addresses_say() {
    let devices = ["00:05.0", "00:10.0", "00:0a.0", "00:09.0", "00:1f.2", "03:04.0"];
    let machine = machine(&plan(64 << 20, &devices), vec![]).unwrap();
    assert_eq!((machine.disks.len(), machine.edus, machine.nics.len()), (2, 1, 2));
}

#[test]
fn controllers_are_counted_by_what_names_them() {
    let count = |devices: &[&str]| Machine::controllers(&plan(64 << 20, devices)).unwrap();
    assert_eq!(count(&["nic0", "edu1"]), (0, 1));
    assert_eq!(count(&["nvme2", "nic1.vf0"]), (3, 2));
    assert_eq!(count(&["00:05.0", "nvme0"]), (2, 0));
    assert!(Machine::controllers(&plan(64 << 20, &["nvme4"])).is_err());
}

#[test]
fn named_disks_come_first() {
    let file = Disk::File("a,b.img".into());
    let machine = machine(&plan(64 << 20, &["nvme1"]), vec![file.clone()]).unwrap();
    assert_eq!(machine.disks, [file, NULL_DISK]);
    let line = line(&machine);
    assert!(line.contains("file.filename=a,,b.img -device nvme"), "{line}");
    assert!(line.contains("null-co,node-name=disk1,size=1073741824"), "{line}");
}

#[test]
fn more_than_fits_is_refused() {
    let error = machine(&plan(64 << 20, &["nvme4"]), vec![]).unwrap_err();
    let said = "[vm.a] devices: nvme4: the emulated machine has room for 4 devices of this kind, nvme0 to nvme3";
    assert_eq!(format!("{error:#}"), said);
    let mut crowded = machine(&plan(64 << 20, &[]), vec![]).unwrap();
    crowded.connect(&[NicModel::Igb; 4], &[]).unwrap();
    let error = crowded.command(&Context::for_tests()).unwrap_err().to_string();
    assert_eq!(error, "4 network controllers are given; the emulated machine has room for 3");
}

#[test]
fn a_core_that_the_emulated_machine_cannot_have_is_refused() {
    let mut plan = plan(64 << 20, &[]);
    plan.vms[0].cpus = vec![LAST_CORE];
    assert!(machine(&plan, vec![]).is_ok());
    plan.vms[0].cpus = vec![1, LAST_CORE + 1];
    let error = machine(&plan, vec![]).unwrap_err().to_string();
    assert_eq!(error, "core 1024: the emulated machine has at most cores 0 to 1023");
}

#[test]
fn network_controllers_get_their_models_and_ports() {
    let mut none = machine(&plan(64 << 20, &[]), vec![]).unwrap();
    let error = none.connect(&[], &["tcp:1:1".parse().unwrap()]).unwrap_err().to_string();
    assert!(error.ends_with("add --device nic0, or \"nic0\" to the devices in a plan"), "{error}");
    let mut machine = machine(&plan(64 << 20, &["nic1"]), vec![]).unwrap();
    machine.connect(&[NicModel::E1000e], &["nic1:tcp:8080:80".parse().unwrap()]).unwrap();
    let line = line(&machine);
    assert!(line.contains("user,id=net0 -device e1000e,netdev=net0,romfile=,addr=0x8"), "{line}");
    assert!(line.contains("hostfwd=tcp:127.0.0.1:8080-:80 -device igb,netdev=net1"), "{line}");
    let error = machine.connect(&[], &["nic2:udp:1:1".parse().unwrap()]).unwrap_err().to_string();
    let said = "--forward: there is no nic2 for port 1; the machine has nic0 to nic1";
    assert_eq!(error, said);
    let twice = ["tcp:80:80", "udp:80:80", "nic1:tcp:80:81"].map(|f| f.parse().unwrap());
    let error = machine.connect(&[], &twice).unwrap_err().to_string();
    assert_eq!(error, "--forward: port 80 is given twice; each leads to one guest");
}

#[test]
fn large_vms_have_their_memory_in_one_piece_above_four_gib() {
    assert_eq!(memory(1 << 30, 0), (1 << 30) + HOST_MEMORY);
    assert_eq!(memory(4 << 30, 0), (4 << 30) + LOW_MEMORY);
    assert_eq!(memory(u64::MAX, u64::MAX), u64::MAX);
}

#[test]
fn bare_is_the_same_machine_without_the_hypervisor() {
    let bare =
        Machine::bare(Path::new("k"), Some(Path::new("i")), "a b", 512 << 20, vec![NULL_DISK]);
    let line = line(&bare);
    assert!(
        line.contains("-smp 1 -m 512M -kernel k -initrd i -append a b -device amd-iommu"),
        "{line}"
    );
    assert!(line.contains("nvme,serial=exitless0,drive=disk0,addr=0x4"), "{line}");
}
