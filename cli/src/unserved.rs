//! What a plan asks for that needs an IOMMU, with the key or option that asks for it.
//!
//! The hypervisor refuses such a plan, too, but can't know that an option took the IOMMU away.

use anyhow::{Result, bail};
use plan::{DeviceName, Plan};

/// Fails if something of the plan needs an IOMMU. VMs are described `in_plan`, or by options.
pub fn check<F>(plan: &Plan<F>, in_plan: bool) -> Result<()> {
    let (wants, remedy) = match in_plan {
        true => (keys(plan), "the key or the device"),
        false => (options(plan), "--device"),
    };
    if wants.is_empty() {
        return Ok(());
    }
    let needs = if wants.len() == 1 { "needs" } else { "need" };
    bail!(
        "--iommu none: {} {needs} an IOMMU, which keeps a device from memory that isn't its VM's; leave --iommu out, or {remedy}",
        wants.join(", ")
    )
}

fn options<F>(plan: &Plan<F>) -> Vec<String> {
    plan.vms.iter().flat_map(|vm| &vm.devices).map(|device| format!("--device {device}")).collect()
}

fn keys<F>(plan: &Plan<F>) -> Vec<String> {
    let of_vms = plan.vms.iter().filter(|vm| !vm.devices.is_empty()).map(|vm| {
        let names: Vec<_> = vm.devices.iter().map(DeviceName::to_string).collect();
        format!("{} ([vm.{}] devices)", names.join(" "), vm.name)
    });
    let parts = plan.disks().filter_map(|(vm, disk)| {
        let (part, _) = disk.part()?;
        Some(format!("{} ([vm.{}] disk)", part.device, vm.name))
    });
    let uplinks = plan.uplinks().map(|(device, _)| format!("{device} ([network.{device}] uplink)"));
    let functions = plan.networks.iter().filter(|network| network.vfs.is_some());
    let functions = functions.map(|network| format!("nic{0} ([network.nic{0}] vfs)", network.nic));
    of_vms.chain(parts).chain(uplinks).chain(functions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, in_plan: bool) -> Option<String> {
        let text = format!("[host]\nsidecores=1\n{text}");
        let plan = plan::file::parse("vm.toml", &text).unwrap();
        // Whoever has a device is told, and nobody else.
        let said = check(&plan, in_plan).err().map(|error| error.to_string());
        assert_eq!(said.is_some(), plan.any_device().is_some(), "{text}");
        said
    }

    const VM: &str = "[vm.web]\nkernel='k'\n";

    #[test]
    fn what_needs_an_iommu_is_named_with_its_key() {
        let named = |more: &str, wants: &str| {
            let said = told(&format!("{VM}{more}"), true).unwrap();
            assert!(said.starts_with(&format!("--iommu none: {wants} an IOMMU, which")), "{said}");
            assert!(said.ends_with("; leave --iommu out, or the key or the device"), "{said}");
        };
        named("devices=['nvme0','nic0.vf1']\n", "nvme0 nic0.vf1 ([vm.web] devices) needs");
        named("disk={device='nvme1',size='1M'}\n", "nvme1 ([vm.web] disk) needs");
        named("[network.nic1]\nvfs=2\n", "nic1 ([network.nic1] vfs) needs");
        named(
            "devices=['nvme0']\nnetwork={switch='lan'}\n[network.nic0]\nuplink='lan'\n",
            "nvme0 ([vm.web] devices), nic0 ([network.nic0] uplink) need",
        );
    }

    #[test]
    fn what_options_ask_for_is_named_as_an_option() {
        let said = told(&format!("{VM}devices=['nvme0']\n"), false).unwrap();
        assert!(said.starts_with("--iommu none: --device nvme0 needs an IOMMU, "), "{said}");
        assert!(said.ends_with("; leave --iommu out, or --device"), "{said}");
    }

    #[test]
    fn who_needs_none_is_told_nothing() {
        let more = "nested=true\ndisk={size='1M'}\nnetwork={switch='lan'}\n";
        assert_eq!(told(&format!("{VM}{more}"), true), None);
    }
}
