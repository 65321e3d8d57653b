//! What a whole test leaves to `--long`: combinations whose parts other cases play.
//!
//! Each takes many seconds, or is one of many. What is the policy's own in it (how an interrupt,
//! its EOI and a request for another core pass) has test kernels under that policy, which always
//! run.

use super::names::named;

/// What is rare: names ([`named`]) with `{}` for a policy or another word, with this word, but for
/// those that begin so behind the `/`. The same is played with one of the other words.
struct Rare {
    pattern: &'static str,
    word: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the test looks whether they are played"))]
    others: &'static [&'static str],
    kept: &'static [&'static str],
}

const fn rare(pattern: &'static str, word: &'static str, others: &'static [&'static str]) -> Rare {
    Rare { pattern, word, others, kept: &[] }
}

impl Rare {
    const fn but(self, kept: &'static [&'static str]) -> Rare {
        Rare { kept, ..self }
    }

    /// Which play what this one, which is rare, would.
    #[cfg(test)]
    fn by(&self, name: &str) -> impl Iterator<Item = String> {
        self.others.iter().map(move |other| name.replacen(self.word, other, 1))
    }

    fn has(&self, name: &str) -> bool {
        let has = |word: &str| named(name, &self.pattern.replace("{}", word));
        let behind = name.split_once('/').map_or("", |(_, behind)| behind);
        let kept = self.kept.iter().any(|kept| behind.starts_with(kept));
        // `eli-delivery` begins with another's name.
        has(self.word) && !kept && (self.word != "eli" || !has("eli-delivery"))
    }
}

/// Tests of one vCPU in which interrupts come, or what they leave behind.
const OF_INTERRUPTS: [&str; 9] = [
    "hello",
    "timer",
    "ticks",
    "heartbeat",
    "self-",
    "apic-",
    "compatibility",
    "restart",
    "reset-state",
];

const RARE: [Rare; 71] = [
    rare("^boot/*-{}$", "bookworm", &["trixie"]),
    rare("^hostile/devices-{}$", "direct", &["eli"]),
    rare("^hostile/devices-{}$", "shared-eli", &["eli"]),
    rare("^hostile/disks-{}$", "direct", &["eli"]),
    rare("^hostile/disks-cpus-{}$", "direct", &["eli"]),
    rare("^hostile/disks-packed-{}$", "direct", &["eli"]),
    rare("^hostile/exits-{}$", "direct", &["eli"]),
    rare("^hostile/exits-{}$", "shared-eli", &["eli"]),
    rare("^hostile/networks-{}$", "direct", &["eli"]),
    rare("^hostile/nobody-{}$", "shared-eli", &["eli", "direct"]),
    rare("^hostile/registers-{}$", "direct", &["eli"]),
    rare("^hostile/registers-{}$", "shared-eli", &["eli"]),
    rare("^hostile/tables-{}$", "direct", &["eli"]),
    rare("^hostile/tables-{}$", "shared-eli", &["eli"]),
    rare("^nic/functions-{}$", "direct", &["eli"]),
    rare("^nic/functions-{}$", "trap", &["eli"]),
    rare("^nic/moving-{}$", "eli", &["direct"]),
    rare("^nic/moving-{}$", "trap", &["direct"]),
    rare("^nic/resets-{}$", "direct", &["eli"]),
    rare("^nic/whole-{}$", "direct", &["eli"]),
    rare("^nic/whole-{}$", "trap", &["eli"]),
    rare("^trusting/moving-{}$", "eli", &["direct"]),
    rare("^virtio/net-{}-linux$", "direct", &["eli"]),
    rare("^virtio/net-{}-linux$", "trap-kicked", &["eli"]),
    rare("^virtio/nvme-{}-linux", "direct", &["eli"]),
    rare("^virtio/nvme-{}-linux", "trap", &["eli"]),
    rare("^virtio/nvme-eli-{}$", "linux", &["linux-two"]),
    // A sidecore calls as under `direct`; EOIs that exit are the same for whatever device.
    rare("^virtio/moves-{}-", "eli-delivery", &["trap", "direct"]),
    rare("^virtio/net-{}-", "eli-delivery", &["trap", "direct", "eli"]),
    rare("^virtio/nvme-{}-", "eli-delivery", &["trap", "direct", "eli"]),
    rare("^virtio/{}-", "eli-delivery", &["trap", "direct"]),
    rare("^virtio/by-load-{}$", "eli-delivery", &["trap"]),
    rare("^virtio/shared-{}-", "eli-delivery", &["trap", "eli"]).but(&["shared-eli-delivery-load"]),
    // What the device does doesn't depend on the policy: how its interrupts come does.
    rare("^virtio/moves-{}-", "trap", &["direct"]).but(&[
        "moves-trap-load",
        "moves-trap-kicked",
        "moves-trap-net-exchange",
    ]),
    rare("^virtio/net-{}-", "trap", &["direct", "eli"]).but(&[
        "net-trap-exchange",
        "net-trap-kicked",
        "net-trap-shared-exchange",
    ]),
    rare("^virtio/nvme-{}-", "trap", &["direct", "eli"]).but(&["nvme-trap-load", "nvme-trap-mask"]),
    rare("^virtio/{}-", "trap", &["direct"]).but(&[
        "trap-load",
        "trap-flags",
        "trap-mask",
        "trap-move",
        "trap-kicked",
        "trap-beside-device",
    ]),
    rare("^virtio/shared-{}-", "trap", &["eli"]).but(&[
        "shared-trap-load",
        "shared-trap-mask",
        "shared-trap-move",
    ]),
    // What has nothing to do with interrupts exits alike, whatever the policy, on shared cores too.
    // Which MSRs are open depends on both.
    rare("^{}/bad-", "trap", &["eli"]).but(&["bad-msr"]),
    rare("^{}/bad-", "shared-eli", &["eli"]).but(&["bad-msr"]),
    rare("^{}/wild-", "trap", &["eli"]),
    rare("^{}/wild-", "shared-eli", &["eli"]),
    rare("^{}/lock-mov-cr0", "trap", &["eli"]),
    rare("^{}/lock-mov-cr0", "shared-eli", &["eli"]),
    rare("^{}/reset-", "trap", &["eli"]).but(&["reset-state"]),
    // A VM without devices is the same on either machine.
    rare("^deviceless/{}-", "i440fx", &["q35"]).but(&["i440fx-own", "i440fx-network"]),
    rare("^virtio/moves-{}-", "eli", &["trap", "direct"]),
    rare("^virtio/net-{}-", "eli", &["trap", "direct"]).but(&["net-eli-linux", "net-eli-shared-"]),
    rare("^virtio/nvme-{}-", "eli", &["trap", "direct"]).but(&[
        "nvme-eli-linux",
        "nvme-eli-two-on",
        "nvme-eli-stalled-on",
        "nvme-eli-stuck-on",
        "nvme-eli-too-far",
        "nvme-eli-assigned-too",
    ]),
    rare("^virtio/{}-", "eli", &["trap", "direct"]).but(&["eli-no-sidecore"]),
    // Without a device a VM gains nothing by ELI, and is in injection mode as under `trap`; those
    // that are in ELI mode are `bochs-taken-shared*`.
    rare("^bochs-{}/", "shared-eli", &["shared-trap", "direct"]),
    rare("^bochs-{}/", "shared-smp-eli", &["shared-smp-trap", "smp-direct"]),
    // What doesn't belong to interrupts exits alike, whatever the policy, on shared cores too.
    rare("^bochs-{}/", "trap", &["direct"]).but(&OF_INTERRUPTS),
    rare("^bochs-{}/", "posted", &["direct"]).but(&OF_INTERRUPTS),
    rare("^bochs-{}/", "shared-trap", &["direct"]).but(&[
        "timer",
        "self-nmi",
        "debugged",
        "heartbeats",
        "states",
        "reset-state",
        "deaf-wanted",
    ]),
    rare("^bochs-smp-{}/", "trap", &["direct"]).but(&["ipi-nmi", "kicks"]),
    rare("^bochs-{}/", "shared-smp-trap", &["smp-direct"]).but(&["ap-restart", "ipi-nmi"]),
    rare("^bochs-{}/deaf-wanted", "taken-shared", &["shared-trap"]),
    rare("^bochs-{}/ipi-", "taken-shared-smp", &["taken-smp", "smp-direct"]).but(&["ipi-nmi"]),
    rare("^bochs-{}/ipi-ring", "taken-smp", &["smp-direct"]),
    rare("^bochs-{}/ipi-all", "taken-smp", &["smp-direct"]),
    rare("^bochs-taken-shared/{}$", "ticks", &["ticks-both"]),
    rare("^bochs-costs/{}$", "eli", &["trap", "direct"]),
    // Another seed.
    rare("^bochs-hostile-direct/random-{}$", "1", &["0"]),
    rare("^bochs-hostile-direct/random-{}$", "2", &["0"]),
    rare("^bochs-hostile-{}/", "trap", &["direct", "shared-trap"]),
    rare("^bochs-hostile-{}/", "shared-trap", &["direct"]).but(&[
        "alignment-for-ever",
        "debug-for-ever",
        "traps",
    ]),
    // What the CPU does by itself there has `bochs-posted` and `bochs-smp-posted`.
    rare("^bochs-hostile-{}/", "posted", &["direct", "shared-trap"]),
    rare("^bochs-smp-{}/", "posted", &["direct"]).but(&["ipi-", "kicks"]),
    rare("^bochs-smp-{}/ipi-ring", "posted", &["direct"]),
    rare("^bochs-smp-{}/ipi-void", "posted", &["direct"]),
];

/// Whether a whole test has this case only when asked for what takes long.
pub fn is_rare(name: &str) -> bool {
    RARE.iter().any(|rare| rare.has(name))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{all, vmx},
        *,
    };

    #[test]
    fn what_is_rare_is_there_and_played_otherwise_each_time() {
        let cases: Vec<_> = all().into_iter().chain(vmx::all()).collect();
        let played =
            |name: &str| cases.iter().any(|case| case.name == name && !case.long) && !is_rare(name);
        // Or what stands for another that is rare for another reason.
        let played_in_turn = |name: &str| {
            let by = RARE.iter().filter(|rare| rare.has(name)).flat_map(|rare| rare.by(name));
            played(name) || by.into_iter().any(|by| played(&by))
        };
        for rare in &RARE {
            let Rare { pattern, word, .. } = rare;
            // What takes long is left out by itself.
            let usual = cases.iter().filter(|case| !case.long).map(|case| &case.name);
            let mut names = usual.filter(|name| rare.has(name));
            let first = names.next();
            assert!(first.is_some(), "no case is {pattern} with {word}");
            for name in first.into_iter().chain(names) {
                let by: Vec<_> = rare.by(name).collect();
                assert!(
                    by.iter().any(|by| played_in_turn(by)),
                    "{name} is rare, but none of {by:?} is played"
                );
            }
        }
    }
}
