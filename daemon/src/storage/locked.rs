//! Memory that is locked for what keeps the data: how much it may be, and what is said if that
//! isn't enough.
//!
//! Guarantees: the limit is looked up once. The first time has to be before rights are given up.

use plan::Size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

static MOST: OnceLock<Option<u64>> = OnceLock::new();

/// Has the system let this program lock as much as it may: so many bytes, if that is bounded.
pub fn most() -> Option<u64> {
    *MOST.get_or_init(|| {
        let limit = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
        getrlimit(Resource::Memlock).current
    })
}

/// So much would be locked in all, for this, if that is more than may be.
pub fn too_much(all: u64, name: &str) -> Option<String> {
    let most = most().filter(|most| all > *most)?;
    let kib = all.div_ceil(1024);
    Some(format!(
        "{} of memory would be locked for {name}, and this program may lock {}: give it more by \
         LimitMEMLOCK={kib}K in its unit, or `ulimit -l {kib}`",
        Size(all),
        Size(most)
    ))
}
