//! The interrupt policies of a VM: how the interrupts of its devices reach it.

use serde::{Deserialize, Serialize};

/// How a VM's interrupts are delivered (`docs/design.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Every interrupt and every EOI exits; the baseline.
    Trap,
    /// As `Eli`, but every EOI exits: the paper's first half, for measurements.
    EliDelivery,
    /// Through the shadow IDT; exitless EOI.
    Eli,
    /// The guest owns the core's local APIC, its timer included; for dedicated cores.
    Direct,
    /// The CPU itself delivers and completes what is posted to it; for dedicated cores of a CPU
    /// that can.
    Posted,
}

impl Policy {
    /// All of them: those that every CPU can, from the one with the most exits to the one with the
    /// fewest, and the hardware's own.
    pub const ALL: [Policy; 5] =
        [Policy::Trap, Policy::EliDelivery, Policy::Eli, Policy::Direct, Policy::Posted];

    /// The name used in `vm.toml`, on the command line, in tables and in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Policy::Trap => "trap",
            Policy::EliDelivery => "eli-delivery",
            Policy::Eli => "eli",
            Policy::Direct => "direct",
            Policy::Posted => "posted",
        }
    }

    /// The policy of this name.
    pub fn of(label: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| p.label() == label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_a_name_of_its_own() {
        for policy in Policy::ALL {
            assert_eq!(Policy::of(policy.label()), Some(policy));
        }
        assert_eq!(Policy::of("auto"), None);
    }
}
