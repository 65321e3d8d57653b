//! What VMs that share cores, and the host beside them, are promised: weights, the slice, and how
//! the host's own interrupts are kept safe from them, where the machine lets it.

use crate::{AtEnd, Error, IommuUnit, Moving, Place, Plan, Policy, Problem, Vm, shown::Shown};
use alloc::string::{String, ToString};
use core::{fmt, ops::RangeInclusive};
use serde::{Deserialize, Serialize};

pub use schedule::{DEFAULT_WEIGHT, MAX as MAX_SHARES, MAX_WEIGHT};

/// Microseconds that a vCPU runs while another one waits, if the plan doesn't say.
pub const DEFAULT_SLICE: u32 = 5_000;
/// The values that a plan may have.
pub const SLICES: RangeInclusive<u32> = 100..=1_000_000;

/// How the host protects itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The IOMMU's problem interrupt.
    pub iommu_faults: Protection,
    /// What to do on a machine whose IOMMU can't remap interrupts.
    pub without_remapping: WithoutRemapping,
    /// The VM whose console alone is shown on the machine's screen, by its place in the plan; all
    /// VMs' without one.
    pub screen: Option<u32>,
    /// What becomes of the machine when every VM has ended.
    pub at_end: AtEnd,
    /// For measurements: a sidecore serves each queue in its order until it is empty, or had
    /// 512 KiB, whoever waits. Else it schedules as ELVIS does.
    pub whole_turns: bool,
    /// Whether disks move from one sidecore to another.
    pub moving: Moving,
}

/// What to do where nothing keeps a guest's device from raising any interrupt on any core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithoutRemapping {
    /// Not to run.
    #[default]
    Refuse,
    /// To run: each guest that has a device is trusted with the whole machine.
    TrustEveryGuest,
}

impl WithoutRemapping {
    /// Every choice with the name it has in `vm.toml`.
    pub const ALL: [(&'static str, WithoutRemapping); 2] = [
        ("refuse", WithoutRemapping::Refuse),
        ("trust-every-guest", WithoutRemapping::TrustEveryGuest),
    ];
}

/// What keeps guests that take interrupts themselves from holding one of the host's back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protection {
    /// It goes to a core that runs no guest.
    #[default]
    Elsewhere,
    /// It is a non-maskable interrupt.
    Nmi,
    /// Its vector is above the limit of the guest's interrupt table, so that its delivery exits.
    Limit,
}

impl Protection {
    /// Every choice with the name it has in `vm.toml`.
    pub const ALL: [(&'static str, Protection); 3] = [
        ("elsewhere", Protection::Elsewhere),
        ("nmi", Protection::Nmi),
        ("limit", Protection::Limit),
    ];
}

/// Prints microseconds as people write them: `2s`, `5ms`, `500us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Micros(pub u32);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us != 0 && us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            us if us != 0 && us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}

/// The text isn't a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no time; write a whole number with us, ms or s, such as \"5ms\"", Shown(.0))]
pub struct MicrosError(String);

/// Reads "2s", "5ms", "500us".
pub fn parse_micros(text: &str) -> Result<u32, MicrosError> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let found = units.iter().find_map(|(unit, us)| Some((text.strip_suffix(unit)?, *us)));
    let (digits, unit) = found.unwrap_or_default();
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let number = plain.then(|| digits.parse::<u32>().ok()).flatten();
    number.and_then(|n| n.checked_mul(unit)).ok_or_else(|| MicrosError(text.to_string()))
}

impl<F> Plan<F> {
    /// How many vCPUs run on this core.
    pub fn shares(&self, core: u32) -> usize {
        self.vms.iter().flat_map(|vm| &vm.cpus).filter(|other| **other == core).count()
    }

    /// The slice, which is of the whole plan.
    pub(crate) fn check_slice(&self) -> Result<(), Error> {
        match SLICES.contains(&self.slice_us) {
            true => Ok(()),
            false => {
                let problem = Problem::Slice(self.slice_us);
                Err(Error { place: Place::Plan, key: "slice", problem })
            }
        }
    }

    /// Whose console the screen shows.
    pub(crate) fn check_screen(&self) -> Result<(), Error> {
        match self.host.screen {
            Some(vm) if vm as usize >= self.vms.len() => {
                let problem = Problem::NoSuchVm(vm);
                Err(Error { place: Place::Host, key: "screen", problem })
            }
            _ => Ok(()),
        }
    }

    /// What must hold of a VM for it to share cores: `vm` is the plan's.
    pub(crate) fn check_sharing(&self, vm: &Vm<F>) -> Result<(), (&'static str, Problem)> {
        if !(1..=MAX_WEIGHT).contains(&vm.weight) {
            return Err(("weight", Problem::Weight(vm.weight)));
        }
        for &core in &vm.cpus {
            let shares = self.shares(core);
            if shares > MAX_SHARES {
                return Err(("cpus", Problem::CrowdedCore { core, shares }));
            }
            if shares > 1 && vm.interrupts == Some(Policy::Direct) {
                return Err(("interrupts", Problem::DirectShared(core)));
            }
            if shares > 1 && vm.interrupts == Some(Policy::Posted) {
                return Err(("interrupts", Problem::PostedShared(core)));
            }
            if shares > 1 && vm.nested {
                return Err(("nested", Problem::NestedShared(core)));
            }
        }
        match vm.interrupts {
            // Where its guests have interrupts posted, its own are injected.
            Some(Policy::Trap) if vm.nested && vm.iommu.unit() == Some(IommuUnit::AmdVi) => Ok(()),
            Some(policy) if vm.nested && policy != Policy::Direct => {
                Err(("nested", Problem::NestedPolicy(policy)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_read_as_written() {
        assert_eq!(["2s", "5ms", "500us"].map(parse_micros), [Ok(2_000_000), Ok(5_000), Ok(500)]);
        for text in
            ["", "ms", "us", "s", "5", "5ns", "5 ms", "-5ms", "+5ms", "1.5ms", "5000s", "5MS"]
        {
            assert_eq!(parse_micros(text), Err(MicrosError(text.into())), "{text}");
        }
        assert_eq!(
            [0, 99, 1_000, 1_500, 3_000_000].map(|us| Micros(us).to_string()),
            ["0us", "99us", "1ms", "1500us", "3s"]
        );
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same(us: u32) {
            prop_assert_eq!(parse_micros(&Micros(us).to_string()), Ok(us));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = parse_micros(&text);
        }
    }
}
