//! What a person may write, and what each mistake is told.

use super::*;
use crate::{Backing, Class, Disk, Interface, Mac, Moving, Network};
use proptest::prelude::*;

fn refusal(text: &str) -> String {
    parse("vm.toml", text).expect_err(text).to_string()
}

#[test]
fn everything_but_the_kernel_has_a_default() {
    let plan = parse("vm.toml", "[vm.web]\nkernel = 'k'\n").unwrap();
    let [vm] = &plan.vms[..] else { panic!("{plan:?}") };
    assert_eq!((vm.name.as_str(), vm.kernel.as_str(), vm.memory), ("web", "k", 1 << 30));
    assert_eq!((&vm.cpus[..], vm.interrupts, vm.weight), (&[1][..], None, 100));
    assert_eq!((plan.slice_us, plan.host.iommu_faults), (5_000, Protection::Elsewhere));
    assert_eq!(plan.host.without_remapping, WithoutRemapping::Refuse);
    assert_eq!(plan.host.at_end, AtEnd::Stay);
    assert!(vm.initrd.is_none() && vm.cmdline.is_empty() && vm.devices.is_empty());
}

#[test]
fn every_key_is_read() {
    let plan = parse(
        "vm.toml",
        r#"
        slice = "500us"

        [host]
        iommu_faults = "limit"
        without_interrupt_remapping = "trust-every-guest"
        screen = "web"
        at_end = "power-off"
        sidecores = [3, 0x4]
        whole_turns = true
        sidecore_latency = "1ms"

        [vm.web]
        cpus = [0x2]
        weight = 250
        memory = "512M"
        kernel = "vmlinuz"
        initrd = "initrd.img"
        cmdline = "console=ttyS0"
        devices = ["nvme0", "00:04.0", "nic1.vf2"]
        interrupts = "eli"
        reset = "stop"
        disk = { size = "64M", backing = "ram", read_only = true, serial = "s 1", queues = 2, image = "i", polled = false, coalesce = { in_flight = 2 } }
        network = { switch = "lan", mac = "02:00:00:00:00:09", vlan = 7, queues = 3, mtu = 9000, rate = "10M/s" }

        [network.nic1]
        vfs = 4
        macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"]
        "#,
    );
    let macs = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last])).into();
    let network = Network { nic: 1, vfs: Some(4), macs };
    let vm = Vm {
        name: "web".into(),
        cpus: vec![2],
        weight: 250,
        memory: 512 << 20,
        kernel: "vmlinuz".into(),
        initrd: Some("initrd.img".into()),
        cmdline: "console=ttyS0".into(),
        devices: vec![
            DeviceName::Named { class: Class::Nvme, index: 0 },
            DeviceName::Address { segment: 0, bus: 0, device: 4, function: 0 },
            DeviceName::Virtual { nic: 1, function: 2 },
        ],
        disks: vec![Disk {
            size: 64 << 20,
            backing: Backing::Ram,
            read_only: true,
            serial: "s 1".into(),
            queues: 2,
            image: Some("i".into()),
            control: crate::Control {
                kicks: true,
                coalesce: crate::Coalesce::From { in_flight: 2, rate: 2_000 },
                latency_us: 0,
            },
        }],
        interfaces: vec![Interface {
            switch: "lan".into(),
            mac: Mac([2, 0, 0, 0, 0, 9]),
            vlan: Some(7),
            queues: 3,
            mtu: 9000,
            rate: Some(10 << 20),
        }],
        interrupts: Some(Policy::Eli),
        reset: OnReset::Stop,
    };
    let host = Host {
        iommu_faults: Protection::Limit,
        without_remapping: WithoutRemapping::TrustEveryGuest,
        screen: Some(0),
        at_end: AtEnd::PowerOff,
        whole_turns: true,
        moving: Moving::ByLoad(1_000),
    };
    let (vms, networks, sidecores) = (vec![vm], vec![network], vec![3, 4]);
    assert_eq!(plan, Ok(Plan { vms, networks, sidecores, slice_us: 500, host }));
}

#[test]
fn the_screen_is_everybody_s_or_one_s() {
    let screen = |says: &str| {
        let vms = "[vm.web]\nkernel='k'\n[vm.db]\nkernel='k'\n";
        parse("f", &format!("[host]\n{says}\n{vms}")).map(|plan| plan.host.screen)
    };
    assert_eq!(screen(""), Ok(None));
    assert_eq!(screen("screen = 'all'"), Ok(None));
    assert_eq!(screen("screen = 'db'"), Ok(Some(1)));
    let refused = |says| screen(says).unwrap_err().to_string();
    assert_eq!(
        refused("screen = 'wep'"),
        "f:2: [host] screen: \"wep\" is no VM of this plan; did you mean `web`?"
    );
    assert_eq!(
        refused("screen = 1"),
        "f:2: [host] screen: this is a number, but it has to be a VM's name in quotes, or \"all\""
    );
}

#[test]
fn who_names_no_core_gets_one_that_nobody_has() {
    let vm = |name, cpus| format!("[vm.{name}]\n{cpus}\nkernel='k'\n");
    let file = [vm("a", ""), vm("b", "cpus=[1, 3]"), vm("c", ""), vm("d", "cpus=[3]")].concat();
    let plan = parse("f", &file).unwrap();
    let cpus: Vec<_> = plan.vms.into_iter().map(|vm| vm.cpus).collect();
    assert_eq!(cpus, [vec![2], vec![1, 3], vec![4], vec![3]]);
}

#[test]
fn sidecores_that_are_counted_come_after_the_vms_cores() {
    let vms = "[vm.a]\nkernel='k'\n[vm.b]\ncpus=[2, 4]\nkernel='k'\n";
    let cores = |says: &str| {
        let plan = parse("f", &format!("[host]\nsidecores = {says}\n{vms}")).unwrap();
        (plan.vms[0].cpus.clone(), plan.sidecores)
    };
    assert_eq!(cores("0"), (vec![1], vec![]));
    assert_eq!(cores("2"), (vec![1], vec![3, 5]));
    // A VM that names no core gets none of the sidecores'.
    assert_eq!(cores("[1, 7]"), (vec![3], vec![1, 7]));
}

#[test]
fn a_disk_has_a_queue_for_each_vcpu_unless_it_says_how_many() {
    let queues = |cpus: &str, says: &str| {
        let text =
            format!("[vm.a]\nkernel='k'\ndisk=[{{size='1M' {says}}}, {{size='1M'}}]\n{cpus}\n");
        let plan = parse("f", &format!("[host]\nsidecores=[1]\n{text}")).unwrap();
        [0, 1].map(|disk| plan.vms[0].disks[disk].queues)
    };
    assert_eq!(queues("", ""), [1, 1]);
    assert_eq!(queues("cpus=[2, 3, 3]", ", queues=7"), [7, 3]);
    let many: Vec<u32> = (2..40).collect();
    assert_eq!(queues(&format!("cpus={many:?}"), ", queues=1"), [1, 16]);
}

#[test]
fn vms_keep_the_order_of_the_file() {
    let plan = parse("f", "[vm.z]\nkernel='k'\n[vm.a]\ncpus=[2]\nkernel='k'\n").unwrap();
    assert_eq!(plan.vms.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["z", "a"]);
}

#[test]
fn each_mistake_names_its_place_what_was_found_and_what_is_right() {
    let cases = [
        ("", "vm.toml:1: the plan has no VM; it needs at least one, such as [vm.web]"),
        ("[vms.a]\n", "vm.toml:1: unknown key `vms`; did you mean `vm`?"),
        ("\nserver = 1\n", "vm.toml:2: unknown key `server`; known are vm, network, host, slice"),
        ("[web]\nkernel='k'\n", "vm.toml:1: unknown table [web]; a VM's is [vm.web]"),
        (
            "kernel = 'k'\n",
            "vm.toml:1: `kernel` doesn't belong here; it belongs into a VM's table, such as [vm.web]",
        ),
        (
            "[vm.a]\nkernel='k'\nslice='5ms'\n",
            "vm.toml:3: [vm.a]: `slice` doesn't belong here; it belongs above the first table",
        ),
        (
            "[vm.a]\niommu_faults='nmi'\n",
            "vm.toml:2: [vm.a]: `iommu_faults` doesn't belong here; it belongs into the table [host]",
        ),
        (
            "[vm.a]\nmacs=[]\n",
            "vm.toml:2: [vm.a]: `macs` doesn't belong here; it belongs into a network controller's table, such as [network.nic0]",
        ),
        (
            "[vm.a]\nmemory = '99999999T'\n",
            "vm.toml:2: [vm.a] memory: `99999999T` is more memory than any machine has",
        ),
        (
            "vm = 3",
            "vm.toml:1: this is a number, but it has to be a table for each VM, such as [vm.web]",
        ),
        (
            "[vm]\na = 1\n",
            "vm.toml:2: this is a number, but it has to be a table for each VM, such as [vm.web]",
        ),
        (
            "[vm.a]\n\n[vm.b]\nkernel='k'\n",
            "vm.toml:1: [vm.a]: it has no `kernel`; give the path of one, such as kernel = \"vmlinuz\"",
        ),
        (
            "[vm.a]\nmemroy = '1G'\n",
            "vm.toml:2: [vm.a]: unknown key `memroy`; did you mean `memory`?",
        ),
        (
            "[vm.a]\nkernel='k'\ncolour = 1\n",
            "vm.toml:3: [vm.a]: unknown key `colour`; known are cpus, weight, memory, kernel, initrd, cmdline, devices, disk, network, interrupts, reset",
        ),
        (
            "[vm.a]\ncpus = 1\n",
            "vm.toml:2: [vm.a] cpus: this is a number, but it has to be a list of cores, such as [1]",
        ),
        (
            "[vm.a]\ncpus = [\n1,\n'2']\n",
            "vm.toml:4: [vm.a] cpus: this is a string, but it has to be a whole number, that of a core, such as 1",
        ),
        (
            "[vm.a]\ncpus = [1.5]\n",
            "vm.toml:2: [vm.a] cpus: this is a floating-point number, but it has to be a whole number, that of a core, such as 1",
        ),
        (
            "[vm.a]\ncpus = [-1]\n",
            "vm.toml:2: [vm.a] cpus: `-1` is no core; cores are numbered 0, 1, 2 …",
        ),
        (
            "[vm.a]\ncpus = [0]\nkernel='k'\n",
            "vm.toml:2: [vm.a] cpus: core 0 is the host's own; use core 1 or above",
        ),
        (
            "[vm.a]\nmemory = 512\n",
            "vm.toml:2: [vm.a] memory: this is a number, but it has to be a size in quotes, such as \"1G\"",
        ),
        (
            "[vm.a]\nmemory = '512'\n",
            "vm.toml:2: [vm.a] memory: `512` has no unit; write it with M, G or T, such as \"512M\" or \"1G\"",
        ),
        (
            "[vm.a]\nkernel='k'\nmemory='2M'\n",
            "vm.toml:3: [vm.a] memory: 2M is too little; a VM needs at least 64M",
        ),
        (
            "[vm.a]\nkernel = ''\n",
            "vm.toml:2: [vm.a] kernel: the path is empty; give the path of a file",
        ),
        (
            "[vm.a]\ninterrupts = 'posted'\n",
            "vm.toml:2: [vm.a] interrupts: \"posted\" is not available in this version; use \"auto\", \"trap\", \"eli-delivery\", \"eli\" or \"direct\"",
        ),
        (
            "[vm.a]\nreset = 'halt'\n",
            "vm.toml:2: [vm.a] reset: \"halt\" is nothing that a reset can lead to; use \"restart\" or \"stop\"",
        ),
        (
            "[vm.a]\ninterrupts = 'elli'\n",
            "vm.toml:2: [vm.a] interrupts: \"elli\" is no interrupt policy; did you mean `eli`?",
        ),
        (
            "[vm.a]\ncpus=[1]\nkernel='k'\n[vm.b]\ncpus=[1]\nkernel='k'\ninterrupts='direct'\n",
            "vm.toml:7: [vm.b] interrupts: other vCPUs run on core 1, too, and \"direct\" gives its local APIC away; use \"eli\", or a core of its own",
        ),
        (
            "[vm.a]\nkernel='k'\ncpus=[1,1,1,1,1,1,1,1,1]\n",
            "vm.toml:3: [vm.a] cpus: core 1 is given to 9 vCPUs; at most 8 can share one",
        ),
        (
            "[vm.a]\nkernel='k'\nweight=0\n",
            "vm.toml:3: [vm.a] weight: 0 is out of range; use 1 to 10000",
        ),
        (
            "[vm.a]\nweight=-5\n",
            "vm.toml:2: [vm.a] weight: `-5` is no weight; give a number from 1 to 10000",
        ),
        (
            "[vm.a]\nweight='5'\n",
            "vm.toml:2: [vm.a] weight: this is a string, but it has to be a whole number, such as 100",
        ),
        (
            "\nslice = '2000ms'\n[vm.a]\nkernel='k'\n",
            "vm.toml:2: a slice of 2000ms is out of range; use 100us to 1000ms",
        ),
        (
            "\nslice = '5'\n",
            "vm.toml:2: `5` is no time; write a whole number with us or ms, such as \"5ms\"",
        ),
        (
            "slice = 5\n",
            "vm.toml:1: this is a number, but it has to be a time in quotes, such as \"5ms\"",
        ),
        (
            "[vm.a]\nkernel='k'\n[vm.a]\n",
            "vm.toml:3: `a` is given twice; each VM, table and key is given once",
        ),
        (
            "[vm.a]\nkernel='k'\nkernel='j'\n",
            "vm.toml:3: `kernel` is given twice; each VM, table and key is given once",
        ),
        (
            "[vm.a]\nkernel = \"k\nmemory = \"1G\"\n",
            "vm.toml:2: a text in quotes begins in this line and doesn't end in it; close it with another \"",
        ),
        (
            "[vm.a]\nkernel = 'k",
            "vm.toml:2: a text in quotes begins in this line and doesn't end in it; close it with another '",
        ),
        ("host = 1\n", "vm.toml:1: this is a number, but it has to be a table: [host]"),
        (
            "[host]\niommu_fault = 'nmi'\n",
            "vm.toml:2: [host]: unknown key `iommu_fault`; did you mean `iommu_faults`?",
        ),
        (
            "[host]\niommu_faults = 'here'\n",
            "vm.toml:2: [host] iommu_faults: \"here\" is no protection; use \"elsewhere\", \"nmi\" or \"limit\"",
        ),
        (
            "[host]\niommu_faults = true\n",
            "vm.toml:2: [host] iommu_faults: this is true or false, but it has to be \"elsewhere\", \"nmi\" or \"limit\"",
        ),
        (
            "[host]\nwithout_interrupt_remapping = 'run'\n",
            "vm.toml:2: [host] without_interrupt_remapping: \"run\" is nothing that can be done without; use \"refuse\" or \"trust-every-guest\"",
        ),
        (
            "[host]\nat_end = 'sleep'\n",
            "vm.toml:2: [host] at_end: \"sleep\" is nothing that the machine can end with; use \"stay\", \"power-off\" or \"reset\"",
        ),
        (
            "[host]\nsidecores = 'all'\n",
            "vm.toml:2: [host] sidecores: this is a string, but it has to be a list of cores, such as [1], or how many there are to be",
        ),
        (
            "[host]\nsidecores = 17\n",
            "vm.toml:2: [host] sidecores: `17` is no number of sidecores; give one from 0 to 16, or a list of cores such as [1]",
        ),
        (
            "[host]\nsidecore = 1\n",
            "vm.toml:2: [host]: unknown key `sidecore`; did you mean `sidecores`?",
        ),
        (
            "[host]\n\nsidecores = [\n2]\n[vm.a]\nkernel='k'\ncpus=[2]\n",
            "vm.toml:3: [host] sidecores: core 2 is VM `a`'s; a sidecore runs no guest, so give one of them another core",
        ),
        (
            "[vm.a]\nkernel='k'\n\ndisk={size='1M'}\n",
            "vm.toml:4: [vm.a] disk: a sidecore serves it, and the plan has none; give it a core with sidecores = 1 in [host]",
        ),
        (
            "[vm.a]\ndisk='64M'\n",
            "vm.toml:2: [vm.a] disk: this is a string, but it has to be a table such as { size = \"64M\" }, or a list of such tables",
        ),
        (
            "[vm.a]\ndisk=[{size='1M'},\n2]\n",
            "vm.toml:3: [vm.a] disk: this is a number, but it has to be a table such as { size = \"64M\" }, or a list of such tables",
        ),
        (
            "[vm.a]\ndisk = { sice = '1M' }\n",
            "vm.toml:2: [vm.a] disk0: unknown key `sice`; did you mean `size`?",
        ),
        (
            "[vm.a]\nqueues = 2\n",
            "vm.toml:2: [vm.a]: `queues` doesn't belong here; it belongs into a VM's disk, such as disk = { size = \"64M\" }",
        ),
        (
            "[vm.a]\ndisk = {}\n",
            "vm.toml:2: [vm.a] disk0: it has no `size`; give one, such as size = \"64M\"",
        ),
        (
            "[vm.a]\n[vm.a.disk]\nsize = 64\n",
            "vm.toml:3: [vm.a] disk0 size: this is a number, but it has to be a size in quotes, such as \"64M\"",
        ),
        (
            "[[vm.a.disk]]\nsize='1M'\n[[vm.a.disk]]\nbacking='file'\n",
            "vm.toml:4: [vm.a] disk1 backing: \"file\" is nothing that can be behind a disk; use \"ram\" or \"null\"",
        ),
        (
            "[vm.a]\ndisk = { device = 'disk0' }\n",
            "vm.toml:2: [vm.a] disk0 device: `disk0` names no device; write nvme, nic, sata, usb or edu with a number (\"nvme0\"), a virtual function (\"nic0.vf0\" to \"nic0.vf63\") or a PCI address (\"00:04.0\")",
        ),
        (
            "[vm.a]\ndisk = { backing='ram', size='1M', device='nvme0' }\n",
            "vm.toml:2: [vm.a] disk0 device: a disk on a device has no `backing`; leave one of the two out",
        ),
        (
            "[vm.a]\ndisk = { size='1M',\noffset='4K' }\n",
            "vm.toml:3: [vm.a] disk0 offset: a disk has an offset on a device alone; name one, such as device = \"nvme0\"",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndevices=['nvme0']\ndisk={size='1M',device='nvme0'}\n",
            "vm.toml:6: [vm.a] disk0 device: nvme0 is VM `a`'s; a controller that disks are cut from stays the host's, so take it from the VM's devices",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\n[[vm.a.disk]]\nsize='1M'\ndevice='nvme0'\n[[vm.a.disk]]\nsize='1M'\ndevice='nvme0'\noffset='512K'\n",
            "vm.toml:11: [vm.a] disk1 offset: it has bytes of nvme0 in common with disk0 of VM `a`, which is there from 0 to 1M; give it an offset of its own, or make both read-only",
        ),
        (
            "[vm.a]\ndisk = { read_only = 1 }\n",
            "vm.toml:2: [vm.a] disk0 read_only: this is a number, but it has to be true or false",
        ),
        (
            "[vm.a]\ndisk = { queues = 0 }\n",
            "vm.toml:2: [vm.a] disk0 queues: `0` is no number of queues; give one from 1 to 16",
        ),
        (
            "[vm.a]\ndisk = { queues = '2' }\n",
            "vm.toml:2: [vm.a] disk0 queues: this is a string, but it has to be a whole number of queues, such as 2",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\n[[vm.a.disk]]\nsize='1M'\n[[vm.a.disk]]\nsize='0M'\n",
            "vm.toml:8: [vm.a] disk1 size: the disk has no byte; give a size such as \"64M\"",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={size='1M',queues=17}\n",
            "vm.toml:5: [vm.a] disk0 queues: 17 is out of range; a disk may have 1 to 16 queues",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={size='1M',serial='0123456789abcdefghijk'}\n",
            "vm.toml:5: [vm.a] disk0 serial: it has 21 bytes; a disk's serial number may have at most 20",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={size='1M',image=''}\n",
            "vm.toml:5: [vm.a] disk0 image: the path is empty; give the path of a file",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={size='1M',image='i',backing='null'}\n",
            "vm.toml:5: [vm.a] disk0 image: backing is \"null\", and such a disk holds nothing; use \"ram\", or leave the image out",
        ),
        (
            "[host]\nwithout_interrupt_remapping = 1\n",
            "vm.toml:2: [host] without_interrupt_remapping: this is a number, but it has to be \"refuse\" or \"trust-every-guest\"",
        ),
        (
            "\n[vm.'a b']\nkernel='k'\n",
            "vm.toml:2: `a b` can't name a VM; use 1 to 32 letters, digits, `-` and `_`, a letter or digit first",
        ),
        (
            "[vm.a]\nkernel='k'\n[network.eth0]\n",
            "vm.toml:3: `eth0` is no network controller; tables are named after those, such as [network.nic0]",
        ),
        (
            "network = 2\n",
            "vm.toml:1: this is a number, but it has to be a table for each network controller, such as [network.nic0]",
        ),
        (
            "[network.nic0]\nvf = 2\n",
            "vm.toml:2: [network.nic0]: unknown key `vf`; did you mean `vfs`?",
        ),
        (
            "[network.nic0]\nvfs = '2'\n",
            "vm.toml:2: [network.nic0] vfs: this is a string, but it has to be a whole number of virtual functions, such as 2",
        ),
        (
            "[network.nic0]\nvfs = 256\n",
            "vm.toml:2: [network.nic0] vfs: `256` is no number of virtual functions; give one from 1 to 64",
        ),
        (
            "[network.nic0]\nmacs = '02:00:00:00:00:01'\n",
            "vm.toml:2: [network.nic0] macs: this is a string, but it has to be a list of MAC addresses, one for each virtual function",
        ),
        (
            "[network.nic0]\nmacs = [\n'02:00:00:00:00:01',\n'02:00']\n",
            "vm.toml:4: [network.nic0] macs: `02:00` is no MAC address; write six pairs of hexadecimal digits, such as \"02:00:00:00:00:01\"",
        ),
        (
            "[vm.a]\nkernel='k'\n[network.nic00]\nmacs=['02:00:00:00:00:01', '02:00:00:00:00:01']\n",
            "vm.toml:4: [network.nic0] macs: 02:00:00:00:00:01 is given twice; each virtual function needs an address of its own",
        ),
        (
            "[vm.a]\nkernel='k'\ndevices=['nic0.vf2']\n[network.nic0]\nvfs=2\n",
            "vm.toml:3: [vm.a] devices: nic0.vf2 isn't there: [network.nic0] has vfs = 2, and they count from vf0",
        ),
    ];
    for (text, sentence) in cases {
        assert_eq!(refusal(text), sentence, "{text}");
    }
    assert!(refusal("[vm.a\n").starts_with("vm.toml:1: not valid TOML: "));
    assert!(
        refusal("[vm.a]\ndevices = ['nvm0']\n")
            .starts_with("vm.toml:2: [vm.a] devices: `nvm0` names no device;")
    );
}

/// A file may come from somebody else: what it says is shown, not done.
#[test]
fn control_characters_are_shown_escaped() {
    let cases = [
        ("[vm.a]\nmemory = \"1\\nG\"\n", "[vm.a] memory: `1\\nG` is no size;"),
        ("[vm.a]\ndevices = [\"\\u001b[2J\"]\n", "[vm.a] devices: `\\u{1b}[2J` names no device;"),
        (
            "[vm.a]\ninterrupts = \"tr\\nap\"\n",
            "[vm.a] interrupts: \"tr\\nap\" is no interrupt policy;",
        ),
        ("[vm.\"a\\nb\"]\nmemory = 1\n", "[vm.a\\nb] memory: this is a number,"),
        ("[vm.\"ä\"]\nmemory = '1µ'\n", "[vm.ä] memory: `1µ` is no size;"),
    ];
    for (text, sentence) in cases {
        let refusal = refusal(text);
        assert!(refusal.contains(sentence), "{refusal}");
        assert!(!refusal.contains(char::is_control), "{refusal:?}");
    }
}

/// What a file says fills no screen.
#[test]
fn long_words_are_cut() {
    let long = "9".repeat(5_000);
    let cases = [
        format!("[vm.a]\nx{long} = 1\n"),
        format!("[vm.a]\ncpus = [{long}]\n"),
        format!("[vm.a]\nweight = {long}\n"),
        format!("[vm.a]\nmemory = '{long}'\n"),
        format!("[vm.a]\nmemory = '{long}x'\n"),
        format!("[vm.a]\ninterrupts = '{long}'\n"),
        format!("[vm.a]\nreset = '{long}'\n"),
        format!("[vm.a]\ndevices = ['{long}']\n"),
        format!("[vm.a{long}]\nkernel = 'k'\n"),
        format!("[vm.a{long}]\nkernel = 1\n"),
        format!("[vm.a{long}]\n[vm.a{long}]\n"),
        format!("[network.{long}]\n"),
        format!("[network.nic0]\nvfs = {long}\n"),
        format!("[network.nic0]\nmacs = ['{long}']\n"),
        format!("slice = '{long}'\n"),
        format!("[host]\niommu_faults = '{long}'\n"),
        format!("[host]\nwithout_interrupt_remapping = '{long}'\n"),
        format!("[host]\nat_end = '{long}'\n"),
        format!("[host]\nsidecores = {long}\n"),
        format!("[vm.a]\ndisk = {{ backing = '{long}' }}\n"),
        format!("[vm.a]\ndisk = {{ queues = {long} }}\n"),
    ];
    for text in cases {
        let refusal = refusal(&text);
        assert!(refusal.contains('…') && refusal.chars().count() < 300, "{refusal}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text: String) {
        let _ = parse("f", &text);
    }

    #[test]
    fn no_value_panics(key in 0..KEYS.len(), value in "[\\[\\]{}\"'0-9a-z,.\\- ]{0,30}") {
        let _ = parse("f", &format!("[vm.a]\n{} = {value}\n", KEYS[key]));
    }

    #[test]
    fn no_disk_panics(key in 0..DISK_KEYS.len(), value in "[\\[\\]{}\"'0-9a-z,.\\- ]{0,30}") {
        let _ = parse("f", &format!("[vm.a]\ndisk = {{ {} = {value} }}\n", DISK_KEYS[key]));
    }

    #[test]
    fn no_network_panics(nic: u8, vfs in "[0-9x]{0,4}", macs in prop::collection::vec("[0-9a-f:]{0,18}", 0..4)) {
        let text = format!("[vm.a]\nkernel='k'\n[network.nic{nic}]\nvfs = {vfs}\nmacs = {macs:?}\n");
        let _ = parse("f", &text);
    }

    #[test]
    fn sentences_stay_on_one_line(text in "[\\[\\]{}\"'=\n a-z0-9.]{0,60}") {
        if let Err(e) = parse("f", &text) {
            prop_assert!(!e.to_string().contains('\n'), "{}", e);
        }
    }
}
