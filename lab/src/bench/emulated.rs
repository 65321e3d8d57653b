//! What every boot of an experiment has in common: the guest as a VM or on the bare machine, the
//! machine's settings, and what must be heard of it in the end.

use super::{
    guest::Guest,
    lines::{self, Plugin},
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    boot_image::BootImage,
    context::Context,
    load::{self, File},
    machine::{Disk, Machine},
    stream::printable,
};
use plan::{DeviceName, OnReset, Plan, Policy, Vm};
use std::{fs, path::Path};

/// Memory of a guest, on the bare machine and in a VM.
pub const GUEST_MEMORY: u64 = 512 << 20;
/// How much of a guest's console is kept.
pub const MAX_CONSOLE: usize = 1 << 20;
/// What a kernel on the bare machine is told besides. A VM's guest sees no IOMMU: on the bare
/// machine its kernel must not pay for one either. And as under a hypervisor it must not panic
/// because the first ticks are late on a slow computer.
const BARE: &str = " iommu=pt no_timer_check";

/// The bare machine with the memory of so many guests, which boots the guest's kernel.
pub fn bare(guest: &Guest, cmdline: &str, guests: u64, disks: Vec<Disk>) -> Machine {
    let cmdline = format!("{cmdline}{BARE}");
    Machine::bare(&guest.kernel, Some(&guest.initrd), &cmdline, GUEST_MEMORY * guests, disks)
}

/// A machine on which the hypervisor runs the plan, and the image that it boots from, which must
/// live as long.
pub fn hosted(cx: &Context, plan: Plan<String>, disks: Vec<Disk>) -> Result<(Machine, BootImage)> {
    running(cx, &load::files(plan, Path::new(""))?, disks)
}

/// The same of a plan whose files are read.
pub fn running(cx: &Context, plan: &Plan<File>, disks: Vec<Disk>) -> Result<(Machine, BootImage)> {
    let image = BootImage::new(plan)?;
    let machine = Machine::exitless(cx.hypervisor()?, &image.path(), plan, disks)?;
    Ok((machine, image))
}

/// The guest as a VM on core 1 that owns a device.
pub fn vm(
    name: &str,
    guest: &Guest,
    cmdline: String,
    device: DeviceName,
    policy: Policy,
) -> Vm<String> {
    Vm {
        name: name.into(),
        cpus: vec![1],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: GUEST_MEMORY,
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline,
        devices: vec![device],
        disks: vec![],
        interfaces: vec![],
        interrupts: Some(policy),
        reset: OnReset::Stop,
        nested: false,
        iommu: plan::GuestIommu::None,
    }
}

/// NVMe controllers as most real ones are, without shadow doorbells; and with few queues, so that
/// set-up is short.
pub fn set_nvme(machine: &mut Machine) {
    for setting in ["dbcs=off", "max_ioqpairs=2", "msix_qsize=3"] {
        machine.extra.extend(["-global".into(), format!("nvme.{setting}").into()]);
    }
}

/// What a guest said, once it has reported all and had interrupts by messages, if it had any;
/// `why` it ended otherwise.
pub fn reported(guest: lines::Guest, why: impl FnOnce() -> String) -> Result<lines::Guest> {
    if !guest.done {
        bail!("{}", why());
    }
    if !guest.interrupt.contains("MSI") && guest.interrupt != "polled" {
        bail!("the guest's device interrupts by {}; MSI-X is needed", guest.interrupt);
    }
    Ok(guest)
}

/// What the counting plugin wrote.
pub fn counted(counts: &Path) -> Result<Plugin> {
    let text = fs::read_to_string(counts).context("the counting plugin left no file")?;
    lines::plugin(&text)
}

/// The last line that has something in it.
pub fn last_line(console: &str) -> String {
    let last = console.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing");
    printable(last.trim())
}
