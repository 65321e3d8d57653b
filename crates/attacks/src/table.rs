//! The table.

use crate::{
    Attack, Ends,
    Ends::{Contained, Never, Stopped},
    Shown, Subject,
};
use ledger::Reason;

const fn attack(name: &'static str, does: &'static str, shows: &'static [Shown]) -> Attack {
    Attack { name, does, ends: Contained, shows }
}

const fn last(
    name: &'static str,
    does: &'static str,
    ends: Ends,
    shows: &'static [Shown],
) -> Attack {
    Attack { name, does, ends, shows }
}

/// At least so many exits, whatever the policy.
const fn always(reason: Reason, n: u64) -> Shown {
    Shown { reason, eli: n, direct: n }
}

/// Everything that is tried.
pub const SUBJECTS: &[Subject] = &[
    Subject {
        name: "interrupts",
        cpus: 1,
        attacks: &[attack(
            "off",
            "keeps interrupts off for seconds while its device raises them",
            &[],
        )],
    },
    Subject {
        name: "exits",
        cpus: 1,
        attacks: &[attack("cpuid", "CPUID without end", &[always(Reason::Cpuid, 20_000)])],
    },
    Subject {
        name: "triple-fault",
        cpus: 1,
        attacks: &[last(
            "triple-fault",
            "faults without an interrupt table",
            Stopped("triple fault"),
            &[always(Reason::Shutdown, 1)],
        )],
    },
    Subject {
        name: "off-for-ever",
        cpus: 1,
        attacks: &[last("off-for-ever", "spins with interrupts off, for ever", Never, &[])],
    },
];
