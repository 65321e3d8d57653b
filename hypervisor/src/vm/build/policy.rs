//! By which policy a VM's vCPUs have their interrupts, and why: as the plan says, or what the
//! machine allows at the least price.

use super::Builder;
use crate::cpu;
use crate::iommu;
use proto::Policy;

impl Builder<'_> {
    /// The policy, and why it is that one, as a part of a sentence.
    pub(super) fn policy(&self) -> (Policy, &'static str) {
        match self.vm.interrupts {
            Some(policy) => (policy, "asked for"),
            None if self.vm.cpus.iter().any(|core| self.image.plan.shares(*core) > 1) => {
                let why = match iommu::is_on() {
                    true => "it shares a core; the machine remaps interrupts",
                    false => "it shares a core; no device sends interrupts",
                };
                (Policy::Eli, why)
            }
            None if !iommu::is_on() && cpu::posts() => (
                Policy::Direct,
                "it shares no core; no device sends interrupts; by the CPU's posted interrupts its timer would exit",
            ),
            None if !iommu::is_on() => {
                (Policy::Direct, "it shares no core; no device sends interrupts")
            }
            None if !iommu::remaps() => (
                Policy::Direct,
                "it shares no core; the machine can't remap interrupts, and the plan trusts every guest",
            ),
            None => (Policy::Direct, "it shares no core; the machine remaps interrupts"),
        }
    }
}
