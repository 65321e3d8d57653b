//! What a machine offers, as its serial line was recorded when it started without a plan; and what
//! a plan asks for beyond that.
//!
//! Guarantees: a plan without a complaint here isn't refused by that machine for its cores or
//! devices, nor because all of its memory is too little, as far as the hypervisor told of them.
//! Whatever else shows at boot alone is said ([`Offered::unknown`]): virtual functions are made
//! when a plan is booted, how memory is cut into pieces isn't told, and without interrupt remapping
//! nothing is told of which IOMMU serves which device.

use crate::{machine, recording, report::Report, table::Table};
use anyhow::Result;
use plan::{DeviceName, Escaped, GuestIommu, Owner, Plan, Policy, Size, WithoutRemapping};
use proto::offer::{Address, Function, Offer};
use std::path::Path;

/// How the hypervisor begins to say that it has no interrupt remapping, which a plan may put up
/// with.
const NO_REMAPPING: &str = "the IOMMU has no interrupt remapping";
/// What it says of a function where no IOMMU is on.
const NOT_SERVED: &str = "is behind no IOMMU ";
/// VMs have their memory in pages of this size.
const LARGE_PAGE: u64 = 2 << 20;

/// A machine's inventory.
#[derive(Debug)]
pub struct Offered {
    report: Report,
}

impl Offered {
    /// Reads a recording.
    pub fn read(path: &Path) -> Result<Self> {
        recording::read(path).map(|report| Offered { report })
    }

    fn functions(&self) -> impl Iterator<Item = &Function> {
        self.report.offers.iter().filter_map(|offer| match offer {
            Offer::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Bytes that VMs may have.
    fn memory(&self) -> u64 {
        let machine = self.report.machine.as_ref();
        machine.map_or(0, |machine| machine.memory.saturating_sub(machine.host_memory))
    }

    /// The inventory, for people.
    pub fn shown(&self) -> String {
        let mut text = String::new();
        let machine = self
            .report
            .offers
            .iter()
            .filter(|offer| !matches!(offer, Offer::Function(_) | Offer::Complete));
        for offer in machine {
            text += &format!("{}\n", Escaped(&offer.to_string()));
        }
        text += &format!("memory for VMs: {}\n\n", Size(self.memory() / LARGE_PAGE * LARGE_PAGE));
        let mut table = Table::new(["function", "device", "class", "as", "interrupts", "reset"]);
        for f in self.functions() {
            let name = f.name.as_deref().unwrap_or("its address");
            let interrupts = match (f.msix, f.msi) {
                (0, 0) => "none".into(),
                (0, msi) => format!("{msi} by MSI"),
                (msix, _) => format!("{msix} by MSI-X"),
            };
            table.row([
                Address(f.address).to_string(),
                format!("{:04x}:{:04x}", f.ids.0, f.ids.1),
                format!("{:06x}", f.class),
                if f.refused.is_some() { "-".into() } else { Escaped(name).to_string() },
                interrupts,
                Escaped(f.reset.as_deref().unwrap_or("none")).to_string(),
            ]);
        }
        text += &table.to_string();
        for f in self.functions() {
            if let Some(why) = &f.refused {
                text += &format!("{}: {}\n", Address(f.address), Escaped(why));
            } else if !f.together.is_empty() {
                let others: Vec<_> = f.together.iter().map(|o| Address(*o).to_string()).collect();
                text +=
                    &format!("{}: one VM has it and {}\n", Address(f.address), others.join(", "));
            }
        }
        text
    }

    /// What the plan asks for and the machine doesn't offer, a sentence each. The plan's boot image
    /// takes so many bytes, too.
    pub fn lacks<F>(&self, plan: &Plan<F>, boot_image: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        let trusts = plan.host.without_remapping == WithoutRemapping::TrustEveryGuest;
        for offer in &self.report.offers {
            match offer {
                Offer::NoDevices(why) if trusts && why.starts_with(NO_REMAPPING) => {
                    wrong.extend(shared_core(plan));
                }
                Offer::NoDevices(why) => wrong.extend(plan.any_device().map(|(owner, device)| {
                    format!("{owner} is to have {device}, but {}", Escaped(why))
                })),
                Offer::NoNesting(why) => {
                    let nested = plan.vms.iter().filter(|vm| vm.nested);
                    wrong.extend(nested.map(|vm| format!("VM {:?}: {}", vm.name, Escaped(why))));
                }
                Offer::NoPosting(why) => {
                    let posted = plan.vms.iter().filter(|vm| vm.interrupts == Some(Policy::Posted));
                    wrong.extend(posted.map(|vm| format!("VM {:?}: {}", vm.name, Escaped(why))));
                }
                Offer::Missing(_) => wrong.push(format!("{}", Escaped(&offer.to_string()))),
                Offer::Cores { ready, .. } => cores(plan, ready, offer, &mut wrong),
                _ => {}
            }
        }
        let wanted = machine::used_memory(plan);
        let beside = self.memory().saturating_sub(boot_image) / LARGE_PAGE * LARGE_PAGE;
        if wanted > beside {
            wrong.push(format!(
                "the VMs{} have {} together, the machine has {} beside the boot image: lower theirs by {}",
                if plan.disk_memory() > 0 { " and their disks" } else { "" },
                Size(wanted),
                Size(beside),
                Size(wanted - beside)
            ));
        }
        self.devices(plan, &mut wrong);
        wrong
    }

    /// What of the plan shows when it is booted, and not before: a sentence each.
    pub fn unknown<F>(&self, plan: &Plan<F>) -> Vec<String> {
        let mut unknown = vec![
            "Each VM's memory must be in one piece, which is checked at boot only.".to_owned(),
        ];
        if plan.shared_nics().next().is_some() {
            unknown.push(
                "Whether the controllers have these virtual functions is checked at boot only."
                    .to_owned(),
            );
        }
        if self.is_unserved() && plan.vms.iter().any(|vm| !vm.devices.is_empty()) {
            unknown.push(
                "Whether an IOMMU serves the devices is checked at boot only, as none was on."
                    .to_owned(),
            );
        }
        unknown
    }

    /// What of the plan the machine does, but not as one may expect: a sentence each. What is wrong
    /// with the processor is so for any plan.
    pub fn warnings<F>(&self, plan: &Plan<F>) -> Vec<String> {
        let errata = self.report.offers.iter().filter(|o| matches!(o, Offer::Erratum(_)));
        let errata = errata.map(|offer| Escaped(&offer.to_string()).to_string());
        let without_reset = |name: &&DeviceName| {
            // A virtual function has a reset of its own, by its standard.
            let physical = !matches!(name, DeviceName::Virtual { .. });
            let found = self.find(name).filter(|_| physical);
            found.is_some_and(|f| f.reset.is_none() && !self.is_refused(f))
        };
        let of = |vm: &plan::Vm<F>| {
            let names = vm.devices.iter().filter(without_reset);
            let warn = |name: &DeviceName| {
                format!(
                    "VM {:?}: device {name} has no reset: it is only silenced when the VM starts or ends, and keeps what a guest left in it",
                    vm.name
                )
            };
            names.map(warn).collect::<Vec<_>>()
        };
        errata.chain(plan.vms.iter().flat_map(of)).collect()
    }

    /// Whether no IOMMU was switched on because none remaps interrupts: what the hypervisor says of
    /// functions then says nothing of a plan that puts up with that.
    fn is_unserved(&self) -> bool {
        let is =
            |offer: &Offer| matches!(offer, Offer::NoDevices(why) if why.starts_with(NO_REMAPPING));
        let on = |offer: &Offer| matches!(offer, Offer::Iommu { .. });
        self.report.offers.iter().any(is) && !self.report.offers.iter().any(on)
    }

    /// Whether no plan gets it.
    fn is_refused(&self, function: &Function) -> bool {
        let unserved = |why: &str| self.is_unserved() && why.starts_with(NOT_SERVED);
        function.refused.as_ref().is_some_and(|why| !unserved(why))
    }

    fn devices<F>(&self, plan: &Plan<F>, wrong: &mut Vec<String>) {
        let mut taken: Vec<(&Function, Owner)> = Vec::new();
        for (owner, name) in plan.devices() {
            let said = format!("{owner}: device {name}");
            let Some(f) = self.find(&name) else {
                wrong.push(format!("{said} isn't in the machine"));
                continue;
            };
            if matches!(name, DeviceName::Virtual { .. }) {
                continue;
            }
            if let Some(why) = f.refused.as_ref().filter(|_| self.is_refused(f)) {
                wrong.push(format!("{said} {}", Escaped(why)));
            }
            for (other, whose) in &taken {
                if other.address == f.address {
                    wrong.push(format!("{said} is {whose}'s, too"));
                } else if *whose == owner && f.together.contains(&other.address) {
                    let hands_on = |vm: &plan::Vm<F>| vm.nested && vm.iommu != GuestIommu::None;
                    let of = |vm: &&plan::Vm<F>| Owner::Vm(vm.name.as_str()) == owner;
                    if plan.vms.iter().find(of).is_some_and(hands_on) {
                        let other = Address(other.address);
                        wrong.push(format!(
                            "{said} can't be kept apart from {other}, which its own hypervisor can't see"
                        ));
                    }
                } else if f.together.contains(&other.address) {
                    let other = Address(other.address);
                    wrong.push(format!("{said} can't be kept apart from {other} of {whose}"));
                }
            }
            taken.push((f, owner));
        }
    }

    /// The function of this name; of a virtual one the controller.
    fn find(&self, name: &DeviceName) -> Option<&Function> {
        let wanted = match name {
            DeviceName::Virtual { nic, .. } => format!("nic{nic}"),
            other => other.to_string(),
        };
        self.functions().find(|f| {
            f.name.as_deref() == Some(&*wanted) || Address(f.address).to_string() == wanted
        })
    }
}

fn cores<F>(plan: &Plan<F>, ready: &[u32], told: &Offer, wrong: &mut Vec<String>) {
    for vm in &plan.vms {
        for core in vm.cpus.iter().filter(|core| !ready.contains(core)) {
            let sentence = format!("VM {:?}: core {core} can't run it; {told}", vm.name);
            if !wrong.contains(&sentence) {
                wrong.push(sentence);
            }
        }
    }
    for core in plan.sidecores.iter().filter(|core| !ready.contains(core)) {
        wrong.push(format!("core {core} can't be a sidecore; {told}"));
    }
}

/// Refused where interrupts aren't remapped, whatever the plan puts up with (docs/security.md).
fn shared_core<F>(plan: &Plan<F>) -> Option<String> {
    let mut cores = plan.vms.iter().flat_map(|vm| &vm.cpus);
    let core = cores.find(|core| plan.shares(**core) > 1)?;
    Some(format!(
        "core {core} is to be shared, and {NO_REMAPPING}: give each vCPU a core of its own"
    ))
}

#[cfg(test)]
#[path = "offered_tests.rs"]
mod tests;
