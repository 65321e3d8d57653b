//! Timers in Linux: a program that does nothing but wait for a timer, a thousand times a
//! second, must not exit once where the guest owns the timer.

use super::case::{Case, Expected, Guest};
use super::cases::{case, guest};
use super::kernel::Variant;
use plan::Policy;

/// All of them.
pub fn all() -> Vec<Case> {
    vec![case("direct/cyclictest".into(), false, [cyclictest()])]
}

/// The guest itself compares: it fails when one of its windows has an exit.
pub fn cyclictest() -> Guest {
    let options = "exitless.workload=cyclictest exitless.exits=0 exitless.warmup=200 \
        exitless.short=500 exitless.long=2000 exitless.pairs=1";
    cyclictest_by(Policy::Direct, options)
}

/// The same where a tick exits.
pub fn cyclictest_that_exits(policy: Policy) -> Guest {
    let options = "exitless.workload=cyclictest exitless.warmup=200 exitless.short=500 \
        exitless.long=2000 exitless.pairs=1";
    cyclictest_by(policy, options)
}

fn cyclictest_by(policy: Policy, options: &'static str) -> Guest {
    Guest {
        tests: "",
        variant: Variant::Linux,
        options,
        end: Expected::PowerOff,
        says: vec!["ledger=yes workload=cyclictest", "kind=long", "@exitless done"],
        counts: Vec::new(),
        ..guest("hello", policy)
    }
}
