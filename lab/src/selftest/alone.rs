//! A VM that is the only one of a plan, heard to its end.
//!
//! Guarantees: what `hear` gives is of a run in which nothing failed, and at whose end the VM
//! powered itself off.

use crate::console::tail;
use anyhow::{Result, bail};
use exitless::{
    boot_image::BootImage,
    context::Context,
    load::{self, File},
    machine::{Disk, Machine},
    qemu::Iommu,
    report::Report,
    session::{self, Ended, Framing, Seen, Setup},
    stream::Piece,
};
use plan::Plan;
use proto::End;
use std::{ops::ControlFlow, path::Path, time::Duration};

/// Is shown what a console has said so far.
pub type See<'a> = &'a mut dyn FnMut(&[u8]);

/// Runs it for so long at most, until it powers itself off. Gives the host's report, and what its
/// console said.
pub fn hear(
    cx: &Context,
    plan: Plan<String>,
    disks: Vec<Disk>,
    patience: Duration,
) -> Result<(Report, String)> {
    watch(cx, plan, disks, patience, &mut |_| {})
}

/// The same; `see` is shown what the console has said so far, again and again.
pub fn watch(
    cx: &Context,
    plan: Plan<String>,
    disks: Vec<Disk>,
    patience: Duration,
    see: See,
) -> Result<(Report, String)> {
    let plan = load::files(plan, Path::new(""))?;
    let iommu = Iommu::default();
    let (ended, report, console) = watch_plan(cx, &plan, iommu, disks, patience, see)?;
    let console = String::from_utf8_lossy(&console).into_owned();
    if let Some(failure) = report.failure(&ended) {
        bail!("{failure}; the console's end: {}", tail(&console));
    }
    let end = report.vms.first().and_then(|vm| vm.end.as_ref());
    if !matches!(ended, Ended::Exited { .. }) || end != Some(&End::PowerOff) {
        bail!("it didn't power itself off, but {end:?}; the console's end: {}", tail(&console));
    }
    Ok((report, console))
}

/// The same of the only VM of a plan, on a machine with this IOMMU, with its console as it came,
/// however it ends.
pub fn hear_plan(
    cx: &Context,
    plan: &Plan<File>,
    iommu: Iommu,
    disks: Vec<Disk>,
    patience: Duration,
) -> Result<(Ended, Report, Vec<u8>)> {
    watch_plan(cx, plan, iommu, disks, patience, &mut |_| {})
}

fn watch_plan(
    cx: &Context,
    plan: &Plan<File>,
    iommu: Iommu,
    disks: Vec<Disk>,
    patience: Duration,
    see: See,
) -> Result<(Ended, Report, Vec<u8>)> {
    let mut report = Report::new(plan.vms.iter().map(|vm| vm.name.as_str()));
    let image = BootImage::new(plan)?;
    let mut machine = Machine::exitless(cx.hypervisor()?, &image.path(), plan, disks)?;
    machine.iommu = Some(iommu);
    let command = machine.command(cx)?;
    let setup = Setup { command, framing: Framing::Frames, timeout: Some(patience), typed: None };
    let mut console = Vec::new();
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) => console.extend_from_slice(bytes),
            Seen::Said(Piece::Record(record)) => report.see(&record),
            _ => {}
        }
        see(&console);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((ended, report, console))
}

/// That a console has these texts, in this order.
pub fn says(console: &str, texts: &[&str]) -> Result<()> {
    let mut rest = console;
    for text in texts {
        let Some((_, after)) = rest.split_once(text) else {
            bail!("it didn't say \"{text}\"; the console's end: {}", tail(console));
        };
        rest = after;
    }
    Ok(())
}
