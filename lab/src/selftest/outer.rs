//! Exitless as a VM of Exitless: the plan of the outer one for a plan of the inner one's.
//!
//! Guarantees: the inner one has all cores, devices and memory that its plan asks for; its devices
//! are behind a unit of its own, of the vendor whose the machine's is.

use super::case::MEMORY;
use anyhow::{Context as _, Result};
use exitless::{context::Context, load::File, qemu::Iommu};
use plan::{GuestIommu, OnReset, Plan, Policy, Vm};
use std::fs;

/// The inner hypervisor's memory, beside its guests'.
const OWN_MEMORY: u64 = 192 << 20;

/// The outer one's plan, on a machine with such an IOMMU.
pub fn plan(cx: &Context, inner: &Plan<File>, machine: Iommu) -> Result<Plan<File>> {
    let cores = inner.vms.iter().flat_map(|vm| &vm.cpus).chain(&inner.sidecores).max();
    let devices: Vec<_> = inner.devices().map(|(_, device)| device).collect();
    let image = plan::image::build(inner)?;
    let path = cx.hypervisor()?.to_owned();
    let bytes = fs::read(&path).with_context(|| format!("{} can't be read", path.display()))?;
    let memory = inner.vms.iter().map(|vm| vm.memory.max(MEMORY)).sum::<u64>();
    Ok(Plan::new(vec![Vm {
        name: "outer".into(),
        cpus: (1..=cores.copied().unwrap_or(0) + 1).collect(),
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: OWN_MEMORY + memory,
        kernel: File { path, bytes },
        initrd: Some(File { path: "its plan".into(), bytes: image }),
        cmdline: String::new(),
        iommu: match machine {
            _ if devices.is_empty() => GuestIommu::None,
            Iommu::VtD => GuestIommu::VtD,
            Iommu::AmdVi => GuestIommu::AmdVi,
        },
        devices,
        disks: vec![],
        interfaces: vec![],
        interrupts: Some(Policy::Direct),
        reset: OnReset::Stop,
        nested: true,
    }]))
}
