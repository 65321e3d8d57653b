//! Machines for plans, and the arguments QEMU gets.

use super::*;
use plan::{Choice, Vm};

fn plan(memory: u64, devices: &[&str]) -> Plan<()> {
    let devices = devices.iter().map(|d| d.parse().unwrap()).collect();
    Plan {
        vms: vec![Vm {
            name: "a".into(),
            cpus: vec![3],
            memory,
            kernel: (),
            initrd: None,
            cmdline: String::new(),
            devices,
            interrupts: Choice::Auto,
        }],
    }
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
    assert_eq!((machine.cpus, machine.disks.len(), machine.edus, machine.nics), (4, 2, 1, 1));
    let line = line(&machine);
    assert!(line.contains("-smp 4 -m 320M -kernel hv -initrd image -device intel-iommu"), "{line}");
    assert!(line.contains("drive=disk1,addr=0x5") && line.contains("edu,addr=0x10"), "{line}");
    assert!(line.contains("igb,netdev=net0,addr=0x18"), "{line}");
}

#[test]
fn devices_are_where_addresses_say() {
    let machine =
        machine(&plan(64 << 20, &["00:05.0", "00:10.0", "00:1f.2", "03:04.0"]), vec![]).unwrap();
    assert_eq!((machine.disks.len(), machine.edus, machine.nics), (2, 1, 0));
}

#[test]
fn named_disks_come_first() {
    let file = Disk::File("a,b.img".into());
    let machine = machine(&plan(64 << 20, &["nvme1"]), vec![file.clone()]).unwrap();
    assert_eq!(machine.disks, [file, DEFAULT_DISK]);
    let line = line(&machine);
    assert!(line.contains("file.filename=a,,b.img -device nvme"), "{line}");
    assert!(line.contains("null-co,node-name=disk1,size=1073741824"), "{line}");
}

#[test]
fn more_than_fits_is_refused() {
    let error = machine(&plan(64 << 20, &["nvme12"]), vec![]).unwrap_err().to_string();
    assert_eq!(error, "nvme12: the emulated machine has room for 12 devices of this kind");
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
        Machine::bare(Path::new("k"), Some(Path::new("i")), "a b", 512 << 20, vec![DEFAULT_DISK]);
    let line = line(&bare);
    assert!(
        line.contains("-smp 1 -m 512M -kernel k -initrd i -append a b -device intel-iommu"),
        "{line}"
    );
    assert!(line.contains("nvme,serial=exitless0,drive=disk0,addr=0x4"), "{line}");
}
