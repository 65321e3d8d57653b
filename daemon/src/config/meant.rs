//! Words that mean something elsewhere: in a plan (`vm.toml`, for the hypervisor), to QEMU, in
//! earlier versions. Who writes one is told what is written here instead.
//!
//! Guarantees: none of these words is a key of the table that it is looked up for, so nothing that
//! can be said is told away.

type Words = [(&'static [&'static str], &'static str)];

const ROOT: &Words = &[
    (
        &["vm", "slice"],
        "this is a plan for the hypervisor, which `exitless run` runs; here are tables such as [disk.web]",
    ),
    (&["net", "nic"], "did you mean `network`?"),
    (
        &["switch", "switches"],
        "a switch is there as soon as a network names it: switch = \"lan\" in [network.NAME]",
    ),
];
const DISK: &Words = &[
    (
        &["backing"],
        "a disk in memory is ram = \"1G\", one that keeps nothing null = \"1T\"; a file has its own size",
    ),
    (
        &["image", "path", "device", "source"],
        "a file or block device is file = \"web.img\", a controller nvme = \"0000:01:00.0\"",
    ),
    (
        &["rate", "iops", "bytes_per_second", "burst"],
        "it stands in a table: limit = { iops = 20000, rate = \"100M/s\", burst = \"100ms\" }",
    ),
    (&["readonly", "ro"], "it is `read_only`"),
    (
        &["cache", "direct", "o_direct"],
        "whole pages go around the page cache, if not page_cache = true",
    ),
    (&["registered", "locked", "memlock"], "a guest's memory is held by pinned = true"),
    (&["polled", "latency"], "only a plan of the hypervisor has that"),
];
const NETWORK: &Words = &[
    (
        &["broadcast", "broadcasts", "storm"],
        "frames for many others are limited by flood = \"10M/s\"",
    ),
    (&["limit", "limits", "iops", "bytes_per_second"], "a network is limited by rate = \"100M/s\""),
    (
        &["tap", "uplink", "bridge"],
        "a switch's way out is a table of its own: [uplink.SWITCH], with tap = \"tap0\" or packet = \"eth0\"",
    ),
    (&["coalesce", "polled"], "only a plan of the hypervisor has that"),
];
const UPLINK: &Words =
    &[(&["bridge", "br"], "a bridge is reached by a TAP that was put into it: tap = \"tap0\"")];
const HOST: &Words =
    &[(&["sidecores", "sidecore_latency"], "the daemon serves all of it by one thread")];
const LIMIT: &Words =
    &[(&["bytes_per_second", "bandwidth", "bps"], "bytes in a second are rate = \"100M/s\"")];

/// What is written in this table instead of a word that it doesn't have. `place` is as it is
/// shown: `[disk.web]`, or nothing for the file itself; `within`: a table within it.
pub fn meant(place: &str, within: &str, found: &str) -> Option<&'static str> {
    let words = match (place.split('.').next().unwrap_or(""), within) {
        ("", "") => ROOT,
        ("[disk", "") => DISK,
        ("[disk", "limit") => LIMIT,
        ("[network", "") => NETWORK,
        ("[uplink", "") => UPLINK,
        ("[host]", "") => HOST,
        _ => return None,
    };
    words.iter().find(|(words, _)| words.contains(&found)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::super::{disk, tables};
    use super::*;

    #[test]
    fn no_key_is_told_away() {
        let all: [(&Words, &[&str]); 6] = [
            (ROOT, &tables::ROOT),
            (DISK, &disk::DISK),
            (NETWORK, &tables::NETWORK),
            (UPLINK, &tables::UPLINK),
            (HOST, &tables::HOST),
            (LIMIT, &tables::LIMIT),
        ];
        for (words, keys) in all {
            let words = words.iter().flat_map(|(words, _)| *words);
            assert!(words.clone().all(|word| !keys.contains(word)), "{keys:?}");
        }
    }
}
