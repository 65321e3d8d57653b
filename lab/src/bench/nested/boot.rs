//! One run of the small kernel that is a hypervisor: on the bare machine, below Exitless, or below
//! KVM on the same machine, with the counting plugin outside of it.
//!
//! Guarantees: counts are given only of a kernel whose checks all held.

use super::levels::Below;
use crate::{
    bench::{
        emulated::{self, GUEST_MEMORY, last_line},
        guest::counting_plugin,
        lines::Plugin,
    },
    cmdline::LINUX,
    selftest::{
        inner_linux,
        kernel::{self, Variant},
    },
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::{Disk, Machine},
    session::{self, Framing, Seen, Setup},
    stream::Piece,
};
use plan::{GuestIommu, OnReset, Plan, Policy, Vm};
use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

/// For KVM's host to boot and run it, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);
const TEST: &str = "test=svm-levels";
/// What the kernel says of a check that failed, and of its last one.
const FAILED: &str = "FAIL";
const LAST: &str = "64 of 64 pages came";
/// What Debian's kernel is told on the bare machine, as other measured ones are.
const BARE: &str = " iommu=pt no_timer_check";
/// Memory of KVM's host: the guest's, QEMU and its RAM disk.
const HOST_MEMORY: u64 = 1280 << 20;

/// Makes what these runs need and isn't there yet.
pub fn prepare(cx: &Context, below: &[Below]) -> Result<()> {
    if below.contains(&Below::Exitless) {
        cx.hypervisor()?;
    }
    if below.contains(&Below::Kvm) {
        inner_linux::prepare(cx)?;
    }
    Ok(())
}

/// Runs it once.
pub fn boot(cx: &Context, below: Below) -> Result<Plugin> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let kernel = scratch.path().join("kernel");
    // The one header that QEMU takes of a 64-bit kernel.
    fs::write(&kernel, kernel::build(cx, |_| false)?.variant(Variant::Pvh)?)?;
    // What the machine boots from stays until it has ended.
    let mut _image = None;
    let mut machine = match below {
        Below::Nothing => Machine::bare(&kernel, None, TEST, GUEST_MEMORY, Vec::new()),
        Below::Exitless => {
            let (machine, kept) = emulated::hosted(cx, Plan::new(vec![vm(&kernel)]), Vec::new())?;
            _image = Some(kept);
            machine
        }
        Below::Kvm => kvm(cx, &kernel)?,
    };
    let console = run(cx, &mut machine, below, &counts)?;
    if console.contains(FAILED) || !console.contains(LAST) {
        bail!("the small kernel didn't run to its end: {}", last_line(&console));
    }
    emulated::counted(&counts)
}

/// Debian with KVM in a VM of Exitless, or on the bare machine: a guest of a few instructions exits
/// so often for each reason. Gives what was counted, and what its console said.
pub fn kvm_as_hypervisor(cx: &Context, below: Below, times: u64) -> Result<(Plugin, String)> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let mut vm = inner_linux::vm(cx);
    vm.cmdline += &format!(" exitless.exits={times}");
    let mut _image = None;
    let mut machine = if below == Below::Exitless {
        let (machine, kept) = emulated::hosted(cx, Plan::new(vec![vm]), Vec::new())?;
        _image = Some(kept);
        machine
    } else {
        let initrd = vm.initrd.as_deref().map(Path::new);
        let cmdline = format!("{}{BARE}", vm.cmdline);
        Machine::bare(Path::new(&vm.kernel), initrd, &cmdline, HOST_MEMORY, Vec::new())
    };
    let console = run(cx, &mut machine, below, &counts)?;
    Ok((emulated::counted(&counts)?, console))
}

/// Runs the machine to its end with the plugin; gives what its console said.
fn run(cx: &Context, machine: &mut Machine, below: Below, counts: &Path) -> Result<String> {
    machine.plugin = Some(counting_plugin(cx, machine.iommu.unwrap_or_default(), counts)?);
    let framing = if below == Below::Exitless { Framing::Frames } else { Framing::Raw };
    let setup =
        Setup { command: machine.command(cx)?, framing, timeout: Some(PATIENCE), typed: None };
    let mut console = Vec::new();
    session::run(setup, cx, |seen| {
        if let Seen::Said(Piece::Console { bytes, .. }) = seen {
            console.extend_from_slice(bytes);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    Ok(String::from_utf8_lossy(&console).into_owned())
}

/// As a VM of Exitless.
fn vm(kernel: &Path) -> Vm<String> {
    Vm {
        name: "levels".into(),
        cpus: vec![1],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: GUEST_MEMORY,
        kernel: kernel.display().to_string(),
        initrd: None,
        cmdline: format!("{TEST} policy=direct"),
        devices: vec![],
        disks: vec![],
        interfaces: vec![],
        interrupts: Some(Policy::Direct),
        reset: OnReset::Stop,
        nested: true,
        iommu: GuestIommu::None,
    }
}

/// Debian with KVM on the bare machine, and the kernel on its disk, for the QEMU in it.
fn kvm(cx: &Context, kernel: &Path) -> Result<Machine> {
    let of = |file: &str| -> PathBuf { cx.root.join("build/guest-nested").join(file) };
    let cmdline = format!("{LINUX} loglevel=4 exitless.kernel={TEST}{BARE}");
    let disks = vec![Disk::File(kernel.to_owned())];
    Ok(Machine::bare(&of("vmlinuz"), Some(&of("initrd.img")), &cmdline, HOST_MEMORY, disks))
}
