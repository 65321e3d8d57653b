//! What a whole test leaves to `--long`: combinations whose parts other cases play.
//!
//! Each is a case of many seconds. What is the policy's own in it (how an interrupt, its EOI and a
//! request for another core pass) has test kernels under that policy, which always run.

use super::names::named;

/// Names of cases ([`named`]), and of those that play the same under other policies.
const RARE: [(&str, &[&str]); 8] = [
    ("^hostile/exits-direct$", &["^hostile/exits-eli$", "^hostile/exits-shared-eli$"]),
    ("^hostile/registers-direct$", &["^hostile/registers-eli$", "^hostile/registers-shared-eli$"]),
    ("^hostile/tables-direct$", &["^hostile/tables-eli$", "^hostile/tables-shared-eli$"]),
    ("^nic/functions-direct$", &["^nic/functions-trap$", "^nic/functions-eli$"]),
    ("^nic/resets-direct$", &["^nic/resets-eli$"]),
    ("^nic/whole-direct$", &["^nic/whole-trap$", "^nic/whole-eli$"]),
    ("^virtio/net-direct-linux$", &["^virtio/net-trap-kicked-linux$", "^virtio/net-eli-linux$"]),
    (
        "^virtio/nvme-direct-linux-two$",
        &["^virtio/nvme-trap-linux-two$", "^virtio/nvme-eli-linux-two$"],
    ),
];

/// Whether a whole test has this case only when asked for what takes long.
pub fn is_rare(name: &str) -> bool {
    RARE.iter().any(|(rare, _)| named(name, rare))
}

#[cfg(test)]
mod tests {
    use super::{super::all, *};

    #[test]
    fn what_is_rare_is_there_and_played_otherwise_each_time() {
        let cases = all();
        let played = |text: &str| {
            cases.iter().any(|case| named(&case.name, text) && !case.long && !is_rare(&case.name))
        };
        for (rare, others) in RARE {
            assert!(cases.iter().any(|case| named(&case.name, rare)), "no case is {rare}");
            for other in others {
                assert!(played(other), "{rare} is rare, but {other} isn't played");
            }
        }
    }
}
