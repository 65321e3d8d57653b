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
        inner_linux::{self, made},
        kernel::{self, Variant},
    },
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::{Disk, Machine, NESTING_CPU},
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
/// The same where its guest is KVM's host once more.
const TWICE_THE_HOST: u64 = 2 << 30;
const SECTOR: u64 = 512;

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
        Below::Kvm => {
            let words = format!("exitless.kernel={TEST}");
            debian(cx, &words, HOST_MEMORY, Some(kernel.clone()))
        }
    };
    let console = run(cx, &mut machine, below, &counts)?;
    if console.contains(FAILED) || !console.contains(LAST) {
        bail!("the small kernel didn't run to its end: {}", last_line(&console));
    }
    emulated::counted(&counts)
}

/// Debian with KVM in a VM of Exitless, in one of the same Debian with KVM, or on the bare machine:
/// a guest of a few instructions exits so often for each reason. Gives what was counted, and what
/// its console said.
pub fn kvm_as_hypervisor(cx: &Context, below: Below, times: u64) -> Result<(Plugin, String)> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let mut _image = None;
    let mut machine = match below {
        Below::Nothing => debian(cx, &format!("exitless.exits={times}"), HOST_MEMORY, None),
        Below::Exitless => {
            let mut vm = inner_linux::vm(cx);
            vm.cmdline += &format!(" exitless.exits={times}");
            let (machine, kept) = emulated::hosted(cx, Plan::new(vec![vm]), Vec::new())?;
            _image = Some(kept);
            machine
        }
        Below::Kvm => {
            let disk = scratch.path().join("disk");
            on_disk(&made(cx, "initrd.img"), &disk)?;
            debian(cx, &format!("exitless.again={times}"), TWICE_THE_HOST, Some(disk))
        }
    };
    let console = run(cx, &mut machine, below, &counts)?;
    Ok((emulated::counted(&counts)?, console))
}

/// Runs the machine to its end with the plugin; gives what its console said.
fn run(cx: &Context, machine: &mut Machine, below: Below, counts: &Path) -> Result<String> {
    // What Exitless has for a plan with such a VM; here all columns have it.
    machine.cpu = NESTING_CPU.into();
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

/// Debian with KVM on the bare machine, and a file as its disk.
fn debian(cx: &Context, words: &str, memory: u64, disk: Option<PathBuf>) -> Machine {
    let (kernel, initrd) = (made(cx, "vmlinuz"), made(cx, "initrd.img"));
    let cmdline = format!("{LINUX} loglevel=4 {words}{BARE}");
    Machine::bare(
        &kernel,
        Some(&initrd),
        &cmdline,
        memory,
        disk.map(Disk::File).into_iter().collect(),
    )
}

/// A copy that a disk can be: of whole sectors.
fn on_disk(file: &Path, disk: &Path) -> Result<()> {
    let bytes =
        fs::copy(file, disk).with_context(|| format!("{} can't be copied", file.display()))?;
    fs::File::options().write(true).open(disk)?.set_len(bytes.next_multiple_of(SECTOR))?;
    Ok(())
}
