//! One run: the guest with its load, as a VM behind what IOMMU there is, or on the bare machine
//! behind its own.

use super::strategy::{Own, Place, Server};
use crate::{
    bench::{
        emulated,
        generator::{self, Generator, Role},
        guest::Kit,
        progress::Step,
        sidecore::Ran,
        watch::Watch,
        workload::{Effort, Workload},
    },
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::{Machine, NULL_DISK},
    network::NicModel,
    session::Framing,
};
use plan::{Class, DeviceName, Plan, Policy, Vm};
use std::time::Duration;

/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);
const SIDECORE: u32 = 2;

/// Runs it once.
pub fn boot(
    cx: &Context,
    kit: &Kit,
    (own, place): (Own, Place),
    workload: Workload,
    effort: Effort,
    step: &Step,
) -> Result<Ran> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let guest = kit.guest(workload)?;
    let parameters = workload.parameters(effort, workload.size(effort).pairs);
    let words = format!("{} {}", place.strategy.words(), own.words());
    let mut cmdline = format!("{LINUX} {words} {parameters}");
    // It ends with this function.
    let _peer = match Role::of(workload) {
        None => None,
        Some(Role::Server) => {
            let port = generator::free_port()?;
            cmdline.push_str(&format!(" exitless.port={port}"));
            Some(Generator::start(generator::command(workload, &guest.host, port)?)?)
        }
        Some(Role::Client { .. }) => bail!("{} has no columns here", workload.short()),
    };
    let disks = if workload.is_network() { Vec::new() } else { vec![NULL_DISK] };
    // What the machine boots from stays until it has ended.
    let _image;
    let (mut machine, framing) = match place.server {
        Server::Machine => {
            // As under a hypervisor it must not panic because the first ticks are late.
            let cmdline = format!("{cmdline} intel_iommu=on no_timer_check");
            let (kernel, initrd) = (&guest.kernel, Some(guest.initrd.as_path()));
            let memory = emulated::GUEST_MEMORY;
            (Machine::bare(kernel, initrd, &cmdline, memory, disks), Framing::Raw)
        }
        Server::Sidecore | Server::Exits => {
            let class = if workload.is_network() { Class::Nic } else { Class::Nvme };
            let device = DeviceName::Named { class, index: 0 };
            let vm = emulated::vm("vm1", guest, cmdline, device, Policy::Direct);
            let (machine, kept) = emulated::hosted(cx, plan(vm, own, place), disks)?;
            _image = kept;
            (machine, Framing::Frames)
        }
    };
    machine.iommu = Some(kit.iommu);
    machine.plugin = Some(kit.plugin_writing(&counts));
    if workload.is_network() {
        machine.connect(&[NicModel::Igb], &[])?;
    } else {
        emulated::set_nvme(&mut machine);
    }
    let mut watch = Watch::new(vec!["vm1".into()]);
    let ended = watch.run(cx, &machine, framing, PATIENCE, step, |_| false)?;
    let served = watch.report().vms.first().map(|vm| vm.paravirtual.total());
    Ok(Ran {
        guest: watch.guest(0, &ended)?,
        edges: emulated::counted(&counts)?.edges,
        served: served.unwrap_or_default(),
    })
}

/// The VM behind its own IOMMU, with a sidecore for that.
fn plan(vm: Vm<String>, own: Own, place: Place) -> Plan<String> {
    let plan = Plan::new(vec![Vm { iommu: place.iommu(own), ..vm }]);
    let polled = place.has_own() && place.server == Server::Sidecore;
    Plan { sidecores: polled.then_some(SIDECORE).into_iter().collect(), ..plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        guest::Guest,
        viommu::strategy::{Own, Strategy},
    };
    use plan::GuestIommu;

    /// Each column has the IOMMU and the sidecore that its name says, and no other.
    #[test]
    fn who_serves_it_is_in_the_plan() {
        let guest = Guest {
            kernel: "k".into(),
            initrd: "i".into(),
            host: "h".into(),
            netperf: "n".into(),
            versions: String::new(),
        };
        let device = DeviceName::Named { class: Class::Nvme, index: 0 };
        let vm = || emulated::vm("vm1", &guest, String::new(), device, Policy::Direct);
        for (own, counts) in [(Own::Virtio, (3, 5)), (Own::VtD, (2, 3)), (Own::AmdVi, (2, 3))] {
            let (mut polled, mut has) = (0, 0);
            for place in own.places().into_iter().filter(|place| place.server != Server::Machine) {
                let plan = plan(vm(), own, place);
                let iommu = plan.vms[0].iommu;
                polled += plan.sidecores.len();
                has += usize::from(iommu != GuestIommu::None);
                assert_eq!(iommu == GuestIommu::None, place.strategy == Strategy::None);
                // Optimistic teardown without a sidecore is no plan.
                let optimistic = place.strategy == Strategy::Optimistic;
                assert!(!optimistic || plan.sidecores == [SIDECORE], "{iommu:?}");
            }
            assert_eq!((polled, has), counts, "{own:?}");
        }
    }
}
