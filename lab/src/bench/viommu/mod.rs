//! `exitless bench viommu`: stock Linux with fio on an NVMe controller of its own, behind an IOMMU
//! of its own or none, which a sidecore serves, or the VM's exits do, or the machine has.
//!
//! Guarantees: every column's guest has the same kernel, driver, fio and windows. Nothing is timed.

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
use anyhow::Result;
use exitless::{arguments::between, context::Context, qemu::Iommu};
use strategy::{ALL, Cell};

/// What `bench viommu` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// fio's queue depths
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = between(1, 256))]
    depth: Vec<u32>,
    /// Coarse, in minutes: shorter windows
    #[arg(long)]
    quick: bool,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
    #[command(flatten)]
    files: Files,
}

/// Measures and shows the tables.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim(output::NAME)?;
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    let workloads: Vec<_> =
        args.depth.iter().map(|depth| Workload::Fio { depth: *depth }).collect();
    let kit = prepare(cx, args.iommu, &workloads)?;
    let mut measured = Vec::new();
    for (depth, workload) in args.depth.iter().zip(workloads) {
        let mut cells = Vec::new();
        for place in ALL {
            let step = Step::begin(format!("{:<14} {}", workload.short(), place.label()));
            let cell = boot::boot(cx, &kit, place, workload, effort, &step).and_then(|ran| {
                let pairs = workload.size(effort).pairs;
                Ok(Cell { place, alone: Alone::of(place.way(), ran, pairs)? })
            });
            match &cell {
                Ok(cell) => step.end(&format!("{} I/Os", cell.alone.figures.operations)),
                Err(_) => step.end("failed"),
            }
            cells.push(cell?);
        }
        measured.push((*depth, cells));
    }
    let blocks = output::blocks(&measured);
    println!("\n{}", text::blocks(&blocks));
    files.write(&output::rows(&measured), &output::page(blocks, &kit))
}
