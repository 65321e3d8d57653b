//! Words that mean something elsewhere: in `io.toml` (the daemon's file), to QEMU or libvirt, in
//! another table of a plan by another name. Who writes one is told what is written here instead.
//!
//! Guarantees: none of these words is a key of the table that it is looked up for, so nothing that
//! can be said is told away.

use crate::Place;

type Words = [(&'static [&'static str], &'static str)];

const PLAN: &Words = &[
    (
        &["disk", "disks"],
        "a VM's disk stands in its own table: disk = { size = \"64M\" } in [vm.NAME]; tables [disk.NAME] are for the file of `exitless io run`",
    ),
    (
        &["uplink"],
        "a switch's way out is a network controller: uplink = \"lan\" in [network.nic0]; tables [uplink.SWITCH] are for the file of `exitless io run`",
    ),
    (
        &["switch", "switches"],
        "a switch is there as soon as a VM names it: network = { switch = \"lan\" } in [vm.NAME]",
    ),
];
const VM: &Words = &[
    (&["ram"], "its memory is `memory`"),
    (
        &["device", "pci", "hostdev", "passthrough"],
        "PCI functions of its own are `devices`, such as devices = [\"nvme0\"]",
    ),
    (&["policy"], "how its interrupts come is `interrupts`, such as interrupts = \"eli\""),
    (&["initramfs", "ramdisk"], "its RAM disk is `initrd`"),
    (&["append", "command_line", "args"], "the kernel's command line is `cmdline`"),
    (&["net", "nic", "interface", "interfaces"], "an interface is network = { switch = \"lan\" }"),
    (&["name"], "a VM's name is its table's: [vm.NAME]"),
];
const DISK: &Words = &[
    (
        &["file", "path", "source"],
        "a disk here is memory (size = \"64M\"), which can begin with a file's content (image = \"disk.img\"), or a part of an NVMe controller (device = \"nvme0\"); `exitless io` serves files",
    ),
    (&["ram"], "a disk in memory is size = \"64M\""),
    (&["null"], "a disk that keeps nothing is size = \"64M\", backing = \"null\""),
    (&["nbd"], "no VM of a plan reaches an NBD server; `exitless io` serves such disks to QEMU"),
    (&["socket", "connect", "front_ends"], NO_SOCKET),
    (&["limits", "iops", "rate", "bytes_per_second", "burst"], OF_ALL),
];
const INTERFACE: &Words = &[
    (&["limits", "iops", "bytes_per_second"], OF_ALL),
    (&["socket", "connect"], NO_SOCKET),
    (
        &["tap", "bridge"],
        "a switch's way out is a network controller: uplink = \"lan\" in [network.nic0]",
    ),
];
const HOST: &Words = &[(
    &["control", "metrics", "paths"],
    "that is for the file of `exitless io run`; `exitless top` finds a run by itself",
)];
const LIMIT: &Words = &[
    (
        &["bytes_per_second", "bandwidth", "bps"],
        "bytes in a second are `rate`, such as rate = \"100M/s\"",
    ),
    (&["burst"], "a VM may save up what it is allowed in 10 ms, which no key changes"),
];
const NO_SOCKET: &str =
    "the VM that names it has it, without a socket; `exitless io` serves VMs of other programs";
const OF_ALL: &str = "a VM's disks and networks are limited together: limit = { iops = 20000, rate = \"100M/s\" } in [vm.NAME]";

/// What is written in this table instead of a word that it doesn't have; `of` is the key of a table
/// within it, or empty.
pub(super) fn meant(place: &Place, of: &str, found: &str) -> Option<&'static str> {
    let words = match (place, of) {
        (Place::Vm(_), "limit") => LIMIT,
        (Place::Plan, "") => PLAN,
        (Place::Vm(_), "") => VM,
        (Place::Disk { .. }, "") => DISK,
        (Place::Interface { .. }, "") => INTERFACE,
        (Place::Host, "") => HOST,
        _ => return None,
    };
    words.iter().find(|(words, _)| words.contains(&found)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::super::{
        DISK_KEYS, HOST_KEYS, INTERFACE_KEYS, KEYS, ROOT_KEYS, file_limit::LIMIT_KEYS,
        tests::refusal,
    };
    use super::*;

    #[test]
    fn no_key_is_told_away() {
        let limits = LIMIT_KEYS.map(|(key, _)| key);
        let tables: [(&Words, &[&str]); 6] = [
            (PLAN, &ROOT_KEYS),
            (VM, &KEYS),
            (DISK, &DISK_KEYS),
            (INTERFACE, &INTERFACE_KEYS),
            (HOST, &HOST_KEYS),
            (LIMIT, &limits),
        ];
        for (words, keys) in tables {
            let words = words.iter().flat_map(|(words, _)| *words);
            assert!(words.clone().all(|word| !keys.contains(word)), "{keys:?}");
        }
    }

    #[test]
    fn words_of_other_files_lead_to_what_is_written_here() {
        for (text, said) in [
            (
                "[disk.a]\nram='1G'\n",
                "f:1: unknown key `disk`; a VM's disk stands in its own table",
            ),
            ("[vm.a]\nram='1G'\n", "f:2: [vm.a]: unknown key `ram`; its memory is `memory`"),
            (
                "[vm.a]\ndevice=['nvme0']\n",
                "f:2: [vm.a]: unknown key `device`; PCI functions of its own are `devices`",
            ),
            (
                "[vm.a]\ndisk={file='d.img'}\n",
                "f:2: [vm.a] disk0: unknown key `file`; a disk here is memory (size = \"64M\")",
            ),
            (
                "[vm.a]\ndisk={size='1G',limits={iops=5}}\n",
                "f:2: [vm.a] disk0: unknown key `limits`; a VM's disks and networks are limited",
            ),
            (
                "[vm.a]\nnetwork={switch='lan',tap='tap0'}\n",
                "f:2: [vm.a] network0: unknown key `tap`; a switch's way out is",
            ),
            (
                "[vm.a]\nlimit={bytes_per_second='5M'}\n",
                "f:2: [vm.a]: unknown key `bytes_per_second` of `limit`; bytes in a second are `rate`",
            ),
            ("[host]\ncontrol='c'\n", "f:2: [host]: unknown key `control`; that is for the file"),
        ] {
            let refusal = refusal(text).replace("vm.toml", "f");
            assert!(refusal.starts_with(said), "{refusal}");
        }
    }
}
