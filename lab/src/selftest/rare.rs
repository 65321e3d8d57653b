//! What a whole test leaves to `--long`: combinations whose parts other cases play.
//!
//! Each is a case of many seconds. What is the policy's own in it (how an interrupt, its EOI and a
//! request for another core pass) has test kernels under that policy, which always run.

use super::names::named;

/// A name ([`named`]) with `{}` for a policy, that policy, and those under which the same is
/// played.
type Rare = (&'static str, &'static str, &'static [&'static str]);

const RARE: [Rare; 27] = [
    ("^hostile/exits-{}$", "direct", &["eli", "shared-eli"]),
    ("^hostile/registers-{}$", "direct", &["eli"]),
    ("^hostile/registers-{}$", "shared-eli", &["eli"]),
    ("^hostile/tables-{}$", "direct", &["eli"]),
    ("^hostile/tables-{}$", "shared-eli", &["eli"]),
    ("^nic/functions-{}$", "direct", &["eli"]),
    ("^nic/functions-{}$", "trap", &["eli"]),
    ("^nic/moving-{}$", "eli", &["trap", "direct"]),
    ("^nic/resets-{}$", "direct", &["eli"]),
    ("^nic/whole-{}$", "direct", &["eli"]),
    ("^nic/whole-{}$", "trap", &["eli"]),
    ("^virtio/net-{}-linux$", "direct", &["eli"]),
    ("^virtio/net-{}-linux$", "trap-kicked", &["eli"]),
    ("^virtio/nvme-{}-linux$", "trap", &["eli"]),
    ("^virtio/nvme-{}-linux-two$", "direct", &["eli"]),
    ("^virtio/nvme-{}-linux-two$", "trap", &["eli"]),
    // A sidecore calls as under `eli`; EOIs that exit are the same for whatever device.
    ("^virtio/moves-{}-", "eli-delivery", &["trap", "direct"]),
    ("^virtio/net-{}-", "eli-delivery", &["trap", "eli"]),
    ("^virtio/nvme-{}-", "eli-delivery", &["trap", "eli"]),
    ("^virtio/{}-", "eli-delivery", &["trap", "eli"]),
    ("^virtio/moves-{}-", "eli", &["trap", "direct"]),
    // Without a device a VM gains nothing by ELI, and is in injection mode as under `trap`; those
    // that are in ELI mode are `bochs-taken-shared*`.
    ("^bochs-shared-{}/", "eli", &["trap"]),
    ("^bochs-shared-smp-{}/", "eli", &["trap"]),
    // What doesn't belong to interrupts exits alike, whatever the policy.
    ("^bochs-{}/bad-", "trap", &["direct"]),
    ("^bochs-{}/bad-", "posted", &["direct"]),
    ("^bochs-hostile-{}/", "trap", &["direct"]),
    // What the CPU does by itself there has `bochs-posted` and `bochs-smp-posted`.
    ("^bochs-hostile-{}/", "posted", &["direct"]),
];

/// Whether a whole test has this case only when asked for what takes long.
pub fn is_rare(name: &str) -> bool {
    RARE.iter().any(|rare| is_of(rare, name))
}

fn is_of(&(pattern, policy, _): &Rare, name: &str) -> bool {
    let has = |policy: &str| named(name, &pattern.replace("{}", policy));
    // `eli-delivery` begins with another's name.
    has(policy) && (policy != "eli" || !has("eli-delivery"))
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
            |name: &str| cases.iter().any(|case| case.name == name && !case.long && !is_rare(name));
        for rare @ (pattern, policy, others) in &RARE {
            // What takes long is left out by itself.
            let usual = cases.iter().filter(|case| !case.long).map(|case| &case.name);
            let mut names = usual.filter(|name| is_of(rare, name));
            let first = names.next();
            assert!(first.is_some(), "no case is {pattern} under {policy}");
            for name in first.into_iter().chain(names) {
                for other in *others {
                    let by = name.replacen(policy, other, 1);
                    assert!(played(&by), "{name} is rare, but {by} isn't played");
                }
            }
        }
    }
}
