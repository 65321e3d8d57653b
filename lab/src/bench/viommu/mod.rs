//! `exitless bench viommu`: stock Linux with fio on an NVMe controller of its own, or with netperf
//! on a network controller, behind an IOMMU of its own or none, which a sidecore serves, or the
//! VM's exits do, or the machine has.
//!
//! Guarantees: every column's guest has the same kernel, driver, load and windows. Nothing is
//! timed.

mod boot;
mod output;
mod strategy;

use super::{
    progress::Step,
    ready::{Files, prepare},
    show::text,
    sidecore::Alone,
    workload::{Effort, Workload},
};
use anyhow::{Result, bail};
use exitless::{arguments::between, context::Context, qemu::Iommu};
use strategy::{Cell, Own, Place};

/// What `bench viommu` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What the guest runs
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fio,netperf")]
    load: Vec<Load>,
    /// fio's queue depths
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = between(1, 256))]
    depth: Vec<u32>,
    /// Coarse, in minutes: shorter windows
    #[arg(long)]
    quick: bool,
    /// The guest's own IOMMU
    #[arg(long, value_enum, default_value_t)]
    own: Own,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Reads of 4 KiB from an assigned NVMe controller
    Fio,
    /// A TCP stream of 256-byte writes by an assigned network controller
    Netperf,
}

impl Args {
    fn workloads(&self) -> Vec<Workload> {
        let of = |load: &Load| match load {
            Load::Fio => self.depth.iter().map(|depth| Workload::Fio { depth: *depth }).collect(),
            Load::Netperf => vec![Workload::STREAM],
        };
        self.load.iter().flat_map(of).collect()
    }

    /// The columns of a load. fio's guest has Debian's cloud kernel, which has no driver for
    /// AMD-Vi: on the bare machine with such a unit it has none.
    fn places(&self, workload: Workload) -> Vec<Place> {
        let driven = workload.is_network() || self.iommu == Iommu::VtD;
        let mut places = self.own.places();
        places.retain(|place| driven || !place.has_machines());
        places
    }
}

/// Measures and shows the tables.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim(output::NAME)?;
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    if args.own == Own::AmdVi && args.load.contains(&Load::Fio) {
        bail!(
            "--own amd-vi: fio's guest has Debian's cloud kernel, which has no driver for AMD-Vi; add --load netperf, or give another --own"
        );
    }
    let workloads = args.workloads();
    let kit = prepare(cx, args.iommu, &workloads)?;
    let mut measured = Vec::new();
    for workload in workloads {
        let mut cells = Vec::new();
        for place in args.places(workload) {
            let step = Step::begin(format!("{:<14} {}", workload.short(), place.label()));
            let cell =
                boot::boot(cx, &kit, (args.own, place), workload, effort, &step).and_then(|ran| {
                    let pairs = workload.size(effort).pairs;
                    Ok(Cell { place, alone: Alone::of(place.way(), ran, pairs)? })
                });
            match &cell {
                Ok(cell) => {
                    let n = cell.alone.figures.operations;
                    step.end(&format!("{n} {}s", workload.operation()));
                }
                Err(_) => step.end("failed"),
            }
            cells.push(cell?);
        }
        measured.push((workload, cells));
    }
    let blocks = output::blocks(args.own, &measured);
    println!("\n{}", text::blocks(&blocks));
    files.write(&output::rows(args.own, &measured), &output::page(blocks, &kit))
}
