//! `exitless bench` and `exitless demo`: what is asked for, in which order things
//! happen, and what is shown in the end.

use super::{
    column::Column,
    experiments, io, iommus,
    measure::{Cell, Request, Results, measure},
    nested,
    ready::{FOLDER, Files, prepare},
    report::{self, Measured},
    shared,
    show::text::{wrap, wrap_below},
    sidecore, viommu,
    workload::{Effort, Workload},
};
use anyhow::{Result, bail};
use exitless::{
    arguments::between,
    context::Context,
    output::{Folder, Output},
    qemu::Iommu,
};
use std::{panic::resume_unwind, path::PathBuf, thread};

/// Cells at a time in a test, where spreads don't matter and time does.
const SMOKE_JOBS: u32 = 2;

/// Run an experiment and show what it measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum What {
    /// Every experiment of the ELI paper and fio: one HTML report, JSON next to it
    All(AllArgs),
    /// Figure 3: throughput relative to bare metal, all programs
    Fig3(OneArgs),
    /// Table 1: execution breakdown of netperf, Apache and memcached
    Table1(OneArgs),
    /// Figure 4: computation per byte sent
    Fig4(OneArgs),
    /// Figure 5: interrupt coalescing by the network card
    Fig5(OneArgs),
    /// Table 2: latency of a UDP request and its response
    Table2(OneArgs),
    /// fio: 4 KiB random reads from an assigned NVMe controller
    Fio(FioArgs),
    /// Two guests on one core, fio on an NVMe controller of each
    Shared(shared::Args),
    /// Paravirtual disks: one VM and several on a sidecore, classical and exitless
    Sidecore(sidecore::Args),
    /// A guest's own IOMMU: fio and netperf without one, strict, deferred and optimistic
    Viommu(viommu::Args),
    /// A guest of a guest: what an exit costs at one level and at two
    Nested(nested::Args),
    /// A guest of a guest: what a compiler and computing take at one level and at two
    Loads(nested::loads::Args),
    /// A guest of a guest: netperf by emulated, paravirtual and assigned network cards at one level
    /// and at two
    Networks(nested::networks::Args),
    /// The daemon beside other servers of vhost-user disks: natively, and below a guest of stock
    /// QEMU
    Io(io::Args),
}

/// What every experiment takes.
#[derive(clap::Args, Clone, Debug)]
struct Common {
    /// What the guest runs on
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bare,trap,eli-delivery,eli,direct"
    )]
    policy: Vec<Column>,
    /// Coarse, in minutes: fewer points, shorter windows, wider spread
    #[arg(long)]
    quick: bool,
    /// Boots of the guest for each cell
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, 100))]
    repeat: u32,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
}

#[derive(clap::Args, Clone, Debug)]
struct OneArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Clone, Debug)]
struct FioArgs {
    #[command(flatten)]
    one: OneArgs,
    /// fio's queue depths
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = between(1, 1024))]
    depth: Vec<u32>,
}

#[derive(clap::Args, Clone, Debug)]
struct AllArgs {
    #[command(flatten)]
    common: Common,
    /// Where report.html and report.json go
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    out: PathBuf,
}

/// Bare metal and three kinds of VM side by side, explained.
#[derive(clap::Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    what: Option<Demo>,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
    /// On Intel's VMX, without Linux and devices: exits by reason
    #[arg(long, value_enum, conflicts_with_all = ["iommu", "json"])]
    machine: Option<OnMachine>,
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Another machine than the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnMachine {
    /// The emulator that has VMX
    Bochs,
}

impl DemoArgs {
    /// The other machine that is asked for.
    pub fn machine(&self) -> Option<OnMachine> {
        self.machine
    }
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Demo {
    /// Paravirtual disks of several VMs, classical and exitless, in one table
    Sidecores(sidecore::DemoArgs),
    /// A guest's guest with an NVMe controller of its own: exits by reason, in one table; some
    /// three minutes on an idle machine of two cores, under ten from nothing
    Nested(nested::DemoArgs),
}

/// Runs an experiment.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let of = |name: &str, args: &OneArgs| {
        let experiment = experiments::ALL.into_iter().find(|e| e.name == name);
        let Some(experiment) = experiment else { bail!("there is no experiment {name}") };
        one(cx, Measured::of(experiment, args.common.effort()), args)
    };
    match &args.what {
        What::All(args) => all(cx, args),
        What::Fig3(args) => of("fig3", args),
        What::Table1(args) => of("table1", args),
        What::Fig4(args) => of("fig4", args),
        What::Fig5(args) => of("fig5", args),
        What::Table2(args) => of("table2", args),
        What::Fio(args) => one(cx, fio(&args.depth), &args.one),
        What::Shared(args) => shared::run(args, cx),
        What::Sidecore(args) => sidecore::run(args, cx),
        What::Viommu(args) => viommu::run(args, cx),
        What::Nested(args) => nested::run(args, cx),
        What::Loads(args) => nested::loads::run(args, cx),
        What::Networks(args) => nested::networks::run(args, cx),
        What::Io(args) => io::run(args, cx),
    }
}

impl Common {
    const fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }

    fn request(&self, workloads: &[Workload]) -> Request {
        let request = Request::new(workloads, &self.policy, self.effort());
        Request { repeat: self.repeat, ..request }
    }
}

fn fio(depths: &[u32]) -> Measured {
    let workloads = depths.iter().map(|depth| Workload::Fio { depth: *depth }).collect();
    Measured { experiment: experiments::FIO, workloads }
}

fn one(cx: &Context, measured: Measured, args: &OneArgs) -> Result<()> {
    let files = args.files.claim(measured.experiment.name)?;
    let request = args.common.request(&measured.workloads);
    let kit = prepare(cx, args.common.iommu, &measured.workloads)?;
    let results = measure(cx, &kit, &request)?;
    show(&measured, &results);
    let rows = measured.rows(&results);
    files.write(&rows, &report::page(&[measured], &results, &request, &kit))?;
    verdict(&results)
}

fn all(cx: &Context, args: &AllArgs) -> Result<()> {
    let folder = Folder::claim(&args.out)?;
    let (html, json) = (folder.file("report.html")?, folder.file("report.json")?);
    let effort = args.common.effort();
    let measured = experiments::ALL.map(|e| Measured::of(e, effort));
    let workloads = experiments::workloads(&experiments::ALL, effort);
    let request = args.common.request(&workloads);
    let kit = prepare(cx, args.common.iommu, &workloads)?;
    let results = measure(cx, &kit, &request)?;
    json.write(&report::json(&measured, &results, &request, &kit)?)?;
    html.write(&report::page(&measured, &results, &request, &kit))?;
    let out = args.out.display();
    println!("{out}/report.html and {out}/report.json: {} cells", results.cells.len());
    verdict(&results)
}

const DEMO: &str = "\
An unmodified Debian kernel runs fio on an NVMe controller: on the bare emulated machine (bare), in \
a VM whose interrupts are trapped (trap), in a VM with exitless interrupts (eli), and in a VM that \
owns its core's interrupt controller, the timer included (direct). Everything is counted.";

/// The main job: says what it does, measures, shows the table and what follows from it.
pub fn demo(args: &DemoArgs, cx: &Context) -> Result<()> {
    match &args.what {
        Some(Demo::Sidecores(args)) => return sidecore::demo(args, cx),
        Some(Demo::Nested(args)) => return nested::demo(args, cx),
        None => {}
    }
    let json = args.json.as_deref().map(Output::claim).transpose()?;
    println!("{}\n", wrap(DEMO));
    println!("1 of 4: the hypervisor and the guest");
    cx.hypervisor()?;
    let measured = fio(&[1, 32]);
    let kit = prepare(cx, args.iommu, &measured.workloads)?;
    kit.versions().iter().for_each(|v| print!("{}", wrap_below(v)));
    println!("2 of 4: eight runs, some 15 to 40 seconds each, those of bare some minutes");
    let policies = [Column::Bare, Column::TRAP, Column::ELI, Column::DIRECT];
    let request = Request::new(&measured.workloads, &policies, Effort::Demo);
    let results = measure(cx, &kit, &request)?;
    let other = iommus::other(args.iommu);
    println!("3 of 4: two of them again, on a machine whose IOMMU is {}", iommus::name(other));
    let again = iommus::run(cx, &prepare(cx, other, &measured.workloads)?)?;
    println!("4 of 4: what was counted\n");
    show(&measured, &results);
    println!("{}", iommus::table([(args.iommu, &results), (other, &again)]));
    let conclusions = experiments::conclusions(&results);
    if !conclusions.is_empty() {
        println!();
    }
    for sentence in conclusions {
        println!("{}", wrap(&sentence));
    }
    if let Some(json) = json {
        json.write_json(&[measured.rows(&results), measured.rows(&again)].concat())?;
    }
    verdict(&results)?;
    verdict(&again)
}

/// A short run of every experiment under `direct`, of netperf's stream under `trap` too, and of fio
/// under all: the plugin must count to the instruction, guests must drive their devices by
/// interrupts, the ledger must agree with the plugin, exits must be where the policies have them,
/// on a core that guests share too, and the report must come out.
pub fn smoke(cx: &Context) -> Result<()> {
    let effort = Effort::Smoke;
    let measured = experiments::ALL.map(|e| Measured::of(e, effort));
    let workloads = experiments::workloads(&experiments::ALL, effort);
    let mut request = Request::new(&[Workload::STREAM], &[Column::TRAP], effort);
    let disk = workloads.iter().copied().filter(|w| !w.is_network()).collect::<Vec<_>>();
    let rest = [(workloads.as_slice(), [Column::DIRECT].as_slice()), (&disk, &Column::ALL)];
    for cell in rest.iter().flat_map(|(of, by)| Request::new(of, by, effort).cells) {
        if !request.cells.contains(&cell) {
            request.cells.push(cell);
        }
    }
    request.jobs = SMOKE_JOBS;
    let kit = prepare(cx, Iommu::default(), &workloads)?;
    let results = measure(cx, &kit, &request)?;
    let folder = tempfile::tempdir()?;
    let page = report::page(&measured, &results, &request, &kit);
    Output::claim(&folder.path().join("report.html"))?.write(&page)?;
    verdict(&results)?;
    let misplaced: Vec<_> = results.cells.iter().filter_map(misplaced).collect();
    if !misplaced.is_empty() {
        bail!("{}", misplaced.join("; "));
    }
    thread::scope(|scope| {
        let beside = scope.spawn(|| sidecore::smoke(cx, &kit));
        let done = shared::smoke(cx, &kit).and_then(|()| io::smoke(cx));
        beside.join().unwrap_or_else(|panic| resume_unwind(panic)).and(done)
    })
}

/// What is wrong with a cell's exits for interrupts and completions, if anything is.
fn misplaced(cell: &Cell) -> Option<String> {
    let exits = cell.figures.delivery_exits_per_interrupt();
    let merged = cell.figures.merged as f64 / cell.figures.interrupts as f64;
    let (good, expected) = match cell.policy {
        Column::Bare | Column::POSTED => return None,
        // An interrupt that comes while the host handles another needs no exit of its own; one
        // that finds the one before it still pending has an exit, and no completion.
        Column::TRAP => ((1.0..=2.01).contains(&(exits - merged)), "1 to 2"),
        Column::ELI_DELIVERY => ((0.99..=1.01).contains(&exits), "1"),
        Column::ELI => (exits < 0.01, "0"),
        Column::DIRECT | Column::Nested => (exits == 0.0, "exactly 0"),
    };
    let (load, policy) = (cell.workload.short(), cell.policy.label());
    (!good).then(|| {
        format!(
            "{load}, {policy}: {exits} exits for each interrupt and its completion, {expected} expected, and {merged} for what merged with one before"
        )
    })
}

fn show(measured: &Measured, results: &Results) {
    if results.cells.is_empty() {
        return;
    }
    println!("\n{}", measured.text(results));
    println!("{}", experiments::legend());
    for note in experiments::notes(results) {
        println!("  {}", wrap(&note).replace('\n', "\n    "));
    }
}

/// Names what failed; fails when anything did or can't be trusted.
fn verdict(results: &Results) -> Result<()> {
    for failure in report::failures(results) {
        eprintln!("exitless: {failure}");
    }
    let void = results.cells.iter().filter(|c| c.figures.counters_agree() == Some(false)).count();
    match (results.failures.len(), void) {
        (0, 0) => Ok(()),
        (0, n) => bail!(
            "the ledger and the plugin disagree about guest entries in {n} of {} runs",
            results.cells.len()
        ),
        (n, _) => bail!("{n} of {} runs failed", results.cells.len() + n),
    }
}
