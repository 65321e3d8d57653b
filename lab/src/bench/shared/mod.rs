//! `exitless bench shared`: two Linux guests on one core, each with fio on an NVMe controller of
//! its own, beside one Linux on the bare machine with both controllers and both loads.
//!
//! Guarantees: all windows of a guest have the other's load beside them, but the one that tells the
//! price of a timer tick: that has no other guest beside it.

mod boot;
mod cell;
mod figures;
mod output;

use super::{
    boot as alone,
    column::Column,
    figures::{Window, tick},
    guest::Kit,
    lines,
    matched::Control,
    progress::Step,
    ready::{Files, prepare},
    show::text,
    workload::{Effort, Workload},
};
use anyhow::{Result, bail};
use boot::{Load, Ran};
use cell::Cell;
use exitless::{arguments::between, context::Context, qemu::Iommu};
use figures::{Side, Together};

/// Exits that an interrupt may cost on average that comes while its owner has the core.
const MOST_WHILE_RESIDENT: f64 = 0.05;

/// What `bench shared` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What the guests run on
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,trap,eli")]
    policy: Vec<Column>,
    /// Coarse, in minutes: shorter windows
    #[arg(long)]
    quick: bool,
    /// Reads under way at a time, of each fio
    #[arg(long, default_value_t = 32, value_parser = between(1, 1024))]
    depth: u32,
    /// How long a guest runs at most while the other waits, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = plan::DEFAULT_SLICE, value_parser = between(100, 1_000_000))]
    slice: u32,
    /// How often to boot and measure each column; a figure is of all runs' counts together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, 100))]
    runs: u32,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
    #[command(flatten)]
    files: Files,
}

/// Runs the experiment.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    if let Some(owner) = args.policy.iter().find(|p| [Column::DIRECT, Column::Nested].contains(p)) {
        bail!(
            "{} gives a guest its core's interrupt controller and needs a core of its own; bench shared can measure bare, trap, eli-delivery and eli",
            owner.label()
        );
    }
    let files = args.files.claim(output::NAME)?;
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    let fio = Workload::Fio { depth: args.depth };
    let kit = prepare(cx, args.iommu, &[fio])?;
    let load = Load { fio, effort, slice_us: args.slice };
    let policies: Vec<_> = Column::ALL.into_iter().filter(|p| args.policy.contains(p)).collect();
    let mut measured = vec![Vec::new(); policies.len()];
    for run in 1..=args.runs {
        for (policy, measured) in policies.iter().zip(&mut measured) {
            let of =
                if args.runs > 1 { format!(", {run} of {}", args.runs) } else { String::new() };
            let step = Step::begin(format!("two on a core     {}{of}", policy.label()));
            let together = boot::boot(cx, &kit, &load, *policy, &step).and_then(figures);
            match &together {
                Ok(together) => step.end(&format!("{} I/Os", together.operations())),
                Err(_) => step.end("failed"),
            }
            measured.push(together?);
        }
    }
    let control = policies.contains(&Column::Bare).then(|| one_load(cx, &kit, &load));
    let control = control.transpose()?.flatten();
    let cell = |(policy, runs): (Column, Vec<_>)| {
        let together = Together::pooled(&runs);
        Cell { policy, runs, together }
    };
    let cells: Vec<_> = policies.into_iter().zip(measured).map(cell).collect();
    let shown = output::blocks(&cells, control.as_ref(), &load);
    println!("\n{}", text::blocks(&shown));
    files.write(&output::rows(&cells, control.as_ref(), &load), &output::page(shown, &kit))
}

/// The bare machine under one of the loads, at several paces: the guests have the core in turns,
/// and a kernel that has it sees one device at a time.
fn one_load(cx: &Context, kit: &Kit, load: &Load) -> Result<Option<Control>> {
    let step = Step::begin("one load alone     bare, slowed".to_owned());
    let boot = alone::boot(cx, kit, load.fio, Column::Bare, load.effort, &step);
    let windows = boot.and_then(|boot| lines::join(boot.guest, &boot.plugin));
    step.end(if windows.is_ok() { "measured" } else { "failed" });
    Ok(Control::of(&[windows?], load.fio.size(load.effort).pairs))
}

/// For the tests: two guests on a core, briefly. Fails if interrupts that come while their owner
/// has the core cost exits, or hardly any do.
pub fn smoke(cx: &Context, kit: &Kit) -> Result<()> {
    let load = Load {
        fio: Workload::Fio { depth: 32 },
        effort: Effort::Smoke,
        slice_us: plan::DEFAULT_SLICE,
    };
    let step = Step::begin("two on a core     eli".to_owned());
    let together = boot::boot(cx, kit, &load, Column::ELI, &step).and_then(figures);
    match &together {
        Ok(t) => step
            .end(&format!("{:.4} exits for an interrupt while resident", t.exits_while_resident())),
        Err(_) => step.end("failed"),
    }
    let together = together?;
    let (resident, all) =
        (together.sum(Side::while_resident), together.sum(|side| side.interrupts));
    if resident < all / 2 {
        bail!(
            "two on a core: only {resident} of {all} interrupts came while their owner had the core"
        );
    }
    if together.exits_while_resident() > MOST_WHILE_RESIDENT {
        let exits = together.sum(Side::exits_while_resident);
        bail!(
            "two on a core: {exits} exits for {resident} interrupts that came while their owner had the core, {MOST_WHILE_RESIDENT} each at most expected"
        );
    }
    Ok(())
}

/// Each guest's windows with what was counted on the core meanwhile.
fn figures(ran: Ran) -> Result<Together> {
    let mut edges = ran.edges;
    let mut sides = Vec::new();
    let mut price = None;
    for (of, guest) in ran.guests.into_iter().enumerate() {
        let own = edges.extract_if(.., |edge| edge.of == of as u64).collect();
        let plugin = lines::Plugin { edges: own, ..Default::default() };
        let windows: Vec<Window> = lines::join(guest, &plugin)?;
        sides.push(Side::of(&windows)?);
        if of == 0 {
            price = Some(tick(&windows)?);
        }
    }
    Ok(Together { sides, tick: price.unwrap_or_default(), tsc_hz: ran.tsc_hz })
}
