//! Each mistake in a file, and the sentence that it leads to.

use super::{line_of, parse, tests::refusal};
use crate::{Coalesce, Place};
use alloc::{borrow::ToOwned, format};

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
            "vm.toml:2: [vm.a] memory: `99999999T` is more than any machine has",
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
            "vm.toml:3: [vm.a]: unknown key `colour`; known are cpus, weight, limit, memory, kernel, initrd, cmdline, devices, disk, network, interrupts, reset, nested, iommu",
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
            "vm.toml:2: [vm.a] memory: `512` has no unit; write it with K, M, G or T, such as \"512M\" or \"1G\"",
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
            "[vm.a]\ninterrupts = 'poste'\n",
            "vm.toml:2: [vm.a] interrupts: \"poste\" is no interrupt policy; did you mean `posted`?",
        ),
        (
            "[vm.a]\nreset = 'halt'\n",
            "vm.toml:2: [vm.a] reset: \"halt\" is nothing that a reset can lead to; use \"restart\" or \"stop\"",
        ),
        (
            "[vm.a]\niommu = 'intel'\n",
            "vm.toml:2: [vm.a] iommu: \"intel\" is no IOMMU that a guest can have; use \"none\", \"virtio\", \"virtio-optimistic\", \"vt-d\", \"vt-d-optimistic\", \"amd-vi\" or \"amd-vi-optimistic\"",
        ),
        (
            "[vm.a]\nkernel = 'k'\ndevices = ['nvme0']\niommu = 'virtio-optimistic'\n",
            "vm.toml:4: [vm.a] iommu: without a sidecore nobody ends what an optimistic IOMMU leaves mapped; give sidecores under [host], or use \"virtio\"",
        ),
        (
            "[vm.a]\nkernel = 'k'\ndevices = ['nvme0']\niommu = 'amd-vi-optimistic'\n",
            "vm.toml:4: [vm.a] iommu: without a sidecore nobody ends what an optimistic IOMMU leaves mapped; give sidecores under [host], or use \"amd-vi\"",
        ),
        (
            "[vm.a]\nkernel = 'k'\niommu = 'virtio'\n",
            "vm.toml:3: [vm.a] iommu: nothing would be behind the VM's own IOMMU: it is for devices that the VM owns; name one under devices, such as [\"nvme0\"], or leave iommu out",
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
            "vm.toml:2: slice: 2s is out of range; use 100us to 1s",
        ),
        (
            "\nslice = '5'\n",
            "vm.toml:2: slice: `5` is no time; write a whole number with us, ms or s, such as \"5ms\"",
        ),
        (
            "slice = 5\n",
            "vm.toml:1: slice: this is a number, but it has to be a time in quotes, such as \"5ms\"",
        ),
        (
            "[vm.a]\nkernel='k'\n[vm.a]\n",
            "vm.toml:3: `a` is given twice; each table and key is given once",
        ),
        (
            "[vm.a]\nkernel='k'\nkernel='j'\n",
            "vm.toml:3: `kernel` is given twice; each table and key is given once",
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
            "vm.toml:2: [host] without_interrupt_remapping: \"run\" is nothing to do without interrupt remapping; use \"refuse\" or \"trust-every-guest\"",
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
            "[network.nic0]\ncoalesce = { deferral = '1us' }\n",
            "vm.toml:2: [network.nic0]: unknown key `deferral` of `coalesce`; known are in_flight, rate, epoch, map",
        ),
        (
            "[vm.a]\nkernel='k'\n[network.nic0]\nvfs=1\ncoalesce = { in_flight = 2,\nepoch = '10us' }\n",
            "vm.toml:6: [network.nic0] coalesce.epoch: 10us is out of range; use 1ms to 10s",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\nnetwork={switch='s'}\n[network.nic0]\nuplink='s'\ncoalesce=true\n",
            "vm.toml:8: [network.nic0] coalesce: a switch's uplink sends no interrupts, as a sidecore polls it; take this out",
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
        (
            "[vm.a]\nkernel='k'\nlimit={ colour='1M/s' }\n",
            "vm.toml:3: [vm.a]: unknown key `colour` of `limit`; known are iops, rate",
        ),
        (
            "[vm.a]\nlimit={ rate='1/s' }\n",
            "vm.toml:2: [vm.a] limit.rate: `1/s` has no unit; write bytes in a second with K, M, G or T, such as \"100M/s\"",
        ),
        (
            "[vm.a]\nlimit={}\n",
            "vm.toml:2: [vm.a] limit: it limits nothing; give iops, rate or both, such as { iops = 20000, rate = \"100M/s\" }, or leave `limit` out",
        ),
        (
            "[vm.a]\ndisk={ size='0' }\n",
            "vm.toml:2: [vm.a] disk0 size: `0` is empty; write a size with K, M, G or T, such as \"512M\" or \"1G\"",
        ),
        (
            "[vm.a]\ndisk={ backing='null', latency='0ms' }\n",
            "vm.toml:2: [vm.a] disk0 latency: a time of 0 is none; give one such as \"2ms\", or leave `latency` out",
        ),
        (
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\nnetwork={switch='s',mac='02:00:00:00:00:01'}\n[vm.b]\nkernel='k'\nnetwork={switch='s',\nmac='02:00:00:00:00:01'}\n",
            "vm.toml:9: [vm.b] network0 mac: 02:00:00:00:00:01 is the address of [vm.a] network0 already; give one of them another, such as mac = \"02:00:00:00:00:02\", or leave `mac` out",
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

#[test]
fn what_coalescing_can_t_be_is_told_with_what_it_can() {
    let told = |says: &str| {
        let vm = format!(
            "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={{size='1M',\ncoalesce={says}}}"
        );
        refusal(&vm).strip_prefix("vm.toml:6: [vm.a] disk0").unwrap().to_owned()
    };
    let rates = "is out of range; use 1 to 1000000";
    let requests = "is out of range; use 1 to 65535";
    let epochs = "is out of range; use 1ms to 10s";
    for (says, sentence) in [
        ("{ rate = 0 }", format!(" coalesce.rate: `0` {rates}")),
        ("{ rate = -1 }", format!(" coalesce.rate: `-1` {rates}")),
        ("{ rate = 1000001 }", format!(" coalesce.rate: `1000001` {rates}")),
        ("{ in_flight = 0 }", format!(" coalesce.in_flight: `0` {requests}")),
        (
            "{ in_flight = 100000000000 }",
            format!(" coalesce.in_flight: `100000000000` {requests}"),
        ),
        (
            "{ rate = '2000/s' }",
            " coalesce.rate: this is a string, but it has to be a whole number of completions a second, such as 2000".into(),
        ),
        (
            "'adapted'",
            " coalesce: this is a string, but it has to be true, false or a table such as { map = \"adapted\" }".into(),
        ),
        (
            "{ map = 'vic' }",
            " coalesce.map: `vic` is no map from requests in flight to interrupts; use \"paper\" or \"adapted\"".into(),
        ),
        (
            "{ colour = 1 }",
            ": unknown key `colour` of `coalesce`; known are in_flight, rate, epoch, deferral, map".into(),
        ),
        ("{ epoch = '0ms' }", format!(" coalesce.epoch: 0us {epochs}")),
        ("{ epoch = '10001ms' }", format!(" coalesce.epoch: 10001ms {epochs}")),
        (
            "{ rate = 50, epoch = '5ms' }",
            " coalesce.epoch: in 5ms not one completion comes at rate = 50; use 20ms or more".into(),
        ),
        (
            "{ deferral = '501us' }",
            " coalesce.deferral: 501us is too much: with rate = 2000 nothing is held back for longer than 500us; use that or less".into(),
        ),
    ] {
        assert_eq!(told(says), sentence, "{says}");
    }
}

/// Who gives the rate alone is told of no time that the file doesn't have.
#[test]
fn times_of_coalescing_that_are_not_said_fit_the_rate() {
    let times = |says: &str| {
        let vm =
            format!("[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={{size='1M',coalesce={says}}}");
        match parse("f", &vm).unwrap().vms[0].disks[0].control.coalesce {
            Coalesce::On(read) => (read.epoch_us, read.deferral_us),
            Coalesce::Off => panic!("{says}"),
        }
    };
    assert_eq!(times("{}"), (200_000, 100));
    assert_eq!(times("{ rate = 1 }"), (1_000_000, 100));
    assert_eq!(times("{ rate = 1000000 }"), (200_000, 1));
    assert_eq!(times("{ epoch = '1ms', deferral = '500us' }"), (1_000, 500));
}

#[test]
fn a_key_s_line_is_found_again() {
    let text = "[vm.a]\nkernel='k'\n[host]\nsidecores=1\n[vm.b]\nkernel='k'\n[[vm.b.disk]]\nsize='1M'\n[[vm.b.disk]]\nsize='1M'\nimage='i'\n";
    let disk = |index| Place::Disk { vm: "b".into(), index };
    let line = |place, key| line_of(text, &place, key);
    assert_eq!([line(disk(1), "image"), line(disk(0), "image")], [Some(11), None]);
    assert_eq!(line_of("x", &disk(0), "image"), None);
}
