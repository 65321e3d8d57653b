//! One run: two VMs that share core 1, or one system on the bare machine.
//!
//! Guarantees: a VM opens its first window when both are under load, and takes its load off when
//! both have closed their last; the first one's spin window has the core for itself.

use crate::{
    bench::{
        column::Column,
        emulated,
        guest::Kit,
        lines,
        progress::Step,
        watch::Watch,
        workload::{Effort, Workload},
    },
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, machine::NULL_DISK, session::Framing};
use plan::{Class, DeviceName, Plan};
use std::time::Duration;

/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);
const NAMES: [&str; 2] = ["first", "second"];

/// What is measured, whatever the policy.
pub struct Load {
    /// Each guest's fio.
    pub fio: Workload,
    /// Its windows.
    pub effort: Effort,
    /// The slice, in microseconds.
    pub slice_us: u32,
}

/// What a run gave.
pub struct Ran {
    /// What each guest said.
    pub guests: Vec<lines::Guest>,
    /// All guests' edges.
    pub edges: Vec<lines::Edge>,
    /// TSC ticks a second, by the hypervisor; none on the bare machine.
    pub tsc_hz: Option<u64>,
}

/// Runs it once.
pub fn boot(cx: &Context, kit: &Kit, load: &Load, policy: Column, step: &Step) -> Result<Ran> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let guest = kit.guest(load.fio)?;
    let parameters = load.fio.parameters(load.effort, load.fio.size(load.effort).pairs);
    let disks = vec![NULL_DISK; NAMES.len()];
    // What the machine boots from stays until it has ended.
    let _image;
    let mut machine = match policy.policy() {
        None => {
            let cmdline = format!("{LINUX} {parameters} exitless.disk=nvme0n1,nvme1n1");
            emulated::bare(guest, &cmdline, NAMES.len() as u64, disks)
        }
        Some(policy) => {
            let vms = NAMES.into_iter().zip(0..).map(|(name, index)| {
                let cmdline = format!("{LINUX} {parameters} exitless.guest={index}");
                let device = DeviceName::Named { class: Class::Nvme, index };
                emulated::vm(name, guest, cmdline, device, policy)
            });
            let plan = Plan { slice_us: load.slice_us, ..Plan::new(vms.collect()) };
            let (machine, kept) = emulated::hosted(cx, plan, disks)?;
            _image = kept;
            machine
        }
    };
    machine.iommu = Some(kit.iommu);
    machine.plugin = Some(kit.plugin_writing(&counts));
    emulated::set_nvme(&mut machine);
    let bare = policy == Column::Bare;
    let guests = &NAMES[..if bare { 1 } else { NAMES.len() }];
    let mut watch = Watch::new(guests.iter().map(|name| name.to_string()).collect()).first_waits();
    let (framing, patience) = (if bare { Framing::Raw } else { Framing::Frames }, PATIENCE);
    let ended = watch.run(cx, &machine, framing, patience, step, |_| false)?;
    let guests = watch.guests(&ended)?;
    let edges = emulated::counted(&counts)?.edges;
    if edges.is_empty() {
        bail!("the counting plugin saw no window");
    }
    Ok(Ran { guests, edges, tsc_hz: watch.report().machine.as_ref().map(|m| m.tsc_hz) })
}
